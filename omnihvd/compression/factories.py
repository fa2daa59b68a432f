"""Lossy compressors of dense gradients, with error feedback, for Horovod's `compression=`.

    compression = block_topk(0.05).with_warmup(epochs=5, steps_per_epoch=steps)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)

A compressed gradient stays dense: the blocks that are not sent are zero, and the engine skips them.
Ranks may therefore send different blocks, and the sum has all of them. docs/compression.md has the
guide. A framework is imported when a compressor sees the first of its gradients.

Block rules: Fei et al., "Efficient Sparse Collective Communication and its Application to
Accelerate Distributed Deep Learning" (OmniReduce, SIGCOMM 2021), block gradient sparsification.

Each factory raises TypeError or ValueError that names the wrong argument.
"""

from __future__ import annotations

from typing import Any

from omnihvd.compression import checks
from omnihvd.compression.compressor import Compressor, Config, default_block_size
from omnihvd.compression.methods.adaptive import Adaptive
from omnihvd.compression.methods.dgc import Dgc
from omnihvd.compression.methods.eight_bit import EightBit
from omnihvd.compression.methods.global_elements import GlobalElements
from omnihvd.compression.methods.grace import COMMUNICATORS, GraceObjects, adds
from omnihvd.compression.methods.inceptionn import Inceptionn
from omnihvd.compression.methods.low_rank import LowRank
from omnihvd.compression.methods.powers import NaturalDithering
from omnihvd.compression.methods.random_elements import RandomElements
from omnihvd.compression.methods.sidco import DISTRIBUTIONS, Sidco
from omnihvd.compression.methods.signs import EfSign, OneBitSgd, SignSgd, Signum
from omnihvd.compression.methods.sketch import Sketch
from omnihvd.compression.methods.threshold import ElementThreshold
from omnihvd.compression.methods.top_elements import TopElements
from omnihvd.compression.rules import RandomBlocks, Rule, ThresholdBlocks, TopBlocks

__all__ = [
    *("adaptive", "block_random", "block_threshold", "block_topk", "dgc", "ef_sign", "eight_bit"),
    *("global_topk", "grace", "inceptionn", "natural_dithering", "one_bit_sgd", "power_sgd"),
    *("randomk", "sidco", "sign_sgd", "signum", "sketch", "topk", "topk_threshold"),
]


def block_topk(ratio: float, block_size: int | None = None) -> Compressor:
    """Sends the blocks with the largest L2 norm.

    ratio: share of each parameter's blocks, 0 < ratio <= 1; at least one block is sent.
    block_size: in elements, counted from the parameter's start; the last block may be short. The
    default is the engine's block size (OMNIHVD_BLOCK_SIZE, else 256).
    """
    return _compressor(TopBlocks(checks.ratio(ratio)), block_size)


def block_random(ratio: float, seed: int = 0, block_size: int | None = None) -> Compressor:
    """Sends randomly drawn blocks, the same on all ranks, so the sum has no more than a rank.

    The draw depends on `seed`, the parameter's name and its step. `ratio`, `block_size`: as in
    `block_topk`.
    """
    rule = RandomBlocks(checks.ratio(ratio), checks.count("seed", seed, 0))
    return _compressor(rule, block_size)


def block_threshold(threshold: float, block_size: int | None = None) -> Compressor:
    """Sends the blocks with an L2 norm of at least `threshold`, in units of the gradient."""
    return _compressor(ThresholdBlocks(checks.threshold(threshold)), block_size)


def topk_threshold(threshold: float | None = None, budget: int | None = None) -> Compressor:
    """Sends the elements above `threshold` in absolute value, in units of the gradient.

    budget: the threshold is 1 / (2 sqrt(budget)), as its authors derive it from a number of
    elements of the whole model in a step. It is no limit: the formula does not know the gradients'
    scale. A rank sends about 4 n^2 times the budget, where n is the norm of its whole gradient,
    and fewer where that is a large share. stats()["compression"] has what is sent.

    Sahu et al., "Rethinking gradient sparsification as total error minimization" (NeurIPS 2021):
    for a budget of elements over the whole training, one constant threshold has the least total
    error. The blocks are partly zero, so the engine packs them.
    """
    if (threshold is None) == (budget is None):
        raise ValueError("topk_threshold() takes either a threshold or a budget: give one of them")
    if budget is not None:
        threshold = 0.5 / checks.count("budget", budget, 1) ** 0.5
    return _compressor(ElementThreshold(checks.threshold(threshold)))


