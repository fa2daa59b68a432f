"""Entries of a sparse tensor as rows of a matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def flatten(indices: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Row numbers; (dimensions, n) -> (n,)."""
    rows = torch.zeros_like(indices[0])
    for index, extent in zip(indices, shape):
        rows = rows * extent + index
    return rows


def unflatten(rows: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The reverse; (n,) -> (dimensions, n)."""
    indices = []
    for extent in reversed(shape):
        indices.append(rows % extent)
        rows = rows // extent
    return torch.stack(indices[::-1])
