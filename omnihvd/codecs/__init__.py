"""Lossy forms in which gradients travel, for Horovod's `compression=`.

    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), natural())
    total = hvd.allreduce(tensor, compression=qsgd(bits=4))

Unlike the compressors of omnihvd.compressors these change what is on the wire, not what is summed:
omnihvd's engine encodes each block of a tensor when it sends it, adds in float32, and encodes the
sum once for all ranks, which get the same bits. Zero blocks cost nothing. docs/codecs.md
has the guide. No framework is imported before one of its tensors is seen.
"""

from __future__ import annotations

from omnihvd.codecs.codec import Codec

__all__ = ["Codec", "int4", "int8", "natural", "one_bit", "qsgd", "sign", "terngrad"]


def natural() -> Codec:
    """Powers of two, at random without bias: 8 bits an element.

    Horvath et al., "Natural Compression for Distributed Deep Learning" (MSML 2022).
    """
    return Codec("natural")


def qsgd(bits: int = 8) -> Codec:
    """Equal steps up to the block's largest element, at random without bias. bits: 2, 4 or 8.

    Alistarh et al., "QSGD" (NeurIPS 2017), scaled by the largest element.
    """
    if isinstance(bits, bool) or not isinstance(bits, int):
        raise TypeError(f"bits is {bits!r}: it must be an integer, not {type(bits).__name__}")
    if bits not in (2, 4, 8):
        raise ValueError(f"bits is {bits}: it must be 2, 4 or 8")
    return Codec("qsgd", bits)


def terngrad() -> Codec:
    """-s, 0 or s, at random, where elements are clipped at 2.5 times their root mean square: 2
    bits an element, and 4 bits of sums.

    Wen et al., "TernGrad" (NeurIPS 2017).
    """
    return Codec("terngrad")


def sign() -> Codec:
    """Signs, times the block's mean magnitude: 1 bit an element, and 4 bits of sums. With error
    feedback.

    Karimireddy et al., "Error Feedback Fixes SignSGD" (ICML 2019).
    """
    return Codec("sign", error_feedback=True)


def one_bit() -> Codec:
    """The block's mean of all elements of the same sign: 1 bit an element, and 4 bits of sums. With
    error feedback.

    Seide et al., "1-Bit Stochastic Gradient Descent" (Interspeech 2014).
    """
    return Codec("one_bit", error_feedback=True)


def int8() -> Codec:
    """The nearest of 255 equal steps up to the block's largest element: 8 bits an element."""
    return Codec("int", 8)


def int4() -> Codec:
    """The nearest of 15 equal steps up to the block's largest element: 4 bits an element. With
    error feedback."""
    return Codec("int", 4, error_feedback=True)
