"""DDP's communication hook: the average of a bucket over the ranks, by omnihvd."""
# DDP compares a hook's annotations; they must not be strings.

from typing import Any, Optional

import torch
from torch.distributed import GradBucket, group
from torch.futures import Future

from omnihvd.compression.codec import Codec
from omnihvd.torch.process_group import OmnihvdProcessGroup, give_sums, sums_of, take


class HookState:
    """The process group of a hook (None: the default one). It pickles without the group, and then
    means the default one; set `process_group` to change it."""

    def __init__(self, process_group: Any = None) -> None:
        self.process_group = process_group

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "process_group": None}


def allreduce_hook(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """`ddp.register_comm_hook(state, allreduce_hook)`: averages a bucket on the CPU, dense or
    sparse.

    state: a HookState, a process group, or None for the default group. The hook returns at once;
    buckets are averaged in order while the backward pass goes on. It composes like PyTorch's own
    hooks: `fp16_compress_wrapper(allreduce_hook)`. The future carries all errors, also that a rank
    does not come to the first bucket or has wrong settings.
    """
    return average(group_of(state), bucket.buffer())


def group_of(state: Any) -> Any:
    """The process group of a hook's state."""
    own = state.process_group if isinstance(state, HookState) else state
    return group.WORLD if own is None else own


def average(
    ranks: Any, tensor: torch.Tensor, codec: Optional[Codec] = None
) -> Future[torch.Tensor]:
    """Averages over the ranks of a process group; in place, if dense. codec: for floating-point
    tensors that do not fall back to the backend."""
    if tensor.device.type != "cpu":
        raise ValueError(
            f"omnihvd's hook averages on the CPU, not on {tensor.device}: on GPUs `import omnihvd` "
            'before init_process_group("nccl") is all that is needed'
        )
    # Divide before the sum, as DDP does: float16 sums may overflow. Sparse gradients may share
    # memory, so not in place.
    tensor = tensor / ranks.size() if tensor.is_sparse else tensor.div_(ranks.size())
    work: Any = None
    ours = isinstance(ranks, OmnihvdProcessGroup)
    if not ours and sums_of(ranks) is None:
        give_sums(ranks, later=True)  # waiting here may block another group's bucket
    if codec is not None or not ours:
        work = take(ranks, tensor, codec=codec)
    work = work or ranks.allreduce([tensor])
    return work.get_future().then(lambda future: future.value()[0])
