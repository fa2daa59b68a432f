"""Compressors (omnihvd.compression) under DDP."""
# DDP compares a hook's annotations; they must not be strings.

from collections.abc import Iterable
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed import GradBucket
from torch.futures import Future

from omnihvd.compression import agreement, order, torch_ops
from omnihvd.compression.compressor import Compressor
from omnihvd.compression.split import ParameterState, split_by
from omnihvd.torch.hook import HookState, allreduce_hook, group_of

Hook = Callable[[Any, GradBucket], Future[torch.Tensor]]
NamedParameters = Iterable[tuple[str, torch.Tensor]]


class CompressionState(HookState):
    """A compressor, its state of each parameter, and the process group of the hook.

    named_parameters: the model's, with the same names on all ranks. It pickles, for checkpoints,
    without group and parameters: call attach() after unpickling. The residuals differ from rank to
    rank: save them on each rank.
    """

    def __init__(
        self, compressor: Compressor, named_parameters: NamedParameters, process_group: Any = None
    ) -> None:
        super().__init__(process_group)
        rule = compressor.config.rule
        if rule.has_second_step or compressor.config.codec:
            what = "with_codec()" if compressor.config.codec else rule.factory
            raise ValueError(f"{what} is for Horovod: DDP's hook does not do its second step")
        if compressor.config.clip_together:
            raise ValueError("DDP's hook clips each parameter's gradient by itself: together=False")
        if compressor.config.certificate:
            raise ValueError(
                "with_certificate() and with_floor() are for Horovod: leave them out under DDP"
            )
        order.refuse_hosts_first("DDP's hook", "it knows no hosts; Horovod's optimizers do")
        self.compressor = compressor
        self.kept: dict[str, ParameterState] = {}  # by name
        self._agreed = False
        self.attach(named_parameters)

    def attach(self, named_parameters: NamedParameters) -> None:
        """Attaches the model's parameters. ValueError if the state of one has another shape."""
        self._names = {parameter: name for name, parameter in named_parameters}
        for parameter, name in self._names.items():
            rest = self.kept.setdefault(name, ParameterState(name)).rest
            if rest is not None and rest.shape != parameter.shape:
                raise ValueError(
                    f"the residual of {name} has shape {tuple(rest.shape)}, the parameter "
                    f"{tuple(parameter.shape)}: load the state of this model"
                )

    def agree(self) -> None:
        """RuntimeError, on all ranks, if they do not compress alike. Collective, the first time."""
        ranks = group_of(self)
        if self._agreed or not agreement.wanted(ranks.size()):
            return
        described: list[Any] = [None] * ranks.size()
        dist.all_gather_object(described, agreement.encode(self.compressor), ranks)
        agreement.check(described)
        self._agreed = True

    def of(self, parameter: torch.Tensor) -> ParameterState:
        if parameter not in self._names:
            raise RuntimeError(
                "a compressor does not know a parameter of this bucket: give "
                "CompressionState the model's named_parameters(), or attach() them after unpickling"
            )
        return self.kept[self._names[parameter]]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_names": {}, "_agreed": False}


def compress_wrapper(hook: Hook) -> Hook:
    """Wraps a DDP hook: the result takes a CompressionState, and calls `hook` with the part of each
    gradient to send. hook: like PyTorch's, with a process group or None as its state."""

    def compressed(state: CompressionState, bucket: GradBucket) -> Future[torch.Tensor]:
        state.agree()
        if not bucket.buffer().is_sparse:
            ranks, keeps = group_of(state).size(), state.compressor.config.error_feedback
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                if keeps and not (gradient.is_cuda or gradient.any()):
                    # If no rank has used it, DDP throws its sum away: the residual waits.
                    state.of(parameter).step += 1
                    continue
                sent = split_by(torch_ops, state.compressor, gradient, state.of(parameter), ranks)
                if sent is not gradient:  # the gradient is not contiguous
                    gradient.copy_(sent)
        return hook(state.process_group, bucket)

    return compressed


compressed_allreduce_hook = compress_wrapper(allreduce_hook)
