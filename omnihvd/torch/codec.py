"""Codecs (omnihvd.compression) under torch.distributed."""
# DDP compares a hook's annotations; they must not be strings.

import contextlib
from collections.abc import Iterator
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
        self._members: dict[int, list[int]] = {}  # the parameters of these residuals, in order
        self._numbers: dict[Any, int] = {}  # of the parameters, by when they came first

    def follow(self, bucket: GradBucket) -> None:
        """Drops the residual of a bucket that had other parameters, or another order of them: DDP
        makes its buckets anew after the first step, also of a job that goes on from a checkpoint,
        and their sizes need not change."""
        known, number = self._numbers, bucket.index()
        members = [known.setdefault(p, len(known)) for p in bucket.parameters()]
        if self._members.setdefault(number, members) != members:
            self._members[number] = members
            self.rests.pop(number, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_numbers": {}}


def codec_hook(state: CodecState, bucket: GradBucket) -> Future[torch.Tensor]:
    """`ddp.register_comm_hook(CodecState(OmniReduce.natural()), codec_hook)`: as allreduce_hook,
    but encodes dense buckets with the codec, also on GPUs. RuntimeError if the ranks' codecs
    differ. On GPUs ImportError without CuPy."""
    tensor = bucket.buffer()
    if state.codec.error_feedback:
        state.follow(bucket)
    if tensor.is_cuda and not tensor.is_sparse:
        return average_on_gpu(group_of(state), tensor, state.codec, state.rests, bucket.index())
    if tensor.is_sparse:
        return average(group_of(state), tensor)
    if state.codec.error_feedback and tensor.is_floating_point():
        floats = tensor.float().contiguous()  # they travel so
        rests, number = state.rests, bucket.index()
        with _unused_wait(bucket, rests), error_feedback(rests, number, floats):
            ranks = group_of(state).size()
            floats.div_(ranks)  # as average() will: a third of a power of two is none
            state.codec.round_trip(floats.data_ptr(), floats.numel())
            floats.mul_(ranks)
            if floats is not tensor:
                floats.copy_(tensor.copy_(floats))  # what rounding loses stays, too
    return average(group_of(state), tensor, state.codec)


@contextlib.contextmanager
def _unused_wait(bucket: GradBucket, rests: Rests) -> Iterator[None]:
    """Keeps residuals of parameters that this rank has not used: if no rank has used one, DDP
    throws its sum away."""
    tensor, rest = bucket.buffer(), rests.get(bucket.index())
    waiting = []
    if rest is not None and rest.shape == tensor.shape:
        for gradient in bucket.gradients():
            if not gradient.any():
                start = gradient.storage_offset() - tensor.storage_offset()
                part = slice(start, start + gradient.numel())
                waiting.append((part, rest[part].clone()))
                rest[part] = 0
    yield
    for part, kept in waiting:
        rests[bucket.index()][part] += kept
