"""`OmniReduce`: what a training script gives to Horovod as `compression=`."""

from __future__ import annotations

from typing import Any

from omnihvd import codecs, compressors
from omnihvd.carriers import in_use
from omnihvd.compressors import checks


class OmniReduce:
    """Horovod's Compressor interface: sends the non-zero blocks of a gradient only. Lossless.

    The work is done under Horovod, in the sum itself; so tensors pass unchanged here, of whatever
    framework, dtype and device. Where omnihvd is not in use (another MPI, oneCCL, ...), a warning
    on rank 0 says why, and Horovod sums as it always did.

    The factories below make lossy compressors, for gradients that are not sparse by themselves:
    they send some blocks and keep the rest for the next step (docs/compression.md).
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

    # Lossy forms in which tensors travel (docs/codecs.md).
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
