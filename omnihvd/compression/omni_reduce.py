"""`OmniReduce`: the `compression=` argument for Horovod's optimizers, tape and allreduce."""

from __future__ import annotations

from typing import Any

from omnihvd.compression import checks, codecs, factories
from omnihvd.intercept import in_use


class OmniReduce:
    """Horovod's Compressor interface: sends only the non-zero blocks of a gradient. Lossless.

    omnihvd skips zero blocks inside the allreduce, below Horovod. compress() and decompress()
    therefore return each tensor unchanged, for every framework, dtype and device. Where omnihvd
    does not intercept Horovod (another MPI, oneCCL, ...), rank 0 logs a warning with the reason,
    and Horovod's own allreduce runs. On GPUs set OMNIHVD_GPU=auto, or use torch.sum_unions().

    The factories below lose something, for gradients that are not sparse by themselves. (c) marks
    codecs, which encode what is sent (docs/codecs.md). The others are compressors, which keep a
    residual for the next step (docs/compression.md):

        Sent later, whole blocks:     block_topk, block_random, block_threshold
        Sent later, single elements:  topk_threshold, topk, global_topk, randomk, dgc, sidco
        Rounded to 4 to 34 bits:      eight_bit, inceptionn, sketch, natural_dithering,
                                      natural (c), qsgd (c), int8 (c), int4 (c)
        Rounded to signs and zeros:   adaptive, ef_sign, one_bit_sgd,
                                      terngrad (c), sign (c), one_bit (c)
        All but signs:                sign_sgd, signum
        All but a low rank:           power_sgd
        As your object says:          grace
    """

    block_topk = staticmethod(factories.block_topk)
    block_random = staticmethod(factories.block_random)
    block_threshold = staticmethod(factories.block_threshold)

    topk_threshold = staticmethod(factories.topk_threshold)
    topk = staticmethod(factories.topk)
    global_topk = staticmethod(factories.global_topk)
    randomk = staticmethod(factories.randomk)
    dgc = staticmethod(factories.dgc)
    sidco = staticmethod(factories.sidco)

    eight_bit = staticmethod(factories.eight_bit)
    inceptionn = staticmethod(factories.inceptionn)
    sketch = staticmethod(factories.sketch)
    natural_dithering = staticmethod(factories.natural_dithering)
    natural = staticmethod(codecs.natural)
    qsgd = staticmethod(codecs.qsgd)
    int8 = staticmethod(codecs.int8)
    int4 = staticmethod(codecs.int4)

    adaptive = staticmethod(factories.adaptive)
    ef_sign = staticmethod(factories.ef_sign)
    one_bit_sgd = staticmethod(factories.one_bit_sgd)
    terngrad = staticmethod(codecs.terngrad)
    sign = staticmethod(codecs.sign)
    one_bit = staticmethod(codecs.one_bit)

    sign_sgd = staticmethod(factories.sign_sgd)
    signum = staticmethod(factories.signum)
    power_sgd = staticmethod(factories.power_sgd)
    grace = staticmethod(factories.grace)

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
