"""A sparse tensor of PyTorch as a dense matrix of the rows that any rank has."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from omnihvd.sparse.gradients import count_rows, few_shared


class RowUnion:
    """The union of a tensor's rows over all ranks. tensor: COO, of any number of sparse and dense
    dimensions, with any entries.

    The caller gathers `rows` from all ranks for unite(). It sums matrix() over them, or gathers
    `values` for merge() if few_shared(), and passes the sum to result(). A caller that sums lists
    of rows names the union's rows by count_union() instead.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._merged = tensor.coalesce()
        self._shape = self._merged.shape[: self._merged.sparse_dim()]
        self.rows = flatten(self._merged.indices(), self._shape)
        self.values = self._merged.values()
        self.every = math.prod(self._shape)  # rows that there are

    def unite(self, gathered: torch.Tensor) -> None:
        """gathered: the numbers of all ranks' rows, rank by rank."""
        self._gathered, self._union = gathered, torch.unique(gathered)

    def few_shared(self, ranks: int) -> bool:
        """Whether gathering the values moves less than a sum of the union; alike on all ranks."""
        return few_shared(self._union.numel(), self._gathered.numel(), ranks)

    def matrix(self) -> torch.Tensor:
        """The matrix to sum, zero where this rank has no row. Counts the saved bytes."""
        self.count_union(self._union, self._gathered.numel())
        total = self.values.new_zeros((self._union.numel(), *self.values.shape[1:]))
        total[torch.searchsorted(self._union, self.rows)] = self.values
        return total

    def merge(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' values, which lie as their rows do. It has the same bits on all
        ranks: coalesce() adds in the order of the ranks, on GPUs too."""
        shape = (self.every, *values.shape[1:])
        rows = self._gathered[None]
        every = torch.sparse_coo_tensor(rows, values, shape, check_invariants=False)
        return every.coalesce().values()

    def count_union(self, union: torch.Tensor, gathered: int) -> None:
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
