"""The report on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from omnihvd.rates import rate_text
from omnihvd.report.predictions import SCHEMES, best_of, bytes_text, time_text

MOST_ROWS = 12  # of parameters
BEST = "* "  # marks the best


def show(content: dict[str, Any], page: Path, terminal: IO[str]) -> None:
    if terminal.closed:
        return
    tables = [_parameters(content), predictions(content, content["advised_ranks"])]
    for table in tables:
        _show(*table, terminal)
    for sentence in content["advice"]:
        print(f"- {sentence[0].upper()}{sentence[1:]}", file=terminal)
    print(f"{content['overlap'].capitalize()}. All of it: {page}", file=terminal, flush=True)


def percent(share: float | None) -> str:
    if share is None:
        return ""
    if 0.985 < share < 1:
        return f"{100 * share:.1f}%"
    return f"{share:.0%}" if share > 0.0995 or share == 0 else f"{100 * share:.2g}%"


Table = tuple[str, list[str], list[list[str]]]


def _parameters(content: dict[str, Any]) -> Table:
    largest = sorted(content["parameters"], key=lambda p: -p["bytes"])
    rows = [[p["name"], *shares(p)] for p in largest[:MOST_ROWS]]
    if len(largest) > MOST_ROWS:
        rows.append([f"and {len(largest) - MOST_ROWS} smaller ones"] + [""] * 5)
    rows.append(["all", *shares({**content["total"], "bytes": content["bytes"]})])
    title = f"gradients of a step: not zero ({len(content['steps_seen'])} steps looked at)"
    union = f"of {content['of_ranks']} ranks"
    return title, ["parameter", "size", "elements", "blocks of 256", union, "zero rows"], rows


def shares(figures: dict[str, Any]) -> list[str]:
    """The size; the shares of elements, blocks, and blocks on any rank; of zero rows, if known."""
    return [
        bytes_text(figures["bytes"]),
        percent(figures["element_density"]),
        percent(figures["density"]["256"]),
        percent(figures["union"]["256"]),
        percent(figures.get("zero_rows")),
    ]


def predictions(content: dict[str, Any], ranks: int) -> Table:
    mine = [p for p in content["predictions"] if p["ranks"] == ranks]
    rates = list(dict.fromkeys(p["rate"] for p in mine))
    best = {rate: best_of([p for p in mine if p["rate"] == rate]) for rate in rates}
    rows = []
    for scheme in dict.fromkeys(p["scheme"] for p in mine):
        same = {p["rate"]: p for p in mine if p["scheme"] == scheme}
        times = [BEST * (best[rate] == scheme) + time_text(same[rate]["step_s"]) for rate in rates]
        rows.append([SCHEMES[scheme], bytes_text(same[rates[0]]["sent"]), *times])
    title = f"predicted for {ranks} hosts: bytes that a rank sends, seconds of a step (* best)"
    return title, ["sums", "sent", *map(rate_text, rates)], rows


def _show(title: str, header: list[str], rows: list[list[str]], terminal: IO[str]) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    print(title, file=terminal)
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  ".join(cells), file=terminal)
    print(file=terminal)