def topk(ratio: float) -> Compressor:
    """Sends the elements with the largest absolute values.

    ratio: share of each parameter's elements, 0 < ratio <= 1. At least one element is sent. Ties
    with the smallest one are all sent.
    """
    return _compressor(TopElements(checks.ratio(ratio)))


def global_topk(ratio: float) -> Compressor:
    """Sends the elements with the largest absolute values of all parameters together.

    ratio: share of all elements, 0 < ratio <= 1. One threshold for all parameters follows from a
    sample of their values in the last step; in the first step each parameter has its own. So the
    share sent is near the ratio where steps are alike, and parameters with small gradients wait.
    A changed ratio holds from the next step on.
    """
    return _compressor(GlobalElements(checks.ratio(ratio)))


def randomk(ratio: float, seed: int = 0) -> Compressor:
    """Sends randomly drawn elements, the same on all ranks, so the sum has no more than a rank.

    The draw depends on `seed`, the parameter's name and its step. The expected share of a
    parameter's elements is `ratio`.
    """
    return _compressor(RandomElements(checks.ratio(ratio), checks.count("seed", seed, 0)))


def dgc(ratio: float) -> Compressor:
    """Sends the largest elements, by a threshold from a sample, with momentum correction.

    Lin et al., "Deep Gradient Compression" (ICLR 2018). The momentum is 0.9 unless
    with_momentum_correction() sets another; the optimizer's own must be 0. The share sent is within
    30% of `ratio`.
    """
    return _compressor(Dgc(checks.ratio(ratio)))


def sidco(
    ratio: float, distribution: str = "exponential", as_published: bool = False
) -> Compressor:
    """Sends the largest elements, by a threshold from a distribution fitted to them.

    Abdelmoniem et al., SIDCo (MLSys 2021). distribution: "exponential", "gamma" or "pareto". After
    some steps of a parameter the share sent is within 20% of `ratio`. as_published: adapt only as
    the paper does, by one stage more or less after each 5 steps.
    """
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"distribution is {distribution!r}: it must be one of {DISTRIBUTIONS}")
    return _compressor(Sidco(checks.ratio(ratio), distribution, bool(as_published)))


def adaptive(ratio: float) -> Compressor:
    """Sends the largest `ratio` of the positive elements as their mean, and likewise the negative.

    It sends floats; with_codec("one_bit_sgd") sends the two means and a bit for each element, as
    published: Dryden et al., "Communication quantization for data-parallel training of deep neural
    networks" (MLHPC 2016).
    """
    return _compressor(Adaptive(checks.ratio(ratio)))


def eight_bit() -> Compressor:
    """Sends each element in 8 bits, as one of 255 values that are denser near zero.

    Dettmers, "8-bit approximations for parallelism in deep learning" (ICLR 2016).
    """
    return _compressor(EightBit())


def inceptionn(bits: int = 10) -> Compressor:
    """Sends elements cut to multiples of 2**-bits, 0 <= bits <= 24, in units of the gradient.

    An element takes 2, 10, 18 or 34 bits: a tag, and the bits that its size needs. Li et al.,
    INCEPTIONN (MICRO 2018).
    """
    if checks.count("bits", bits, 0) > 24:
        raise ValueError(f"bits is {bits}: it must be 24 at most")
    return _compressor(Inceptionn(int(bits)))


def sketch(quantiles: int = 64) -> Compressor:
    """Sends each element in 8 bits, as the mean of its bucket among `quantiles` (2 to 255) equally
    full buckets.

    Jiang et al., SketchML (SIGMOD 2018), its quantile buckets.
    """
    if checks.count("quantiles", quantiles, 2) > 255:
        raise ValueError(f"quantiles is {quantiles}: it must be 255 at most")
    return _compressor(Sketch(int(quantiles)))


