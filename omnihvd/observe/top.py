"""`omnihvd top`: what the ranks of this host do, live.

Shown since the last look: sums and bytes of gradients a second, bytes sent, as a share of a ring's,
density, who is waited for (whose contributions came last, of the rounds that this rank's aggregator
gathered). Jobs of the same user are seen; root sees all. Ranks on other hosts are seen there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from omnihvd.observe.watchable import PREFIX
from omnihvd.statistics import taken_bytes

Figures = dict[str, Any]
HEADER = ["job", "rank", "pid", "up", "sums/s", "MB/s summed", "MB/s sent", "of a ring"]
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


def look() -> dict[int, Figures]:
    """By process."""
    answers = [ask(name) for name in names()]
    return {a["pid"]: a for a in answers if a is not None}


def rows(now: dict[int, Figures], before: dict[int, Figures]) -> list[list[str]]:
    """What happened since `before`; of processes that were not there: since they began."""
    found = []
    for f in sorted(now.values(), key=lambda f: (f["script"], f["rank"])):
        old = before.get(f["pid"])
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="omnihvd top", description=__doc__)
    parser.add_argument("--interval", type=float, default=2.0, help="seconds (default: 2)")
    parser.add_argument("--once", action="store_true", help="show it once, since each began")
    args = parser.parse_args(arguments)
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        print("omnihvd top: it needs rich: pip install rich", file=sys.stderr)
        return 1
    console = Console(width=None if sys.stdout.isatty() else 140)
    now = look()
    if args.once:
        console.print(_table(rows(now, {})))
        return 0 if now else 1
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=False) as live:
        before: dict[int, Figures] = {}
        while True:
            live.update(_table(rows(now, before)))
            time.sleep(max(args.interval, 0.1))
            before, now = now, look()
    return 0


def _table(lines: list[list[str]]) -> Any:
    from rich import box
    from rich.table import Table

    caption = None if lines else "no process with omnihvd in it runs here, of this user"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption)
    for i, column in enumerate(HEADER):
        table.add_column(column, justify="left" if i == 0 else "right")
    for line in lines:
        table.add_row(*line)
    return table
