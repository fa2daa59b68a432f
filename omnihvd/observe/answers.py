"""Collects the answers of this host's processes to `omnihvd top`.

Any user can take any socket name, and answer anything for any time. So the kernel is asked which
user holds a name. All answers together have a time limit, and each has a size limit. Only the parts
of an answer that have the known form are kept.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from omnihvd.observe.watchable import PREFIX, user_of

Figures = dict[str, Any]
PATIENCE_S = 2.0
MOST_BYTES = 1 << 18  # of an answer
NAME = re.compile(rf"@({PREFIX}(\d{{1,10}})-(\d{{1,10}}))$", re.M)
ANY = "*"
FORM = {
    **dict.fromkeys(("pid", "rank", "ranks", "begun", "now"), 0),
    **{"host": "", "hosts": [""], "script": "", "last_ranks": {ANY: 0}},
    "stats": {
        **dict.fromkeys(("bytes_sent", "library_bytes", "ring_bytes"), 0),
        **dict.fromkeys(("blocks", "nonzero_blocks", "result_blocks"), 0),
        "ways": {ANY: {"calls": 0, "bytes": 0}},
        "passed": {ANY: {"bytes": 0}},
        "sparse": {"dense_bytes": 0, "union_bytes": 0},
    },
}


class Seen(NamedTuple):
    processes: list[Figures]
    problems: list[str]  # why figures of other processes are missing


class Unfit(ValueError):
    """A malformed answer; the message says what is wrong."""


def here(own: bool = False) -> Seen:
    """This user's processes on this host. Root sees all users', or with `own` root's alone."""
    found = NAME.findall(Path("/proc/net/unix").read_text(errors="replace"))
    end = time.monotonic() + PATIENCE_S
    users = {os.getuid()} if own or os.getuid() != 0 else {int(user) for _, user, _ in found}
    mine = [name for name in sorted(set(found)) if int(name[1]) in users]
    with ThreadPoolExecutor(64) as pool:  # one that hangs must not keep the others waiting
        answers = list(pool.map(lambda name: _ask(*name, end=end), mine))
    problems = [a for a in answers if isinstance(a, str)]
    return Seen([a for a in answers if isinstance(a, dict)], problems)


def _ask(name: str, user: str, process: str, *, end: float) -> Figures | str | None:
    """The answer of a process, or why there is none; None: the process has ended."""
    try:
        return fitting(_read(name, int(user), end), FORM) or None
    except (ConnectionError, FileNotFoundError):
        return None
    except OSError:  # a time-out, mostly
        return f"process {process} (user {user}) does not answer"
    except Unfit as why:
        return f"process {process} (user {user}): {why}"


def _read(name: str, user: int, end: float) -> Any:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(max(end - time.monotonic(), 1e-3))
        asking.connect("\0" + name)
        if user_of(asking) != user:
            raise Unfit(f"user {user_of(asking)} has taken its socket's name")
        answer = b""
        while part := asking.recv(1 << 16):
            answer += part
            if len(answer) > MOST_BYTES:
                raise Unfit("its answer has no end")
            asking.settimeout(max(end - time.monotonic(), 1e-3))
    if not answer:
        raise ConnectionResetError
    return parsed(answer)


def parsed(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise Unfit("its answer is not JSON") from None


def fitting(value: Any, form: Any) -> Any:
    """The parts of a value that the form has. Unfit where one is missing or of another type."""
    if isinstance(value, dict) and isinstance(form, dict):
        names = value if ANY in form else form
        return {name: fitting(value.get(name), form.get(name, form.get(ANY))) for name in names}
    if isinstance(value, list) and isinstance(form, list):
        return [fitting(one, form[0]) for one in value]
    if isinstance(value, str) and isinstance(form, str):
        return value[:200]
    if isinstance(value, (int, float)) and isinstance(form, int) and 0 <= value < 1e18:
        return value
    raise Unfit("its answer has another form: is it another version's?")
