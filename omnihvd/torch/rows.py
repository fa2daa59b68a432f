"""Sparse tensors among ranks: the rows that any rank has are summed, as a dense matrix."""

from __future__ import annotations

import math
from typing import Callable

import torch

from omnihvd.sparse.coordinates import flatten, unflatten
from omnihvd.sparse.gradients import count_rows
from omnihvd.torch.gloo import Gloo


def sum_of_union(
    tensor: torch.Tensor, gloo: Gloo, sum_dense: Callable[[torch.Tensor], None]
) -> torch.Tensor:
    """Collective. tensor: COO, of the same shape on all ranks, with any entries; returns the sum,
    coalesced. sum_dense: a collective, in place."""
    merged = tensor.coalesce()
    shape, values = merged.shape[: merged.sparse_dim()], merged.values()
    rows = flatten(merged.indices(), shape)
    gathered = torch.cat(gloo.gather(rows))
    union = torch.unique(gathered)
    total = values.new_zeros((union.numel(), *values.shape[1:]))
    total[torch.searchsorted(union, rows)] = values
    count_rows(
        row_bytes=math.prod(values.shape[1:]) * values.element_size(),
        number_bytes=merged.sparse_dim() * rows.element_size(),
        own=rows.numel(),
        gathered=gathered.numel(),
        union=union.numel(),
        dense=math.prod(shape),
    )
    if union.numel():
        sum_dense(total)
    return torch.sparse_coo_tensor(
        unflatten(union, shape), total, merged.shape, is_coalesced=True, check_invariants=False
    )
