"""Tables of the peers of OmniReduce's paper (papers.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.bench.plots import STYLES
from benchmarks.bench.report import DENSE, markdown
from benchmarks.papers import HOSTS, LIBRARIES, OURS, PEERS, THEIR_RATE, Found, by_density, ratio
from benchmarks.tables.results import load
from omnihvd.rates import rate_text


def ms(result: dict[str, Any]) -> str:
    return f"{1e3 * result['median_s']:.0f}"


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


def ranges() -> str:
    """The least and the largest speed-up over each of the paper's peers, of both tables."""
    rates = load("papers.json")["parts"]
    parts = {f"{HOSTS} workers, {rate_text(rate)}": part for rate, part in rates.items()}
    for name, part in load("papers_workers.json")["parts"].items():
        parts[f"{name} workers, {rate_text(THEIR_RATE)}"] = part
    cells = []
    for title, part in parts.items():
        found = by_density(part["results"]).values()
        ratios = {p: [ratio(f, p) for f in found if p in f] for p in PEERS}
        cells.append(
            [title, *(f"{min(r):.2f} to {max(r):.2f}" if r else "" for r in ratios.values())]
        )
    return markdown(["", *(STYLES[peer].label for peer in PEERS)], cells)


def fusion() -> str:
    """Milliseconds of sums with messages that carry a block, and as many as fit."""
    results = load("fusion.json")["results"]
    shares = dict.fromkeys(r["density"] for r in results)
    found = {(r["block"], r["message_bytes"], r["density"]): r for r in results}
    heads = ["block, elements", "a message"]
    cells = []
    for block, message in dict.fromkeys((r["block"], r["message_bytes"]) for r in results):
        blocks = message // (4 * block)
        cells.append([str(block), f"{blocks} block{'s' * (blocks > 1)}"])
        for share in shares:
            alone, this = (
                found[block, bytes_, share]["median_s"] for bytes_ in (4 * block, message)
            )
            times = f" ({alone / this:.1f}x)" if blocks > 1 else ""
            cells[-1].append(f"{1e3 * this:.0f}{times}")
    return markdown([*heads, *(f"{100 * share:g}%" for share in shares)], cells)


def elements() -> str:
    """Milliseconds where single elements are not zero; behind a peer's, omnihvd's speed-up."""
    found: dict[float, Found] = {}
    results = load("hosts4-elements-peers.json")["results"]
    for density in dict.fromkeys(r["point"]["density"] for r in results if r["backend"] in OURS):
        there = [r for r in results if r["backend"] in DENSE or r["point"]["density"] == density]
        found[density] = {r["backend"]: r for r in there}
    peers = [p for p in (*LIBRARIES, *PEERS) if any(r["backend"] == p for r in results)]
    heads = ["non-zero elements", *(STYLES[backend].label for backend in (*OURS, *peers))]
    cells = []
    for density, times in found.items():
        cells.append([f"{100 * density:g}%", *(ms(times[b]) for b in OURS)])
        cells[-1] += [
            f"{ms(times[p])} ({ratio(times, p):.2f}x)" if p in times else "" for p in peers
        ]
    return markdown(heads, cells)
