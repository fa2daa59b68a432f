"""Tensors with values unique per rank and index, and their sums in closed form."""

from __future__ import annotations

import torch

BLOCK = 256


def keep(rank: int, count: int, density: float) -> torch.Tensor:
    """Which elements lie in blocks that this rank has."""
    generator = torch.Generator().manual_seed(rank)
    blocks = torch.rand(-(-count // BLOCK), generator=generator) < density
    return blocks.repeat_interleave(BLOCK)[:count]


def part(rank: int, count: int, density: float, dtype: torch.dtype) -> torch.Tensor:
    # Small enough to be exact, summed over a few ranks, in every dtype but (b)float16 and the
    # bytes, which round or wrap alike in any order of the additions.
    index = torch.arange(count)
    values = (index * 5 + rank * 17) % 29 + 1
    return torch.where(keep(rank, count, density), values, 0).to(dtype)


def total(ranks: list[int], count: int, density: float, dtype: torch.dtype) -> torch.Tensor:
    parts = [part(rank, count, density, torch.int64) for rank in ranks]
    return torch.stack(parts).sum(0).to(dtype)
