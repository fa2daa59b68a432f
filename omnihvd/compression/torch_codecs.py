"""Codecs in Horovod for PyTorch.

All of Horovod's allreduces pass through two functions of horovod.torch.mpi_ops, which get a
tensor's name and operation. install() wraps them, once per process. A tensor that a codec made is
summed as int32 without any scale, whatever the operation, and scaled when it is opened.
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from typing import Any

import torch

from omnihvd import engine
from omnihvd.compression import torch_memory
from omnihvd.compression.codec import ENVELOPE, Codec, Format, Whole, envelopes_of, not_taken
from omnihvd.compression.torch_feedback import error_feedback
from omnihvd.intercept import horovod_library
from omnihvd.log import warn_once

_steps: Counter[tuple[int, str | None]] = Counter()  # by process set and name


class Envelope:
    """The context of one tensor from compress() to decompress()."""

    def __init__(self, codec: Codec, source: torch.Tensor) -> None:
        self.codec, self.source = codec, source
        self.format = Format(codec, source.numel())
        self.scale = 1.0
        self.reduction: dict[str, Any] = {}
        self.made = torch_memory.int32(self.format.size)
        elements = self._floats(self.made)
        elements[: source.numel()].copy_(source.detach().reshape(-1))
        self._pad(elements)
        self._write_header(0)
        setattr(self.made, ENVELOPE, self)

    def begin(self, scale: float, name: str | None, op: Any, process_set: Any) -> None:
        """Before the sum: open() will multiply its result by `scale`."""
        self.scale = scale
        self.reduction = {"op": op, "process_set": process_set}
        number = process_set.process_set_id
        if self.codec.error_feedback and name is not None:
            self._add_rest((number, name + self.codec.of))
        if engine.session.settings_from_environment().deterministic:
            step = _steps[number, name]
            _steps[number, name] += 1
            self._write_header(zlib.crc32(f"{name}:{step}".encode()) or 1)

    def open(self, summed: torch.Tensor) -> torch.Tensor:
        header = self.format.header(self._seed, summed=True)
        if summed[: len(header) // 4].numpy().tobytes() != header:
            raise RuntimeError(not_taken(self.codec))
        del self.made  # it refers to this; free its memory together with the result's
        result = self._floats(summed)[: self.source.numel()].view(self.source.shape)
        if self.scale != 1:
            result.mul_(self.scale)
        result = result.to(self.source.dtype)
        return _Passed.apply(self.source, result, self) if self.source.requires_grad else result

    def _write_header(self, seed: int) -> None:
        self._seed = seed
        header = self.format.header(seed)
        self.made[: len(header) // 4] = torch.frombuffer(bytearray(header), dtype=torch.int32)

    def _pad(self, elements: torch.Tensor) -> None:
        """Fills the last block, so that its scale is that of the elements there."""
        rest = elements[self.source.numel() :]
        if self.format.repeats and rest.numel():
            tail = elements[self.source.numel() // self.format.block * self.format.block :]
            tail = tail[: -rest.numel()]
            times = -(-rest.numel() // tail.numel())
            rest.copy_(tail.repeat(times)[: rest.numel()])
        else:
            rest.zero_()

    def _floats(self, data: torch.Tensor) -> torch.Tensor:
        return data.view(torch.float32)[self.format.header_floats :]

    def _add_rest(self, key: tuple[int, str]) -> None:
        elements = self._floats(self.made)
        own = elements[: self.source.numel()].view(self.source.shape)
        with error_feedback(self.codec.rests, key, own):
            self._pad(elements)
            seed = zlib.crc32(repr(key).encode())
            self.codec.round_trip(elements.data_ptr(), elements.numel(), seed)


class _Passed(torch.autograd.Function):
    """Reduces gradients as the tensor was reduced, as Horovod's own allreduce does."""

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, result: torch.Tensor, envelope: Envelope) -> Any:
        ctx.envelope = envelope
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        from horovod.torch.mpi_ops import allreduce

        return allreduce(gradient, **ctx.envelope.reduction), None, None


def compress(codec: Codec, tensor: torch.Tensor) -> tuple[torch.Tensor, Envelope | Whole | None]:
    if tensor.layout != torch.strided:
        return tensor, None
    if not tensor.is_floating_point() or tensor.numel() == 0:
        whole = Whole(codec)
        return whole.mark(tensor.view_as(tensor)), whole
    if tensor.device.type != "cpu":
        warn_once("codecs are for sums in host memory: tensors of GPUs travel whole")
        return tensor, None
    envelope = Envelope(codec, tensor)
    return envelope.made, envelope


def install(ops: Any) -> None:
    """Wraps two functions of horovod.torch.mpi_ops."""

    def wrapped(sum_of: Any, grouped: bool) -> Any:
        @functools.wraps(sum_of)
        def call(
            given: Any, out: Any, name: Any, op: Any, prescale: float, postscale: float, among: Any
        ) -> Any:
            envelopes = envelopes_of(given if grouped else [given])
            if not envelopes:
                return sum_of(given, out, name, op, prescale, postscale, among)
            scale = prescale * postscale * envelopes[0].codec.share(op, ops, among.size)
            for i, envelope in enumerate(envelopes):
                one_name = f"{name}.{i}" if grouped and name is not None else name
                envelope.begin(scale, one_name, op, among)
            totals = given
            if grouped:  # a tensor without an envelope must not be overwritten
                parts = zip(envelopes, given, out)
                totals = [to if isinstance(e, Whole) else made for e, made, to in parts]
            return sum_of(given, totals, name, ops.Sum, 1.0, 1.0, among)

        return call

    ops._allreduce_async = wrapped(ops._allreduce_async, False)
    ops._grouped_allreduce_async = wrapped(ops._grouped_allreduce_async, True)
    horovod_library.on_init(lambda _: _steps.clear())  # ranks that join later start at 0, too
