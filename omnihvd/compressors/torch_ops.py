"""The operations of rules for elements, for PyTorch; tensorflow_ops.py has the same functions.

Tensors are flat, float32 or float64; numbers are floats. On a CUDA device, a number that depends on
the tensor makes the host wait for the device.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
from torch import Tensor

from omnihvd.compressors import counters

MANY, RUN = 1 << 20, 1 << 10  # elements
CHUNK = 1 << 18  # elements examined together: their copy stays in the processor's cache

abs, sign, trunc, select = torch.abs, torch.sign, torch.trunc, torch.where
times, relu = torch.mul, torch.relu
bucket = torch.bucketize
magnitude = math.fabs
floor, ceil = math.floor, math.ceil
maximum, minimum = max, min
number = float
lgamma = math.lgamma


def log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf if x == 0 else math.nan


def exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def where(condition: bool, yes: float, no: float) -> float:
    return yes if condition else no


def both(one: bool, other: bool) -> bool:
    return one and other


def numbers(vector: Tensor, count: int) -> list[float]:
    return vector.tolist()


def pack(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def element(vector: Tensor, index: float) -> float:
    return float(vector[int(index)])


def with_element(vector: Tensor, index: float, value: float) -> Tensor:
    changed = vector.clone()
    changed[int(index)] = value
    return changed


def loop(condition: Callable, body: Callable, values: tuple) -> tuple:
    """values = body(*values), as long as condition(*values)."""
    while condition(*values):
        values = body(*values)
    return values


def count_rounds(rounds: float) -> None:
    """Counts rounds of threshold correction, for the statistics."""
    counters.add(rounds=int(rounds))


def count(condition: Tensor) -> float:
    return float(condition.count_nonzero())


def mean(x: Tensor) -> float:
    return float(x.mean())


def largest(x: Tensor) -> float:
    return float(x.max())


def sum(x: Tensor) -> float:
    return float(x.sum())


def above(total: Tensor, limit: float) -> Tensor:
    """The elements with absolute values above `limit`, 0 elsewhere; all, if it is not finite."""
    if not math.isfinite(limit):
        return total.clone()
    return torch.nn.functional.hardshrink(total, limit)


def kth_largest(x: Tensor, k: float) -> float:
    """NaN if a NaN is among them."""
    return float(torch.topk(x, int(k), sorted=False).values.min())


def exceedance(total: Tensor, limit: float) -> tuple[float, float, float]:
    """How many elements' absolute values exceed `limit`, and the sum and the sum of squares of the
    excesses."""
    size = len(total) if total.is_cuda else min(CHUNK, len(total))
    buffer = total.new_empty(size)
    count, sums, squares = 0.0, 0.0, 0.0
    for chunk in total.split(size):
        over = torch.abs(chunk, out=buffer[: len(chunk)])
        if limit > 0:
            over = over.sub_(limit).clamp_min_(0)
        sums += float(over.sum())
        squares += float(over.dot(over))
        count += float(over.sign_().sum())  # several times as fast as count_nonzero()
    return count, sums, squares


def mean_log(total: Tensor) -> float:
    """The mean logarithm of the absolute values that are not 0. Logarithms are slow: of many
    elements it takes only runs from all over the tensor."""
    if len(total) >= MANY:
        total = total[: len(total) // RUN * RUN].view(-1, RUN)[::8].reshape(-1)
    logs = total.abs().log_()
    nonzero = int(total.count_nonzero())
    if nonzero < len(total):
        logs.masked_fill_(total == 0, 0)
    return float(logs.sum()) / max(nonzero, 1)


def random_indices(count: float, elements: int, seed: int, call: Any) -> Tensor:
    """`count` of `elements`, drawn with replacement, by the parameter, its step and `seed`."""
    mixed = (seed * 1_000_003 + call.seed) * 1_000_003 + call.step
    generator = torch.Generator().manual_seed(mixed % 2**63)
    return torch.randint(elements, (int(count),), generator=generator)


def take(x: Tensor, indices: Tensor) -> Tensor:
    return x[indices.to(x.device)]


def only(total: Tensor, indices: Tensor) -> Tensor:
    """`total` at the indices, 0 elsewhere."""
    indices = indices.to(total.device)
    return torch.zeros_like(total).index_copy_(0, indices, total.index_select(0, indices))


def quantiles(x: Tensor, points: int) -> Tensor:
    """`points` elements of it, from the least to the largest."""
    steps = torch.arange(points, dtype=torch.float64, device=x.device) / (points - 1)
    return x.sort().values[(steps * (len(x) - 1)).long()]


def constant(values: Any, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def bucket_means(x: Tensor, buckets: Tensor, count: int) -> Tensor:
    sums = x.new_zeros(count).index_add_(0, buckets, x)
    return sums / torch.bincount(buckets, minlength=count).clamp_min_(1)


def like(x: Tensor, total: Tensor) -> Tensor:
    """x in the dtype and on the device of `total`."""
    return x.to(total)


def finite(x: Tensor) -> Tensor:
    """x with 0 in place of NaN and infinities."""
    return x.nan_to_num(0.0, 0.0, 0.0)
