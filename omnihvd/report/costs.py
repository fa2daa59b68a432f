"""The cost of a step's sums in bytes and seconds, by scheme: formulas, and nothing else.

N ranks, one a host, have links of B bytes/s each way, and a gradient of S bytes. P bytes are in
non-zero blocks on the fullest rank (packed where that is smaller), and U bytes on any rank:

| scheme | a rank sends |
|---|---|
| ring | 2 (N-1)/N S |
| fp16 | half of that, of float32 |
| omnireduce | (N-1)/N (P + U): contributions out, sums out; every rank aggregates a share |
| dedicated | P; receives U; N aggregators on hosts of their own |
| union | 2 (N-1)/N U whole blocks, and of 1 bit a block, to unite the ranks' bitmaps |
| rows | row-sparse sums: (N-1) row numbers, (N-1)/N (rows here + rows on any), at most (N-1) rows |
| allgather | (N-1) rows with their numbers: Horovod's own way with sparse gradients |
| natural, qsgd4 | as omnireduce, in 8 and 4 bits an element instead of 32 |
| block_topk, ... | as omnireduce, on the compressed gradient |

Time is the larger of the two directions' bytes over B, network headers included. It is at least the
processors' time, to scan S bytes once and to move the bytes that are sent and received. These are
docs/algorithms.md's bounds for the algorithms; a real sum takes 1.0 to 1.5 times as long.

A host may have spare cores for its sums. If it has none, scanning and moving follow each other, and
delay the computation by the time that they take.
"""

from __future__ import annotations

import functools
import math
from typing import Callable, NamedTuple

NUMBER_BYTES = 8  # of a row, in Horovod's and omnihvd's gathers
RATIO = 0.1  # of compressors
ETHERNET = 1448 / 1538  # share of TCP payload on a link: frames of 1500 bytes, and gaps


class Sizes(NamedTuple):
    """Sizes of one gradient, in bytes, expected for a number of ranks."""

    dense: float  # S
    fullest: float  # P, packed, of the fullest rank
    union: float  # U, packed
    union_blocks: float  # U, whole blocks
    blocks: float  # how many there are
    rows: float  # of the fullest rank that are not zero, whole
    union_rows: float
    row_bytes: float  # of one; 0: no matrix
    element: float = 4  # bytes of one


class Machine(NamedTuple):
    """Rates of a rank's host, in bytes/s. The link's rate is each way."""

    link: float
    scan: float = 8e9  # reading memory to find non-zeros
    move: float = 2.5e9  # between memory and network, sent and received together
    sum_latency: float = 50e-6  # s, of one sum
    copy: float = 8e9  # from gradients to buffers, and back
    spare_cores: bool = True  # besides the ones that compute


class Cost(NamedTuple):
    sent: float  # bytes, by a rank
    received: float
    looked_at: float  # bytes that are searched for zeros first

    def __add__(self, other: tuple[float, ...]) -> Cost:  # type: ignore[override]
        return Cost(*(a + b for a, b in zip(self, other)))


def ring(dense: float, ranks: int) -> float:
    """Bytes that a rank sends in a ring's allreduce."""
    return 2 * (ranks - 1) / ranks * dense if ranks > 1 else 0.0


def by_ring(s: Sizes, ranks: int) -> Cost:
    return Cost(ring(s.dense, ranks), ring(s.dense, ranks), 0)


def by_fp16(s: Sizes, ranks: int) -> Cost:
    each = ring(s.dense * min(1, 2 / s.element), ranks)
    return Cost(each, each, s.dense * (s.element > 2))


def by_omnireduce(s: Sizes, ranks: int) -> Cost:
    each = (ranks - 1) / ranks * (s.fullest + s.union)
    return Cost(each, each, s.dense)


def by_dedicated(s: Sizes, ranks: int) -> Cost:
    return Cost(s.fullest, s.union, s.dense)


def by_union(s: Sizes, ranks: int) -> Cost:
    each = ring(s.union_blocks + s.blocks / 8, ranks)
    return Cost(each, each, s.dense)


def by_rows(s: Sizes, ranks: int) -> Cost:
    """The cost of a sparse gradient: only its rows are scanned, or none if they are gathered."""
    numbers = (ranks - 1) * s.rows / s.row_bytes * NUMBER_BYTES
    summed, gathered = (ranks - 1) / ranks * (s.rows + s.union_rows), (ranks - 1) * s.rows
    each = numbers + min(summed, gathered)
    return Cost(each, each, s.union_rows if summed < gathered else 0)


