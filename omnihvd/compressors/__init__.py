"""Compression of dense gradients to blocks, with error feedback, for Horovod's `compression=`.

    compression = block_topk(0.05).with_warmup(epochs=5, steps_per_epoch=steps)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)

What is sent stays dense, with zero blocks in it, which omnihvd's transport skips; so no result is
lost where another rank sent a different block. docs/compression.md has the guide. No framework is
imported before a compressor sees one of its gradients.

Block rules: Fei et al., "Efficient Sparse Collective Communication and its Application to
Accelerate Distributed Deep Learning" (OmniReduce, SIGCOMM 2021), block gradient sparsification.
"""

from __future__ import annotations

from omnihvd.compressors import checks
from omnihvd.compressors.compressor import Compressor, Config, default_block_size
from omnihvd.compressors.counters import stats
from omnihvd.compressors.rules import (
    ElementThreshold,
    RandomBlocks,
    Rule,
    ThresholdBlocks,
    TopBlocks,
)

__all__ = [
    "Compressor",
    "block_random",
    "block_threshold",
    "block_topk",
    "stats",
    "topk_threshold",
]


def block_topk(ratio: float, block_size: int | None = None) -> Compressor:
    """Sends the blocks with the largest L2 norm.

    ratio: of each parameter's blocks, 0 < ratio <= 1; at least one block is sent. block_size:
    elements, counted from the parameter's start, the last block may be short; by default the
    transport's (OMNIHVD_BLOCK_SIZE, else 256).
    """
    return _compressor(TopBlocks(checks.ratio(ratio)), block_size)


def block_random(ratio: float, seed: int = 0, block_size: int | None = None) -> Compressor:
    """Sends randomly drawn blocks, the same on all ranks: the ranks' sum has no more of them.

    The draw depends on `seed`, the parameter's name and its step. `ratio`, `block_size`: as in
    `block_topk`.
    """
    rule = RandomBlocks(checks.ratio(ratio), checks.count("seed", seed, 0))
    return _compressor(rule, block_size)


def block_threshold(threshold: float, block_size: int | None = None) -> Compressor:
    """Sends the blocks whose L2 norm is at least `threshold`, in units of the gradient."""
    return _compressor(ThresholdBlocks(checks.threshold(threshold)), block_size)


def topk_threshold(threshold: float) -> Compressor:
    """Sends the elements whose absolute value exceeds `threshold`, in units of the gradient.

    Sahu et al., "Rethinking gradient sparsification as total error minimization" (NeurIPS 2021):
    for a budget of elements over the whole training, one constant threshold has the least total
    error. Blocks are then partly zero, and travel packed.
    """
    return _compressor(ElementThreshold(checks.threshold(threshold)), None)


def _compressor(rule: Rule, block_size: int | None) -> Compressor:
    size = default_block_size() if block_size is None else checks.count("block_size", block_size, 1)
    return Compressor(Config(rule, size))
