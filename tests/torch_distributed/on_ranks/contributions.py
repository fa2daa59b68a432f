"""Tensors with values unique per rank and index, and their sums."""

from __future__ import annotations

import torch


def part(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Blocks of 256 elements. Every third is not zero, another third on each rank; sums
    over a few ranks are exact in every dtype."""
    index = torch.arange(count)
    values = (index * 7 + rank * 3) % 11 + 1
    return torch.where((index // 256 + rank) % 3 == 0, values, 0).to(dtype)


def total(ranks: list[int], count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([part(rank, count, torch.float64) for rank in ranks]).sum(0).to(dtype)
