"""Codecs: lossy encodings of gradients on the wire, for Horovod's `compression=`.

    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), natural())
    total = hvd.allreduce(tensor, compression=qsgd(bits=4))

The compressors of omnihvd.compression choose what is summed; codecs change how it is encoded. The
engine encodes each block as it sends it, adds in float32, and encodes the sum once, so all ranks
get the same bits. Zero blocks cost nothing. docs/codecs.md has the guide. A framework is imported
when a codec sees the first of its tensors.
"""

from __future__ import annotations

from omnihvd.compression.codec import Codec

__all__ = ["int4", "int8", "natural", "one_bit", "qsgd", "sign", "terngrad"]


def natural() -> Codec:
    """Rounds each element to a power of two, at random without bias: 8 bits an element.

    Horvath et al., "Natural Compression for Distributed Deep Learning" (MSML 2022).
    """
    return Codec("natural")


def qsgd(bits: int = 8) -> Codec:
    """Rounds each element to one of equal steps, at random without bias. bits: 2, 4 or 8.

    Alistarh et al., "QSGD" (NeurIPS 2017), scaled by the block's largest element.
    """
    if isinstance(bits, bool) or not isinstance(bits, int):
        raise TypeError(f"bits is {bits!r}: it must be an integer, not {type(bits).__name__}")
    if bits not in (2, 4, 8):
        raise ValueError(f"bits is {bits}: it must be 2, 4 or 8")
    return Codec("qsgd", bits)


def terngrad() -> Codec:
    """Rounds each element to -s, 0 or s, at random, after clipping at 2.5 times the root mean
    square: 2 bits an element, and 4 bits for sums.

    Wen et al., "TernGrad" (NeurIPS 2017).
    """
    return Codec("terngrad")


def sign() -> Codec:
    """Sends signs, times the block's mean magnitude: 1 bit an element, and 4 bits for sums. With
    error feedback.

    Karimireddy et al., "Error Feedback Fixes SignSGD" (ICML 2019).
    """
    return Codec("sign", error_feedback=True)


def one_bit() -> Codec:
    """Sends each element as the mean of the block's elements with its sign: 1 bit an element, and
    4 bits for sums. With error feedback.

    Seide et al., "1-Bit Stochastic Gradient Descent" (Interspeech 2014).
    """
    return Codec("one_bit", error_feedback=True)


def int8() -> Codec:
    """Rounds to 255 equal steps, scaled by the block's largest element: 8 bits an element."""
    return Codec("int", 8)


def int4() -> Codec:
    """Rounds to 15 equal steps, scaled by the block's largest element: 4 bits an element. With
    error feedback."""
    return Codec("int", 4, error_feedback=True)
