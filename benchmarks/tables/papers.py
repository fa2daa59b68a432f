"""Tables of the peers of OmniReduce's paper (papers.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.bench.plots import STYLES
from benchmarks.bench.reducers import DEDICATED
from benchmarks.bench.report import markdown
from benchmarks.papers import LIBRARIES, OURS, PEERS, by_density
from benchmarks.tables.results import load
from omnihvd.rates import rate_text

Found = dict[str, dict[str, Any]]


def ms(result: dict[str, Any]) -> str:
    return f"{1e3 * result['median_s']:.0f}"


def ratio(found: Found, peer: str) -> float:
    """How many times as fast as that peer omnihvd is: the better of its two. Beside a peer with
    hosts for aggregators it has such hosts, too."""
    like = [backend for backend in OURS if backend in DEDICATED] if peer in DEDICATED else OURS
    ours = min(found[backend]["median_s"] for backend in like)
    return float(found[peer]["median_s"] / ours)


def beside(parts: dict[str, Any], what: str, peers: Sequence[str]) -> str:
    """Times of each part; behind a peer's, how many times as fast omnihvd is."""
    header = [what, "non-zero", "omnihvd, dedicated", "omnihvd"]
    header += [STYLES[peer].label for peer in peers]
    cells = []
    for part, content in parts.items():
        for density, found in by_density(content["results"]).items():
            cells.append([part, f"{100 * density:g}%", *(ms(found[b]) for b in OURS)])
            cells[-1] += [
                f"{ms(found[p])} ({ratio(found, p):.2f}x)" if p in found else "" for p in peers
            ]
    return markdown(header, cells)


def papers() -> str:
    parts = {rate_text(rate): part for rate, part in load("papers.json")["parts"].items()}
    return beside(parts, "links", PEERS)


def workers() -> str:
    return beside(load("papers_workers.json")["parts"], "workers", (*LIBRARIES, *PEERS))
