"""The object given to Horovod's `compression=` argument."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable

from omnihvd import engine
from omnihvd.compression import order
from omnihvd.compression.compressor import default_block_size
from omnihvd.intercept import gloo, horovod_library, in_use, mpi
from omnihvd.intercept.after_import import part
from omnihvd.intercept.backends import backend_of
from omnihvd.log import warn_once

ENVELOPE = "_omnihvd_envelope"  # attribute of a tensor that a codec made
MOST_FLOATS = 2**31 - 1  # of a tensor, with its header: MPI counts in ints


@dataclass(eq=False)  # Horovod keeps functions by their compression
class Codec:
    """Encodes float32 tensors for transport, lossily; other floating-point dtypes are converted.

    kind, bits: the engine's. error_feedback: the error of a rank's own encoding is added to the
    tensor of the same name in the next step; a tensor without a name has no error feedback.

    The reduction must be hvd.Average or hvd.Sum. Integers, sparse tensors and GPU tensors pass
    unchanged; so do all tensors, with a warning, where omnihvd is not in use. All ranks must use
    the same codec; if one differs, the sum raises an error on all ranks.
    """

    kind: str
    bits: int = 0
    error_feedback: bool = False
    # Residuals, by process set and name.
    rests: dict[tuple[int, str], Any] = field(default_factory=dict, repr=False)
    of: str = field(default="", repr=False)  # ends names: tells optimizers apart
    optimizers: int = field(default=0, repr=False)  # that were given this codec

    @property
    def name(self) -> str:
        """As in messages: "natural", "qsgd4"."""
        return f"{self.kind}{self.bits or ''}"

    def with_error_feedback(self, enabled: bool = True) -> Codec:
        """The same codec, with or without it. PyTorch only."""
        if enabled and self.kind == "terngrad":  # the engine would clip a second time
            raise ValueError("terngrad has no error feedback, since it clips: use qsgd(bits=2)")
        return Codec(self.kind, self.bits, enabled)

    def for_optimizer(self, optimizer: Any) -> Codec:
        """The same codec and residuals, for an optimizer that may have another one's names."""
        of = f"#{self.optimizers}" if self.optimizers else ""
        self.optimizers += 1
        if of:
            weakref.finalize(optimizer, self._forget, of)
        return dataclasses.replace(self, of=of)

    def _forget(self, of: str) -> None:
        for key in [key for key in self.rests if key[1].endswith(of)]:
            del self.rests[key]

    def engine_codec(self, seed: int = 0) -> Any:
        return engine.codec.Codec(self.kind, self.bits, seed)

    def round_trip(self, data: int, count: int, seed: int = 1) -> None:
        """Encodes and decodes `count` float32 at the address `data`, in place."""
        self.engine_codec(seed).round_trip(data, count, default_block_size(), 0)

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """Horovod's interface. Returns an int32 tensor (a header, then the elements as float32) and
        the context for decompress()."""
        self.check_order()
        if not _is_in_use():
            return tensor, None
        torch = sys.modules.get("torch")
        is_torch = torch is not None and isinstance(tensor, torch.Tensor)
        face = part(f"omnihvd.compression.{'torch' if is_torch else 'tensorflow'}_codecs")
        return face.compress(self, tensor)

    def check_order(self) -> None:
        """ValueError where hosts sum first: then no rank encodes for itself."""
        if self.error_feedback:
            order.refuse_hosts_first(
                f"{self.name} with error feedback",
                "ranks encode nothing of their own: with_error_feedback(False)",
            )

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """Horovod's interface. RuntimeError if the sum was not made by omnihvd."""
        return tensor if ctx is None else ctx.open(tensor)

    def share(self, op: Any, hvd: Any, size: Callable[[], Any]) -> Any:
        """The factor for a sum over `size()` ranks, for this op of Horovod's."""
        if op not in (hvd.Average, hvd.Sum):
            raise ValueError(f"the codec {self.name} needs op=hvd.Average or op=hvd.Sum")
        return 1 / size() if op == hvd.Average else 1.0

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals of error feedback, by name; they differ from rank to rank."""
        return {f"{number}:{name}": rest for (number, name), rest in self.rests.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces all residuals by those of `state_dict()`."""
        self.rests.clear()
        for key, rest in state.items():
            number, _, name = key.partition(":")
            self.rests[int(number), name] = rest


@dataclass(frozen=True)
class Format:
    """The layout of a tensor in the int32 buffer that is summed: a header of whole blocks, then the
    elements as float32, padded to a whole block."""

    codec: Codec
    elements: int

    @functools.cached_property
    def block(self) -> int:
        return default_block_size()

    @property
    def header_floats(self) -> int:
        return math.ceil(engine.codec.HEADER_BYTES / 4 / self.block) * self.block

    @property
    def floats(self) -> int:
        return math.ceil(self.elements / self.block) * self.block

    @property
    def size(self) -> int:
        """In int32."""
        size = self.header_floats + self.floats
        if size > MOST_FLOATS:
            raise ValueError(f"a tensor of {self.elements} elements is too large for a codec")
        return size

    @property
    def repeats(self) -> bool:
        """Whether the last block is padded with its own elements, to keep its scale; else zeros."""
        return self.codec.kind in ("sign", "one_bit", "terngrad")

    def header(self, seed: int = 0, summed: bool = False) -> bytes:
        codec = self.codec.engine_codec(seed)
        return bytes(codec.header(4 * self.header_floats, self.floats, summed))


class Whole:
    """A tensor that the codec does not encode, perhaps in a group with tensors that it does encode.
    (PyTorch sums it with those, and so unscaled.)"""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._scale: float | None = None

    def mark(self, tensor: Any) -> Any:
        setattr(tensor, ENVELOPE, self)
        return tensor

    def begin(self, scale: float, *_: Any) -> None:
        self._scale = scale

    def open(self, total: Any) -> Any:
        return total if self._scale is None else (total.double() * self._scale).to(total.dtype)


def envelopes_of(tensors: list[Any]) -> list[Any]:
    """The envelopes of `tensors`, or [] if a codec encoded none of them. ValueError for a mix."""
    found = [getattr(tensor, ENVELOPE, None) for tensor in tensors]
    if all(envelope is None or isinstance(envelope, Whole) for envelope in found):
        return []
    if None in found:
        raise ValueError(
            "a grouped allreduce has tensors under a codec and others: reduce these in two groups"
        )
    return found


def not_taken(codec: Codec) -> str:
    return (
        f"a tensor under the codec {codec.name} was not summed by omnihvd, but as int32 by Horovod:"
        " is omnihvd imported on every rank before hvd.init(), with the same settings? Was it"
        " reduced together with other tensors of int32, or by an operation of yours?"
    )


def _is_in_use() -> bool:
    """Whether codecs can encode here; warns if they cannot."""
    if in_use.horovod_problem():
        in_use.warn_if_unused()
        return False
    for horovod in horovod_library.initialized():
        if backend_of(horovod) not in (mpi, gloo):
            warn_once("codecs are for sums in host memory, by MPI or Gloo: tensors travel whole")
            return False
    return True
