"""Sparse tensors of torch.distributed: the ranks' rows are summed as lists, without a dense
matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from omnihvd.sparse.row_union import RowUnion


def sum_rows(
    communicator: Any, allgather: Callable[[bytes], list[bytes]], size: int, union: RowUnion
) -> torch.Tensor | None:
    """Sums the values of `union` over the `size` ranks, and counts the rows. Returns the sum, for
    union.result(). Does nothing, and returns None on all ranks alike, if the engine does not sum
    such rows as lists. EngineError as Communicator.sum()."""
    values, rows = union.values.contiguous(), union.rows.contiguous()
    length, dtype = math.prod(values.shape[1:]), str(values.dtype).replace("torch.", "")
    if not communicator.takes_rows(dtype, length):
        return None
    at, rows_at = values.data_ptr(), rows.data_ptr()
    count = communicator.sum_rows(at, rows_at, len(rows), length, union.every, dtype, allgather)
    numbers = rows.new_empty(count)
    total = values.new_empty((count, *values.shape[1:]))
    communicator.take_rows(numbers.data_ptr(), total.data_ptr())
    union.count_union(numbers, size * len(rows))
    return total
