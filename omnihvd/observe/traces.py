"""Merges traces: the engine's, of several ranks, and Horovod's Timeline; `omnihvd trace`.

Horovod writes its Timeline on rank 0, in a thread of its library that accepts no events from
outside. But the Timeline ends with hvd.shutdown(), and its first event has the start of its clock,
which is the engine's clock. So omnihvd adds the engine's events once the file is complete: each sum
inside the allreduce of each tensor in it, and rounds and waits as a process of their own.
"""

from __future__ import annotations

import argparse
import json
import os
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any

from omnihvd import engine
from omnihvd.launchers import process_rank
from omnihvd.observe.steps import for_rank
from omnihvd.tools.whole_file import whole_file

Events = list[dict[str, Any]]
START = "start_time_since_epoch_in_micros"
OURS = 1_000_000  # added to ranks, as the numbers of processes: Horovod numbers tensors


def wanted(settings: Any) -> bool:
    return bool(settings.trace or _timeline())


def try_path(path: str) -> None:
    """OSError if this rank's file of OMNIHVD_TRACE cannot be written."""
    mine = for_rank(Path(path), process_rank() or 0)
    is_new = not mine.exists()
    with mine.open("ab"):
        if is_new:
            mine.unlink()


def finish() -> None:
    """Writes all pending traces, at the process's end, when Horovod has ended."""
    engine.session.write_trace()
    timeline = _timeline()
    if not timeline or process_rank() not in (None, 0):
        return
    settings = engine.session.settings_from_environment()
    path = Path(settings.trace or f"{timeline}.omnihvd")
    if path.exists() and Path(timeline).exists():
        write(into_timeline(read(Path(timeline)), read(path)), Path(timeline))
        if not settings.trace:
            path.unlink()


def _timeline() -> str:
    name = os.environ.get("HOROVOD_TIMELINE", "")
    return "" if name == "DYNAMIC" else name


def read(path: Path) -> Events:
    """Reads a trace. Horovod's lacks its end if the job was killed. ValueError if it is none."""
    try:
        text = path.read_text()
        try:
            events = json.loads(text)
        except ValueError:
            events = json.loads(text.rstrip().rstrip(",") + "]")
        start_of(events)
    except (ValueError, TypeError, AttributeError, StopIteration):
        raise ValueError(f"{path} is no trace of omnihvd's or Horovod's") from None
    return list(events)


def write(events: Events, path: Path) -> None:
    with whole_file(path) as file:
        file.write(("[" + ",\n".join(map(json.dumps, events)) + "]\n").encode())


def start_of(events: Events) -> int:
    """The start of the trace's clock, in microseconds since the epoch."""
    return next(int(e["args"][START]) for e in events if START in e.get("args", {}))


def shifted(events: Events, start: int, pid_offset: int = 0) -> Events:
    """The same events on a clock that began at `start`."""
    moved = {"ts": start_of(events) - start, "pid": pid_offset}
    return [{**e, **{k: e[k] + by for k, by in moved.items() if k in e}} for e in events]


def into_timeline(timeline: Events, ours: Events) -> Events:
    """Horovod's Timeline with rank 0's trace in it."""
    ours = shifted(ours, start_of(timeline), OURS)
    inside = []
    sums = sorted((e for e in ours if e.get("ph") == "X" and "bytes" in e["args"]), key=_middle)
    middles = [*map(_middle, sums)]
    for begin, end, pid in activities(timeline):
        for e in sums[bisect_left(middles, begin) : bisect_right(middles, end)]:
            # Viewers show an event inside another only if it does not stand out.
            ts = max(e["ts"], begin)
            dur = min(e["ts"] + e["dur"], end) - ts
            name = f"omnihvd: {e['name']}"
            inside.append({**e, "name": name, "pid": pid, "tid": 0, "ts": ts, "dur": dur})
    return timeline + inside + ours


def _middle(e: dict[str, Any]) -> float:
    return float(e["ts"] + e["dur"] / 2)


def activities(timeline: Events) -> list[tuple[float, float, int]]:
    """The spans in which Horovod's library was summing, by tensor: begin, end, pid."""
    found: list[tuple[float, float, int]] = []
    open_: dict[int, list[tuple[str, float]]] = {}
    for e in timeline:
        if e.get("ph") == "B":
            open_.setdefault(e["pid"], []).append((e["name"], e["ts"]))
        elif e.get("ph") == "E" and open_.get(e["pid"]):
            name, begin = open_[e["pid"]].pop()
            if name.endswith("_ALLREDUCE") and not name.startswith("NEGOTIATE"):
                found.append((begin, e["ts"], e["pid"]))
    return found


def merged(traces: list[Events]) -> Events:
    """The traces of several ranks and, if there is one, Horovod's Timeline, on one clock."""
    traces = sorted(traces, key=_is_ours)  # timelines first
    start = start_of(traces[0])
    return [e for t in traces for e in shifted(t, start, OURS * _is_ours(t))]


def _is_ours(events: Events) -> bool:
    return any(str(e.get("args", {}).get("name", "")).startswith("omnihvd rank") for e in events)


def main(arguments: list[str]) -> int:
    """Makes one trace of those of a job's ranks, and of Horovod's Timeline."""
    parser = argparse.ArgumentParser(prog="omnihvd trace", description=main.__doc__)
    parser.add_argument("traces", nargs="+", type=Path, help="files of OMNIHVD_TRACE and Horovod")
    parser.add_argument("-o", "--output", type=Path, required=True, help="open it in Perfetto")
    args = parser.parse_args(arguments)
    write(merged([read(path) for path in args.traces]), args.output)
    print(f"{args.output}: open it in https://ui.perfetto.dev")
    return 0
