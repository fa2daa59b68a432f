"""The ranks of this process's host, as a process set of Horovod's: OMNIHVD_COMPRESS_FIRST=0."""

from __future__ import annotations

import os
import socket
from typing import Any

from omnihvd import engine
from omnihvd.intercept import horovod_library

_here: list[Any] = []  # the process set of this host's ranks, once it is known
SWITCH = "HOROVOD_DYNAMIC_PROCESS_SETS"


def allow_process_sets() -> None:
    """Lets process sets be added later. Call it before hvd.init(), which reads the setting."""
    os.environ.setdefault(SWITCH, "1")


def ranks_of_host() -> Any:
    """The process set of this host's ranks. Collective over all ranks, the first time."""
    if not _here:
        _here.append(_make())
    return _here[0]


def _make() -> Any:
    from horovod.torch import add_process_set, allgather_object, global_process_set, rank, size

    host = engine.session.settings_from_environment().host_id or socket.gethostname()
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(allgather_object(host, name="omnihvd.hosts")):
        groups.setdefault(name, []).append(number)
    if [*groups.values()] == [[*range(size())]]:
        return global_process_set
    try:
        sets = {name: add_process_set(ranks) for name, ranks in groups.items()}
    except ValueError as why:
        raise ValueError(
            f"OMNIHVD_COMPRESS_FIRST=0 needs process sets on rank {rank()}: import omnihvd before "
            f"hvd.init(), or set {SWITCH}=1 ({why})"
        ) from why
    return sets[host]


horovod_library.on_init(lambda _: _here.clear())  # an elastic job may have other hosts now
