"""`omnihvd top`: what the ranks of running jobs do, live, on this host and on those that are named.

Shown since the last look: sums and bytes of gradients a second, bytes sent, as a share of a ring's,
density, who is waited for (whose contributions came last, of the rounds that this rank's aggregator
gathered). Jobs of the same user are seen; root sees all. Other hosts are asked over ssh.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omnihvd.observe.other_hosts import OtherHost
from omnihvd.observe.watchable import PREFIX
from omnihvd.statistics import taken_bytes

Figures = dict[str, Any]
Processes = dict[Any, Figures]  # by host and process
HEADER = ["job", "rank", "host", "pid", "up", "sums/s", "MB/s summed", "MB/s sent", "of a ring"]
HEADER += ["not zero", "left alone", "waits for"]


def names() -> list[str]:
    """Of the sockets that this user may ask."""
    sockets = Path("/proc/net/unix").read_text().splitlines()[1:]
    found = {line.split()[-1] for line in sockets if f"@{PREFIX}" in line}
    mine = [n for n in found if os.getuid() == 0 or n.startswith(f"@{PREFIX}{os.getuid()}-")]
    return sorted(mine)


def ask(name: str) -> Figures | None:
    """None: it has ended, or does not answer within a second."""
    with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(1)
        asking.connect("\0" + name[1:])
        answer = b""
        while part := asking.recv(1 << 16):
            answer += part
        found: Figures = json.loads(answer)
        return found
    return None


class Look:
    """At this host and others; an object is for as long as somebody looks."""

    def __init__(self, hosts: list[str]) -> None:
        self.others = [OtherHost(name) for name in hosts]

    def __call__(self, patience: float) -> Processes:
        """patience: seconds, for the answer of a host."""
        end = time.monotonic() + patience
        for other in self.others:
            other.ask()
        answers = here()
        for other in self.others:
            answers += other.answer(end - time.monotonic())
        return by_process(answers)

    def close(self) -> None:
        for other in self.others:
            other.close()


def by_process(answers: list[Figures]) -> Processes:
    """A host may have been named twice."""
    return {(a["host"], a["pid"]): a for a in answers}


def here() -> list[Figures]:
    """Of this host's processes."""
    with ThreadPoolExecutor(64) as pool:  # one that hangs must not keep the others waiting
        return [a for a in pool.map(ask, names()) if a is not None]


def rows(now: Processes, before: Processes) -> list[list[str]]:
    """What happened since `before`; of processes that were not there: since they began."""
    found = []
    for key, f in sorted(now.items(), key=lambda item: (item[1]["script"], item[1]["rank"])):
        old = before.get(key)
        seconds = max(f["now"] - (old["now"] if old else f["begun"]), 1e-3)
        s, o = f["stats"], (old or {}).get("stats")
        sent = _since(s, o, "bytes_sent") + _since(s, o, "library_bytes")
        taken = taken_bytes(s) - (taken_bytes(o) if o else 0)
        calls = sum(_since(s["ways"][w], o and o["ways"][w], "calls") for w in s["ways"])
        lasts = f["last_ranks"]
        waits = {r: n - (old["last_ranks"].get(r, 0) if old else 0) for r, n in lasts.items()}
        found.append(
            [
                f["script"],
                f"{f['rank']} of {f['ranks']}",
                f["host"],
                str(f["pid"]),
                _duration(f["now"] - f["begun"]),
                f"{calls / seconds:.1f}",
                f"{taken / seconds / 1e6:.1f}",
                f"{sent / seconds / 1e6:.1f}",
                _share(sent, _since(s, o, "ring_bytes")),
                _share(_since(s, o, "nonzero_blocks"), _since(s, o, "blocks")),
                _share(*_passed(s, o, taken)),
                _waits(waits),
            ]
        )
    return found


def _since(now: Figures, before: Figures | None, name: str) -> float:
    return float(now[name] - (before[name] if before else 0))


def _passed(now: Figures, before: Figures | None, taken: float) -> tuple[float, float]:
    def all_(figures: Figures) -> float:
        return sum(p["bytes"] for reason, p in figures["passed"].items() if reason != "control")

    passed = all_(now) - (all_(before) if before else 0)
    return passed, passed + taken


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole > 0 else "-"


def _waits(lasts: dict[str, int]) -> str:
    total = sum(lasts.values())
    if total <= 0:
        return "-"
    rank = max(lasts, key=lambda r: lasts[r])
    return f"rank {rank} ({lasts[rank] / total:.0%})"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def notes(now: Processes, others: list[OtherHost]) -> str:
    """What the table does not show, and why."""
    lines = [f"{other.name}: {other.problem}" for other in others if other.problem]
    if not now and not lines:
        lines.append("no process with omnihvd in it is seen, of this user")
    asked = {other.name for other in others}
    unseen = hosts_of(now) - asked
    if unseen:
        lines.append(f"ranks on other hosts, too: omnihvd top --all, or {' '.join(sorted(unseen))}")
    return "\n".join(lines)


def hosts_of(now: Processes) -> set[str]:
    """Those of the jobs' hosts on which nothing was seen."""
    return {h for f in now.values() for h in f.get("hosts", ())} - {f["host"] for f in now.values()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="omnihvd top", description=__doc__)
    parser.add_argument("hosts", nargs="*", help="others, that ssh reaches without a password")
    parser.add_argument("--all", action="store_true", help="all hosts of the jobs that run here")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds (default: 2)")
    parser.add_argument("--once", action="store_true", help="show it once, since each began")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.answer:
        for _ in sys.stdin:
            print(json.dumps({"processes": here()}), flush=True)
        return 0
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        print("omnihvd top: it needs rich: pip install rich", file=sys.stderr)
        return 1
    hosts = [*args.hosts, *(sorted(hosts_of(by_process(here()))) if args.all else [])]
    try:
        look = Look(list(dict.fromkeys(hosts)))
    except OSError as why:
        print(f"omnihvd top: {why}", file=sys.stderr)
        return 1
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        now = look(30 if args.once else 0)
        if args.once:
            console.print(_table(rows(now, {}), notes(now, look.others)))
            return 0 if now else 1
        with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=False) as live:
            before: Processes = {}
            while True:
                live.update(_table(rows(now, before), notes(now, look.others)))
                time.sleep(max(args.interval, 0.1))
                before, now = now, look(2)
    finally:
        look.close()
    return 0


def _table(lines: list[list[str]], caption: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption or None)
    for i, column in enumerate(HEADER):
        table.add_column(column, justify="left" if i == 0 else "right")
    for line in lines:
        table.add_row(*line)
    return table
