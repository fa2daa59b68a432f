"""Error feedback: what a rank's encoding loses of a tensor is added to the next of its name."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def error_feedback(
    rests: dict[Any, torch.Tensor], key: Hashable, sent: torch.Tensor
) -> Iterator[None]:
    """Inside, `sent`, to which what was lost before has been added, is to become what is sent.
    rests[key] has what was lost, and of another shape (DDP builds its buckets anew) nothing."""
    rest = rests.get(key)
    if rest is not None and rest.shape == sent.shape:
        sent += rest.to(sent.device)
    wanted = sent.clone()
    yield
    rests[key] = wanted.sub_(sent).nan_to_num_(0.0, 0.0, 0.0)
