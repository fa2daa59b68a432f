"""Codecs (omnihvd.compression) under torch.distributed."""
# DDP compares a hook's annotations; they must not be strings.

from typing import Any

import torch
from torch.distributed import GradBucket
from torch.futures import Future

from omnihvd.compression.codec import Codec
from omnihvd.compression.torch_feedback import error_feedback
from omnihvd.torch.coded_sums import Rests, average_on_gpu
from omnihvd.torch.hook import HookState, average, group_of


class CodecState(HookState):
    """A codec, its residual for each bucket, and the process group of the hook.

    It pickles without the group, for checkpoints. The residuals differ from rank to rank.
    """

    def __init__(self, codec: Codec, process_group: Any = None) -> None:
        super().__init__(process_group)
        codec.check_order()
        self.codec = codec
        self.rests: Rests = {}  # by the bucket's number


def codec_hook(state: CodecState, bucket: GradBucket) -> Future[torch.Tensor]:
    """`ddp.register_comm_hook(CodecState(OmniReduce.natural()), codec_hook)`: as allreduce_hook,
    but encodes dense buckets with the codec, also on GPUs. RuntimeError if the ranks' codecs
    differ. On GPUs ImportError without CuPy."""
    tensor = bucket.buffer()
    if tensor.is_cuda and not tensor.is_sparse:
        return average_on_gpu(group_of(state), tensor, state.codec, state.rests, bucket.index())
    if tensor.is_sparse:
        return average(group_of(state), tensor)
    if state.codec.error_feedback and tensor.is_floating_point():
        floats = tensor.float().contiguous()  # they travel so
        with error_feedback(state.rests, bucket.index(), floats):
            state.codec.round_trip(floats.data_ptr(), floats.numel())
            if floats is not tensor:
                floats.copy_(tensor.copy_(floats))  # what rounding loses stays, too
    return average(group_of(state), tensor, state.codec)
