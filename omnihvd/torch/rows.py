"""Sparse tensors of torch.distributed: the ranks' rows are summed as lists, without a dense
matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from omnihvd.sparse.gradients import count_rows
from omnihvd.sparse.row_union import flatten, unflatten


def sum_rows(
    communicator: Any, allgather: Callable[[bytes], list[bytes]], size: int, tensor: torch.Tensor
) -> bool:
    """Sums `tensor` over the `size` ranks, in place: COO, of any number of sparse and dense
    dimensions, with any entries; afterwards coalesced. Counts the rows. Does nothing, and returns
    False on all ranks alike, if the engine does not sum such rows as lists. EngineError as
    Communicator.sum()."""
    merged = tensor.coalesce()
    values, shape = merged.values().contiguous(), merged.shape[: merged.sparse_dim()]
    length, dtype = math.prod(values.shape[1:]), str(values.dtype).replace("torch.", "")
    if not communicator.takes_rows(dtype, length):
        return False
    rows, every = flatten(merged.indices(), shape).contiguous(), math.prod(shape)
    at, numbers_at = values.data_ptr(), rows.data_ptr()
    union = communicator.sum_rows(at, numbers_at, len(rows), length, every, dtype, allgather)
    numbers = rows.new_empty(union)
    total = values.new_empty((union, *values.shape[1:]))
    communicator.take_rows(numbers.data_ptr(), total.data_ptr())
    count_rows(
        row_bytes=length * values.element_size(),
        number_bytes=merged.sparse_dim() * rows.element_size(),
        own=len(rows),
        gathered=size * len(rows),
        union=union,
        dense=every,
    )
    tensor.copy_(
        torch.sparse_coo_tensor(
            unflatten(numbers, shape), total, merged.shape, is_coalesced=True,
            check_invariants=False,
        )
    )  # fmt: skip
    return True
