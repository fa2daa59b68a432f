"""Error feedback: the error of a rank's encoding is added to the next tensor of the same name."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def error_feedback(
    rests: dict[Any, torch.Tensor], key: Hashable, sent: torch.Tensor
) -> Iterator[None]:
    """Adds the residual rests[key] to `sent`. The caller then encodes `sent` in place, and the new
    error becomes rests[key]. A residual of another shape is dropped: DDP rebuilds its buckets."""
    rest = rests.get(key)
    if rest is not None and rest.shape == sent.shape:
        sent += rest.to(sent.device)
    wanted = sent.clone()
    yield
    rests[key] = wanted.sub_(sent).nan_to_num_(0.0, 0.0, 0.0)