def natural_dithering(bits: int = 4) -> Compressor:
    """Sends each element as 0 or the largest magnitude times one of 2**(bits-1) - 1 powers of two,
    rounded at random without bias. bits: 4 or 8.

    Horvath et al., "Natural Compression" (MSML 2022), section 5, natural dithering, scaled by the
    largest magnitude.
    """
    if checks.count("bits", bits, 0) not in (4, 8):
        raise ValueError(f"bits is {bits}: it must be 4 or 8")
    return _compressor(NaturalDithering(int(bits)))


def ef_sign() -> Compressor:
    """Sends each element's sign in one bit; the scale is the mean absolute value.

    Karimireddy et al., EF-SignSGD (ICML 2019), with error feedback on contributions and on sums.
    Beside an optimizer's momentum a training may fail (benchmarks/compression.md).
    """
    return _compressor(EfSign())


def one_bit_sgd() -> Compressor:
    """Sends each element in one bit, as the mean of the elements with its sign.

    Seide et al., 1-bit SGD (Interspeech 2014), with error feedback on both sides, as published: on
    a rank's contributions, and on the sums, where each part belongs to one rank. Beside an
    optimizer's momentum a training may fail.
    """
    return _compressor(OneBitSgd())


def sign_sgd() -> Compressor:
    """Sends each element's sign in one bit; the result is the majority's sign: -1, 0 or 1.

    Bernstein et al., signSGD with majority vote (ICML 2018). It has no error feedback.
    """
    return _compressor(SignSgd())


def signum(beta: float = 0.9) -> Compressor:
    """Sends the sign of each element's momentum in one bit; the result is the majority's sign.

    Bernstein et al. (ICML 2018). Results are -1, 0 or 1. 0 <= beta < 1. It has no error feedback.
    The optimizer's own momentum must be 0.
    """
    if not 0 <= checks.number("beta", beta) < 1:
        raise ValueError(f"beta is {beta}: it must be at least 0 and less than 1")
    return _compressor(Signum(float(beta)))


def power_sgd(rank: int = 1) -> Compressor:
    """Sends a parameter's gradient as a matrix of rank `rank`, at least 1, in two small sums.

    Vogels et al., PowerSGD (NeurIPS 2019). The matrix's rows are the first dimension. Parameters
    with fewer than two dimensions are sent whole, and so are those with no more elements than the
    factors.
    """
    return _compressor(LowRank(checks.count("rank", rank, 1)))


def grace(compressor: Any, memory: Any = None, communicator: str | None = None) -> Compressor:
    """Uses objects with GRACE's interface (methods/grace.py), written for the framework in use.

    memory: None for none. communicator: GRACE's "allreduce", "allgather" or "broadcast", or "sum":
    each rank decompresses its own tensors, and those are summed. The default is "sum" where the
    compressor's aggregate() is a plain sum, else "allgather". Each rank has objects of its own. The
    reduction must be hvd.Average. PyTorch: the optimizer's state_dict includes the dictionaries
    that the objects keep by parameter name.
    """
    needed = [(compressor, "compress"), (compressor, "decompress")]
    if memory is not None:
        needed += [(memory, "compensate"), (memory, "update")]
    for held, method in needed:
        if not callable(getattr(held, method, None)):
            raise TypeError(f"{held!r} has no {method}(), which GRACE's interface has")
    plain = adds(getattr(compressor, "aggregate", None))
    if communicator is None:
        communicator = "sum" if plain else "allgather"
    if communicator not in COMMUNICATORS:
        raise ValueError(f"communicator is {communicator!r}: it must be one of {COMMUNICATORS}")
    if communicator == "sum" and not plain:
        raise ValueError(
            f"aggregate() of {compressor!r} is no plain sum: it has to see what each rank sent, by "
            'communicator="allgather" or "broadcast"'
        )
    if communicator == "broadcast":
        communicator = "allgather"  # with the same result, in fewer calls
    return _compressor(GraceObjects(compressor, memory, communicator))


def _compressor(rule: Rule, block_size: int | None = None) -> Compressor:
    size = default_block_size() if block_size is None else checks.count("block_size", block_size, 1)
    return Compressor(Config.of(rule, size))
