"""Codecs (omnihvd.codecs) under torch.distributed."""
# DDP compares a hook's annotations, which must not be texts.

from typing import Any

import torch
from torch.distributed import GradBucket
from torch.futures import Future

from omnihvd.codecs.codec import Codec
from omnihvd.torch.coded_sums import Rests, add_lost, average_on_gpu
from omnihvd.torch.hook import HookState, average, group_of


class CodecState(HookState):
    """A codec, what its error feedback keeps of each bucket, and the process group of the hook.

    It pickles without the group, for checkpoints; what is kept differs from rank to rank.
    """

    def __init__(self, codec: Codec, process_group: Any = None) -> None:
        super().__init__(process_group)
        self.codec = codec
        self.rests: Rests = {}  # by the bucket's number

    def add_rest(self, number: int, tensor: torch.Tensor) -> None:
        """What was lost of this bucket before is added, and what is to be lost now is kept."""
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            return
        add_lost(self.rests, number, tensor)
        unsent = tensor.clone()
        self.codec.round_trip(tensor.data_ptr(), tensor.numel())
        unsent -= tensor
        unsent[~torch.isfinite(unsent)] = 0
        self.rests[number] = unsent


def codec_hook(state: CodecState, bucket: GradBucket) -> Future[torch.Tensor]:
    """`ddp.register_comm_hook(CodecState(OmniReduce.natural()), codec_hook)`: as allreduce_hook,
    but dense buckets travel under the codec, also on GPUs. On all ranks the same: RuntimeError
    else. On GPUs ImportError without CuPy."""
    tensor = bucket.buffer()
    if tensor.is_cuda and not tensor.is_sparse:
        return average_on_gpu(group_of(state), tensor, state.codec, state.rests, bucket.index())
    if tensor.is_sparse:
        return average(group_of(state), tensor)
    if state.codec.error_feedback:
        state.add_rest(bucket.index(), tensor)
    return average(group_of(state), tensor, state.codec)
