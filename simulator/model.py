"""Simulates one sum: the engine's Worker and Aggregator (simulator/csrc), with the settings that a
job would have, over links and processors with given costs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from omnihvd import engine
from omnihvd.bench.patterns import BLOCK, PATTERNS, Point, present_blocks
from omnihvd.report import masks
from simulator import _core

PAYLOAD = 0.946  # share of a link's rate that TCP leaves for payload
Progress = Callable[[float], None]

MANY_CORES = 64  # of a host, if hosts do not share cores
SLOT_BYTES = 160  # that a worker keeps for each slot of each aggregator


class Costs(NamedTuple):
    """Processor seconds. benchmarks/simulation.py measures them."""

    message_s: float  # to send a message, and to receive it
    byte_s: float  # and for each of its bytes
    inspected_s: float  # to inspect a byte of the tensor
    begin_s: float  # from the call until the inspection begins


# Measured on the machine of the committed results (results/simulation.json).
MEASURED = Costs(message_s=1.1e-5, byte_s=2e-10, inspected_s=1e-10, begin_s=4e-5)


@dataclass(frozen=True)
class Network:
    """Hosts with one rank each; dedicated aggregators have hosts of their own."""

    rate: float  # payload bytes a second, each way of each host's link
    delay_s: float = 5e-6
    core_rate: float = 0.0  # bytes a second of the whole network; 0: without a bound
    cores: int = 0  # shared by all hosts, as in the lab; 0: one for each thread
    loss: float = 0.0  # share of datagrams that are lost; 0: no datagrams
    streams: int = 0  # progress threads of each process; 0: as OMNIHVD_STREAMS=auto


class TooLarge(ValueError):
    """A job for which there is no memory."""


def simulate(
    ranks: int,
    point: Point,
    network: Network,
    *,
    dedicated: int = 0,
    fans: Sequence[int] = (),
    late_s: float = 0.0,
    costs: Costs = MEASURED,
    goal: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Returns the engine's outcome (seconds, messages, bytes, ...), with `bound_s`, the least time
    in which the links could carry the sum, and `ring_s`, that of a dense ring.

    point: float32. dedicated: aggregators on hosts of their own; 0: each rank aggregates a share.
    fans: fan-outs of the levels of aggregators, from below (csrc/protocol/seats.h); none: one level
    with all ranks. late_s: by how much the last rank begins later. goal: the outcome's `goal` is a
    schedule for other simulators (simulator/csrc/goal.h). progress: called now and then with the
    fraction of all sums that ranks have. Raises TooLarge, or EngineError if a sum is wrong.
    """
    settings = engine.session.settings_from_environment()
    streams = network.streams or _core.streams_for(network.rate, MANY_CORES)
    window = streams * max(1, settings.message_bytes)
    fans = list(fans) or [max(2, ranks)]
    shares = _core.shares_of(ranks, dedicated, fans, point.bytes // window)
    _check_memory(ranks, point, shares, settings.slots)
    present = presence(point, ranks)
    job = _core.Job(
        workers=ranks,
        dedicated=dedicated,
        shares=shares,
        fans=fans,
        bytes=point.bytes,
        block_bytes=4 * BLOCK,
        message_bytes=settings.message_bytes,
        slots=settings.slots,
        streams=streams,
        scan_ahead=settings.scan_ahead,
        loss=network.loss,
        late_s=late_s,
        goal=goal,
        has=present,
    )
    paid = _core.Costs(
        rate=network.rate,
        core_rate=network.core_rate,
        delay=network.delay_s,
        cores=network.cores,
        **costs._asdict(),
    )
    outcome: dict[str, Any] = _core.simulate(job, paid, progress)
    largest, union = (
        int(n) * 4 * BLOCK for n in (present.sum(axis=1).max(), present.any(axis=0).sum())
    )
    others = (ranks - 1) / ranks
    each = max(1.0, ranks / dedicated) if dedicated else 1.0  # ranks of an aggregator
    wire = each * max(largest, union) if dedicated else others * (largest + union)
    return {
        **outcome,
        "bound_s": wire / network.rate + late_s,
        "ring_s": 2 * others * point.bytes / network.rate + late_s,
    }


load_masks = functools.cache(masks.load)


def point_of_masks(path: Path) -> Point:
    """The tensor of a file of masks: all gradients in one buffer. The file is its pattern."""
    found = load_masks(path)
    density = float(found.presence(len(found.bits), BLOCK).mean())
    return Point(found.groups * masks.GROUP, density, str(path))


def presence(point: Point, ranks: int) -> np.ndarray:
    """[rank][block]: is it not zero. One row if all ranks have the same blocks."""
    if point.pattern not in PATTERNS:
        return np.asarray(load_masks(Path(point.pattern)).presence(ranks, BLOCK))
    alike = point.pattern == "identical" or point.density in (0, 1)
    return np.stack([present_blocks(point, rank, ranks) for rank in range(1 if alike else ranks)])


def _available() -> int:
    """Bytes of available memory, as Linux reports them."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(kilobytes) * 1024


def _check_memory(ranks: int, point: Point, aggregators: int, slots: int) -> None:
    wanted = ranks * (aggregators * slots * SLOT_BYTES + 1.2 * point.count / BLOCK)
    there = _available()
    if wanted > there:
        raise TooLarge(
            f"{ranks} ranks with {aggregators} aggregators need about {wanted / 1e9:.0f} GB, and "
            f"{there / 1e9:.0f} GB are free: fewer ranks, or --aggregators"
        )
