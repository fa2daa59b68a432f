"""Processes that a script under `python -m omnihvd` starts by multiprocessing have omnihvd, too.

A forked child has it from its parent. One that is spawned, or that a fork server forks, begins
with a new interpreter. multiprocessing pickles a child's object with the configuration of the
process that made it: so an object in the latter, when unpickled, imports omnihvd in the child.
"""

from __future__ import annotations

import multiprocessing.process
import os

started = False  # this process has children: what they sum, they say themselves


class _Imports:
    def __reduce__(self) -> tuple[type[_Imports], tuple[()]]:
        _note()
        return _Imports, ()


def follow() -> None:
    """From now on."""
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    config["omnihvd"] = _Imports()
    os.register_at_fork(after_in_parent=_note)


def _note() -> None:
    global started
    started = True
