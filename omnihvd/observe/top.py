"""`omnihvd top` shows the ranks of running jobs, live, on this host and on others.

For each rank, since the last look: sums and bytes of gradients a second, bytes sent and their share
of a ring's, density, and the rank that contributed last at this rank's aggregator. You see your own
jobs; root sees all. Other hosts are asked over ssh. A narrow terminal leaves out columns, and says
which.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from typing import Any

from omnihvd.observe.answers import Figures, Seen, here
from omnihvd.observe.other_hosts import NAME, OtherHost
from omnihvd.statistics import since, taken_bytes
from omnihvd.tools import terminal

Processes = dict[Any, Figures]  # by host and process
HEADER = ["job", "rank", "host", "pid", "up", "sums/s", "MB/s summed", "MB/s sent", "of a ring"]
HEADER += ["not zero", "left alone", "waits for"]
SPARE = ["up", "MB/s sent", "left alone", "pid", "host", "waits for", "sums/s", "not zero"]  # first
GAP = 2  # columns, between two of the table
JOB = 12  # columns for a job's name, where it is longer, before others are left out


def look(others: list[OtherHost], patience: float) -> Seen:
    """Asks this host and others. patience: seconds to wait for their first answers."""
    end = time.monotonic() + patience
    seen = [here(), *(other.answer(end) for other in others)]
    return Seen([f for s in seen for f in s.processes], [p for s in seen for p in s.problems])


def by_process(answers: list[Figures]) -> Processes:
    """The answers by host and process: a host may have been named twice."""
    return {(a["host"], a["pid"], a["begun"]): a for a in answers}


def rows(now: Processes, before: Processes) -> list[list[str]]:
    """The table since `before`; for new processes, since they began."""
    found = []
    for key, f in sorted(now.items(), key=lambda item: (item[1]["script"], item[1]["rank"])):
        old = before.get(key, {"now": f["begun"], "stats": {}, "last_ranks": {}})
        seconds = max(f["now"] - old["now"], 1e-3)
        figures = since(old["stats"], f["stats"])
        sent = figures["bytes_sent"] + figures["library_bytes"]
        calls = sum(way["calls"] for way in figures["ways"].values())
        waits = {r: n - old["last_ranks"].get(r, 0) for r, n in f["last_ranks"].items()}
        found.append(
            [
                f["script"],
                f"{f['rank']} of {f['ranks']}",
                f["host"],
                str(f["pid"]),
                _duration(f["now"] - f["begun"]),
                f"{calls / seconds:.1f}",
                f"{taken_bytes(figures) / seconds / 1e6:.1f}",
                f"{sent / seconds / 1e6:.1f}",
                *(_share(figures[name]) for name in ("sent_of_ring", "density", "passed_share")),
                _waits(waits),
            ]
        )
    return found


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _waits(lasts: dict[str, int]) -> str:
    total = sum(lasts.values())
    if total <= 0:
        return "-"
    rank = max(lasts, key=lambda r: lasts[r])
    return f"rank {rank} ({lasts[rank] / total:.0%})"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def notes(seen: Seen, others: list[OtherHost]) -> list[str]:
    """Notes on data that the table does not show, and why."""
    lines = list(seen.problems)
    if not seen.processes and not lines:
        lines.append("no process with omnihvd in it is seen, of this user")
    unseen = hosts_of(seen) - {other.name for other in others}
    if unseen:
        lines.append(f"ranks on other hosts, too: omnihvd top --all, or {' '.join(sorted(unseen))}")
    return lines


def hosts_of(seen: Seen) -> set[str]:
    """The jobs' hosts without any seen process."""
    named = {host for f in seen.processes for host in f["hosts"] if NAME.fullmatch(host)}
    return named - {f["host"] for f in seen.processes}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="omnihvd top", description=__doc__)
    parser.add_argument("hosts", nargs="*", help="others, reached by ssh without a password")
    parser.add_argument("--all", action="store_true", help="all hosts of your jobs that run here")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds (default: 2)")
    parser.add_argument("--once", action="store_true", help="show once, since each rank began")
    parser.add_argument("--json", action="store_true", help="totals, a line of JSON for each look")
    args = parser.parse_args(arguments)
    args.interval = max(args.interval, 0.1)
    # Root must not ssh to a host only because another user's process names it.
    hosts = [*args.hosts, *(sorted(hosts_of(here(own=True))) if args.all else [])]
    with contextlib.ExitStack() as stack:
        others = []
        try:
            for name in dict.fromkeys(hosts):
                others.append(OtherHost(name, args.interval))
                stack.callback(others[-1].close)
            return _show(args, others)
        except KeyboardInterrupt:
            return 0


def _show(args: argparse.Namespace, others: list[OtherHost]) -> int:
    seen = look(others, 30 if args.once else 0)
    while args.json:
        print(json.dumps(seen._asdict()), flush=True)
        if args.once:
            return 0 if seen.processes else 1
        time.sleep(args.interval)
        seen = look(others, 2)
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        raise ImportError("it needs rich: pip install rich") from None
    columns = terminal.width()
    console = Console(width=columns or 1000)
    now = by_process(seen.processes)
    if args.once:
        console.print(_table(rows(now, {}), notes(seen, others), columns))
        return 0 if now else 1
    before: Processes = {}
    with contextlib.ExitStack() as stack:
        show: Any = console.print  # without a terminal, one table after the other
        if console.is_terminal and not console.is_dumb_terminal:
            show = stack.enter_context(Live(console=console)).update
        while True:
            show(_table(rows(now, before), notes(seen, others), terminal.width()))
            time.sleep(args.interval)
            before, seen = now, look(others, 2)
            now = by_process(seen.processes)


def widths_of(lines: list[list[str]], columns: int | None) -> dict[int, int]:
    """The widths of the columns that fit, by number in HEADER. A narrow table's headers take two
    lines."""
    whole = columns is None
    widths = [len(name) if whole else max(map(len, name.split())) for name in HEADER]
    for line in lines:
        widths = [max(width, len(cell)) for width, cell in zip(widths, line)]
    found = dict(enumerate(widths))
    if columns is None:
        return found
    spare = map(HEADER.index, SPARE)
    found[0] = min(widths[0], JOB)
    while (free := columns - sum(found.values()) - GAP * len(found)) < 0:
        column = next(spare, None)
        if column is None:
            return found
        del found[column]
    found[0] = min(widths[0], found[0] + free)
    return found


def _table(lines: list[list[str]], caption: list[str], columns: int | None = None) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    def text(words: str) -> Text:
        """Removes control sequences and rich's markup: other processes wrote the text."""
        return Text("".join(c if c.isprintable() else "?" for c in words))

    shown = widths_of(lines, columns)
    absent = [name for i, name in enumerate(HEADER) if i not in shown]
    if absent:
        caption = [*caption, f"a wider terminal shows {', '.join(absent)}, too"]
    under = Text("\n").join(map(text, caption))
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, GAP - 1, 0, 0),
        pad_edge=False,
        caption=under if caption else None,
        caption_justify="left",
    )
    for i, width in shown.items():
        table.add_column(HEADER[i], justify="right" if i else "left", width=width)
    for line in lines:
        table.add_row(*(text(line[i]) for i in shown))
    return table
