"""`OmniReduce`: the `compression=` argument for Horovod's optimizers, tape and allreduce."""

from __future__ import annotations

from typing import Any

from omnihvd import codecs, compressors
from omnihvd.carriers import in_use
from omnihvd.compressors import checks


class OmniReduce:
    """Horovod's Compressor interface: sends only the non-zero blocks of a gradient. Lossless.

    omnihvd skips zero blocks inside the allreduce, below Horovod. compress() and decompress()
    therefore return each tensor unchanged, for every framework, dtype and device. Where omnihvd
    does not intercept Horovod (another MPI, oneCCL, ...), rank 0 logs a warning with the reason,
    and Horovod's own allreduce runs.

    The factories below make lossy compressors for gradients that are not sparse by themselves.
    Compressors send a part of each gradient and keep the residual for the next step
    (docs/compression.md); codecs encode the elements in fewer bits (docs/codecs.md).
    """

    block_topk = staticmethod(compressors.block_topk)
    block_random = staticmethod(compressors.block_random)
    block_threshold = staticmethod(compressors.block_threshold)
    topk_threshold = staticmethod(compressors.topk_threshold)
    topk = staticmethod(compressors.topk)
    randomk = staticmethod(compressors.randomk)
    dgc = staticmethod(compressors.dgc)
    sidco = staticmethod(compressors.sidco)
    adaptive = staticmethod(compressors.adaptive)
    eight_bit = staticmethod(compressors.eight_bit)
    inceptionn = staticmethod(compressors.inceptionn)
    sketch = staticmethod(compressors.sketch)
    ef_sign = staticmethod(compressors.ef_sign)
    power_sgd = staticmethod(compressors.power_sgd)
    grace = staticmethod(compressors.grace)
    signum = staticmethod(compressors.signum)
    sign_sgd = staticmethod(compressors.sign_sgd)
    natural_dithering = staticmethod(compressors.natural_dithering)
    one_bit_sgd = staticmethod(compressors.one_bit_sgd)

    # Codecs: lossy encodings on the wire (docs/codecs.md).
    natural = staticmethod(codecs.natural)
    qsgd = staticmethod(codecs.qsgd)
    terngrad = staticmethod(codecs.terngrad)
    sign = staticmethod(codecs.sign)
    one_bit = staticmethod(codecs.one_bit)
    int8 = staticmethod(codecs.int8)
    int4 = staticmethod(codecs.int4)

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, None]:
        """Returns the tensor itself, and no context."""
        in_use.warn_if_unused()
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: None) -> Any:
        """Returns the tensor itself."""
        return tensor


for _made in vars(OmniReduce).values():
    if isinstance(_made, staticmethod) and _made.__func__.__module__ != __name__:
        checks.to_be_called(_made.__func__)
