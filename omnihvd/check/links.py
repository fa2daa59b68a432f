"""Measures the link between two processes: the transport that UCX selects, and its rate."""

from __future__ import annotations

import time
from typing import Any

from omnihvd import engine
from omnihvd.check.ranks import Exchange, gather
from omnihvd.patience import Patience

MESSAGE = 57344  # bytes, as in the engine
MESSAGES = 560  # 32 MB, behind a first one that connects
WINDOW = 16
PATIENCE_S = 30.0


class LinkError(Exception):
    pass


def pairs_of(hosts: list[str]) -> list[tuple[int, int]]:
    """Pairs of ranks to measure: the first ranks of all hosts, each with each (many hosts: in a
    ring), and the first two ranks of each host with several."""
    ranks_of: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks_of.setdefault(host, []).append(rank)
    firsts = [ranks[0] for ranks in ranks_of.values()]
    count = len(firsts)
    if count <= 6:
        pairs = [(a, b) for i, a in enumerate(firsts) for b in firsts[i + 1 :]]
    else:
        pairs = [(firsts[i], firsts[(i + 1) % count]) for i in range(count)]
    return pairs + [(ranks[0], ranks[1]) for ranks in ranks_of.values() if len(ranks) > 1]


def measure(ranks: Exchange, pair: tuple[int, int]) -> dict[str, Any]:
    """Collective over all ranks. Returns there, back (payload in bytes/s) and transport (names),
    or error."""
    answer: dict[str, Any] = {}
    for way, (source, target) in (("there", pair), ("back", pair[::-1])):
        mine: dict[str, Any] = {}
        end = None
        try:
            end = engine.transport.LinkEnd(MESSAGE) if ranks.rank in pair else None
        except RuntimeError as why:  # UCX_TLS, say
            mine = {"error": str(why)}
        addresses = ranks.allgather(end.address() if end else b"")
        if not (addresses[source] and addresses[target]):
            end = None  # nobody to talk to
        try:
            # Both connect, so that both learn of a failure.
            if end and ranks.rank == source:
                mine = _send_all(end, end.connect(addresses[target]))
            elif end:
                end.connect(addresses[source])
                mine = _receive_all(end)
        except (LinkError, RuntimeError) as why:
            mine = {"error": str(why)}
        answers = gather(ranks, mine)  # keeps the transports alive until all ranks are done
        errors = [said["error"] for said in answers if "error" in said]
        if errors:
            return {"error": errors[0]}
        answer.update({way: answers[target]["rate"], "transport": answers[source]["transport"]})
    return answer


def _send_all(end: engine.transport.LinkEnd, peer: int) -> dict[str, Any]:
    begun, patience = 0, Patience(PATIENCE_S)
    while end.sent < 1 + MESSAGES:
        while begun < min(1 + MESSAGES, end.sent + WINDOW):
            end.send(peer)
            begun += 1
        _step(end, patience)
    return {"transport": end.describe().rpartition(" connected over ")[2]}


def _receive_all(end: engine.transport.LinkEnd) -> dict[str, Any]:
    patience = Patience(PATIENCE_S)
    while end.received == 0:
        _step(end, patience)
    start, before = time.monotonic(), end.received
    while end.received < 1 + MESSAGES:
        _step(end, patience)
    return {"rate": (1 + MESSAGES - before) * MESSAGE / (time.monotonic() - start)}


def _step(end: engine.transport.LinkEnd, patience: Patience) -> None:
    end.step(timeout_ms=100)
    if patience.over():
        raise LinkError(f"nothing came through within {PATIENCE_S:.0f} s")