def by_allgather(s: Sizes, ranks: int) -> Cost:
    each = (ranks - 1) * s.rows / s.row_bytes * (s.row_bytes + NUMBER_BYTES)
    return Cost(each, each, 0)


def by_codec(s: Sizes, ranks: int, bits: int) -> Cost:
    """The cost under a codec: bits of an element. Encoding reads each block once more."""
    each = (ranks - 1) / ranks * (s.fullest + s.union) * bits / (8 * s.element)
    return Cost(each, each, 2 * s.dense)


def by_block_topk(s: Sizes, ranks: int, ratio: float = RATIO) -> Cost:
    """Each rank picks its own blocks; their overlap is that of chance."""
    own = min(ratio, s.fullest / s.dense)
    return _compressed(s, ranks, own, 1 - (1 - own) ** ranks)


def by_block_random(s: Sizes, ranks: int, ratio: float = RATIO) -> Cost:
    """All ranks pick the same blocks."""
    own = min(ratio, s.fullest / s.dense)
    return _compressed(s, ranks, own, own)


def by_topk_threshold(s: Sizes, ranks: int, ratio: float = RATIO) -> Cost:
    """Elements, a float32 each, with positions in about their entropy."""
    own = min(ratio, s.fullest / s.dense)
    elements, union = s.dense / 4, 1 - (1 - own) ** ranks

    def size(share: float) -> float:
        return min(s.dense, elements * (4 * share + entropy(share) / 8))

    each = (ranks - 1) / ranks * (size(own) + size(union))
    return Cost(each, each, s.dense)


def _compressed(s: Sizes, ranks: int, own: float, union: float) -> Cost:
    each = (ranks - 1) / ranks * s.dense * (own + union)
    return Cost(each, each, 2 * s.dense)  # to choose, and to find


FORMULAS: dict[str, Callable[[Sizes, int], Cost]] = {
    "ring": by_ring,
    "omnireduce": by_omnireduce,
    "union": by_union,
    "rows": by_rows,
    "allgather": by_allgather,
    "dedicated": by_dedicated,
    "fp16": by_fp16,
    "natural": functools.partial(by_codec, bits=8),
    "qsgd4": functools.partial(by_codec, bits=4),
    "block_topk": by_block_topk,
    "block_threshold": by_block_topk,  # with a threshold that keeps as much
    "block_random": by_block_random,
    "topk_threshold": by_topk_threshold,
}
OF_TABLES = {"rows": by_omnireduce, "allgather": by_ring}  # and the schemes of other parameters


class Takes(NamedTuple):
    """The times of one sum, in seconds."""

    seconds: float
    taken: float  # of them, from the processors that compute


def takes(cost: Cost, machine: Machine) -> Takes:
    """The search for zeros goes on while the first blocks travel."""
    if cost.sent == 0 and cost.received == 0:
        return Takes(0.0, 0.0)
    link = max(cost.sent, cost.received) / (machine.link * ETHERNET)
    moving = (cost.sent + cost.received) / machine.move
    looking = cost.looked_at / machine.scan
    if machine.spare_cores:
        return Takes(max(link, moving, looking) + machine.sum_latency, 0.0)
    return Takes(max(link, moving + looking) + machine.sum_latency, moving + looking)


def step_seconds(sums: list[tuple[float, Takes]], backward: float, rest: float) -> float:
    """The length of a step. sums: in order, the second at which each is ready, and its times; each
    begins once it is ready and the one before has ended. backward: the end of the backward pass;
    rest: the time after all sums."""
    end = late = 0.0
    for ready, sum_ in sums:
        end = max(end, ready + late) + sum_.seconds
        late += sum_.taken
    return max(end, backward + late) + rest


def packed_bytes(nonzero: float, block_size: int, element: int) -> float:
    """The size of a block with `nonzero` non-zero elements: whole, by a bitmap, or listed."""
    if nonzero <= 0:
        return 0.0
    values = nonzero * element
    listed = values + nonzero * (2 + math.log2(max(block_size / nonzero, 1))) / 8
    return min(block_size * element, values + block_size / 8, listed)


def entropy(share: float) -> float:
    """Bits an item to say which of many items belong to this share of them."""
    if share <= 0 or share >= 1:
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)
