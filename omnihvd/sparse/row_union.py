"""A sparse tensor of PyTorch as a dense matrix of the rows that any rank has."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from omnihvd.sparse.gradients import count_rows


class RowUnion:
    """The union of a tensor's rows over all ranks. tensor: COO, of any number of sparse and dense
    dimensions, with any entries. The caller gathers `rows` from all ranks, sums matrix() of them,
    and passes the sum to result(). If it sums lists of rows instead, it names the union's rows by
    unite()."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._merged = tensor.coalesce()
        self._shape = self._merged.shape[: self._merged.sparse_dim()]
        self.rows = flatten(self._merged.indices(), self._shape)
        self.values = self._merged.values()
        self.every = math.prod(self._shape)  # rows that there are

    def matrix(self, gathered: torch.Tensor) -> torch.Tensor:
        """The matrix to sum, zero where this rank has no row. Counts the saved bytes."""
        union = torch.unique(gathered)
        total = self.values.new_zeros((union.numel(), *self.values.shape[1:]))
        total[torch.searchsorted(union, self.rows)] = self.values
        self.unite(union, gathered.numel())
        return total

    def unite(self, union: torch.Tensor, gathered: int) -> None:
        """Keeps the numbers of the union's rows, and counts the saved bytes. gathered: how many
        rows all ranks have, each its own."""
        self._union = union
        count_rows(
            row_bytes=math.prod(self.values.shape[1:]) * self.values.element_size(),
            number_bytes=self._merged.sparse_dim() * self.rows.element_size(),
            own=self.rows.numel(),
            gathered=gathered,
            union=union.numel(),
            dense=self.every,
        )

    def result(self, total: torch.Tensor) -> torch.Tensor:
        """The summed tensor, coalesced."""
        indices = unflatten(self._union, self._shape)
        return torch.sparse_coo_tensor(
            indices, total, self._merged.shape, is_coalesced=True, check_invariants=False
        )


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
