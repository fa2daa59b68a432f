"""Estimates how long a simulation takes on this machine: messages are most of the work."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence

from benchmarks.bench.report import duration_text, size_text
from omnihvd import engine
from omnihvd.bench.patterns import BLOCK, Point
from simulator import _core
from simulator.model import MANY_CORES, Network, presence, simulate

FULL = 1.15  # windows for each that would be full
PILOT = (64, Point(250_000, 1.0))  # ranks, and their tensor: tens of milliseconds
SLOWER = 0.2  # share by which messages slow for each tenfold of them: more cache misses


def blocks_of(point: Point, ranks: int) -> tuple[float, float]:
    """About how many blocks are not zero: summed over all ranks, and on any rank."""
    blocks, density = -(-point.count // BLOCK), point.density
    shares = {
        "random": 1 - (1 - density) ** ranks,
        "disjoint": min(1.0, density * ranks),
        "identical": density,
    }
    if point.pattern not in shares:
        few = presence(point, min(ranks, 64))
        return few.sum() * ranks / len(few), float(few.any(axis=0).sum())
    return density * blocks * ranks, blocks * shares[point.pattern]


def messages(
    ranks: int, point: Point, network: Network, dedicated: int = 0, fans: Sequence[int] = ()
) -> float:
    """About how many messages a sum has.

    Each share of the tensor has rounds: ranks with something in the window send it, and all ranks
    get the result. In a tree, aggregators with a parent do so, too."""
    if ranks < 2 and not dedicated:
        return 1.0
    settings = engine.session.settings_from_environment()
    window = max(1, settings.message_bytes)
    streams = network.streams or _core.streams_for(network.rate, MANY_CORES)
    fans = list(fans) or [max(2, ranks)]
    shares = _core.shares_of(ranks, dedicated, fans, point.bytes // (streams * window))
    own, union = blocks_of(point, ranks)
    room = max(1, window // (4 * BLOCK))  # blocks of a round
    slots = min(
        settings.slots, math.ceil(point.count / BLOCK / shares / room)
    )  # one round at least
    rounds = shares * max(1.0, slots, FULL * union / shares / room)
    members, level = float(ranks), float(ranks)
    for fan in fans[:-1]:
        level /= fan
        members += level
    return members * (rounds + min(rounds, max(shares, own / ranks)))


@functools.cache
def message_s() -> float:
    """Seconds to simulate a message of a small sum, on this machine, now."""
    ranks, point = PILOT
    begin = time.process_time()
    sent = simulate(ranks, point, Network(1e9))["messages"]
    return (time.process_time() - begin) / float(sent)


def seconds(count: float) -> float:
    """Seconds to simulate a sum of so many messages."""
    ranks, point = PILOT
    tens = math.log10(max(count / messages(ranks, point, Network(1e9)), 1))
    return count * message_s() * (1 + SLOWER * tens)


def told(jobs: Sequence[tuple[int, Point, float]]) -> str:
    """The announcement before the start. jobs: ranks, tensor and messages of each sum."""
    whole = sum(seconds(count) for *_, count in jobs)
    ranks, point, most = max(jobs, key=lambda job: job[2])
    text = (
        f"this takes about {duration_text(whole)}, most of it for {_count(most)} messages of "
        f"{ranks} ranks with {size_text(point.bytes)}, {100 * point.density:.3g}%"
    )
    blocks = -(-point.count // BLOCK)
    union = blocks_of(point, ranks)[1] / blocks
    if union > 2 * point.density:
        text += f" ({union:.0%} of the blocks on any rank: --patterns identical has fewer)"
    return f"{text}. Fewer ranks or bytes, few --aggregators, or --levels auto make it short."


def _count(number: float) -> str:
    return f"{number / 1e6:.1f} million" if number >= 1e6 else f"{number:,.0f}"
