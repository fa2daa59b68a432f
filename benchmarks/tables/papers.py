"""Tables of the peers of OmniReduce's paper (papers.py)."""

from __future__ import annotations

from typing import Any

from benchmarks.bench.plots import STYLES
from benchmarks.bench.reducers import DEDICATED
from benchmarks.bench.report import markdown
from benchmarks.papers import OURS, PEERS, by_density
from benchmarks.tables.results import load
from omnihvd.rates import rate_text

Found = dict[str, dict[str, Any]]


def at(rate: str) -> dict[float, Found]:
    return by_density(load("papers.json")["parts"][rate]["results"])


def ms(result: dict[str, Any]) -> str:
    return f"{1e3 * result['median_s']:.0f}"


def ratio(found: Found, peer: str) -> float:
    """How many times as fast as that peer omnihvd is: the better of its two. Beside a peer with
    hosts for aggregators it has such hosts, too."""
    like = [backend for backend in OURS if backend in DEDICATED] if peer in DEDICATED else OURS
    ours = min(found[backend]["median_s"] for backend in like)
    return float(found[peer]["median_s"] / ours)


def papers() -> str:
    """Times; behind a peer's, how many times as fast omnihvd is."""
    header = ["links", "non-zero", "omnihvd, dedicated", "omnihvd"]
    header += [STYLES[peer].label for peer in PEERS]
    cells = []
    for rate in load("papers.json")["parts"]:
        for density, found in at(rate).items():
            cells.append([rate_text(rate), f"{100 * density:g}%", *(ms(found[b]) for b in OURS)])
            cells[-1] += [
                f"{ms(found[p])} ({ratio(found, p):.2f}x)" if p in found else "" for p in PEERS
            ]
    return markdown(header, cells)
