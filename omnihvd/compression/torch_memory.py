"""Reuses the memory of large tensors: page faults cost more than all the work on them."""

from __future__ import annotations

import functools
from typing import Any

import torch

# The C library itself reuses smaller allocations.
LARGE = 32 << 20  # bytes
_kept: dict[int, list[torch.Tensor]] = {}  # by size; at most as many as were in use at a time


def int32(size: int) -> torch.Tensor:
    """An uninitialised tensor. Its memory is reused once no tensor refers to it."""
    count_users: Any = getattr(torch._C, "_storage_Use_Count", None)
    if 4 * size < LARGE or count_users is None:
        return torch.empty(size, dtype=torch.int32)
    kept = _kept.setdefault(size, [])
    for tensor in kept:
        storage = tensor.untyped_storage()
        if count_users(storage._cdata) <= _users_of_one():
            return tensor.view(-1)
    kept.append(torch.empty(size, dtype=torch.int32))
    return kept[-1].view(-1)


@functools.cache
def _users_of_one() -> int:
    """The use count of a storage that only one tensor refers to, as this call sees it."""
    count_users: Any = getattr(torch._C, "_storage_Use_Count", None)
    storage = torch.empty(1).untyped_storage()
    alone = torch.empty(0)
    alone.set_(storage)
    return int(count_users(storage._cdata))
