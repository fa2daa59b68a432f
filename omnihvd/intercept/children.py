"""Processes that a script under `python -m omnihvd` starts by multiprocessing have omnihvd, too.

A forked child inherits omnihvd. A child that is spawned, or forked by a fork server, begins with a
new interpreter. multiprocessing pickles a child's object together with its parent's configuration.
So an object in that configuration imports omnihvd in the child when it is unpickled.
"""

from __future__ import annotations

import multiprocessing.process
import os

started = False  # this process has children; they report their own sums


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
