"""What methods cost apart from a training: processor seconds of one core for 25 M elements."""

from __future__ import annotations

import functools
import time
from typing import Any, Callable

import torch

from omnihvd import compressors
from omnihvd.compressors import torch_ops
from omnihvd.compressors.rules import Call
from omnihvd.compressors.torch_split import ParameterState, split_by

ELEMENTS = 25_000_000
RATIOS = (0.1, 0.01, 0.001)


def measure() -> list[dict[str, Any]]:
    """Of each method, {"method", "seconds"}; of SIDCo's thresholds also torch_topk_seconds."""
    torch.set_num_threads(1)
    values = torch.randn(ELEMENTS) / 20
    entries = [
        {"method": repr(compressor), "seconds": _least(_split(compressor), values)}
        for compressor in (
            compressors.block_topk(0.01),
            compressors.block_random(0.01),
            compressors.block_threshold(0.9),  # of norms about 0.8
            compressors.topk_threshold(0.13),
            compressors.topk(0.01),
            compressors.randomk(0.01),
            compressors.dgc(0.01),
            compressors.sidco(0.01),
            compressors.adaptive(0.01),
            compressors.eight_bit(),
            compressors.inceptionn(),
            compressors.sketch(),
            compressors.ef_sign(),
            compressors.signum(),
        )
    ]
    for ratio in RATIOS:
        topk = _least(functools.partial(_topk, ratio), values)
        for distribution in ("exponential", "gamma", "pareto"):
            seconds = _least(_threshold(compressors.sidco(ratio, distribution), values), values)
            name = f"threshold of sidco({ratio}, {distribution})"
            entries.append({"method": name, "seconds": seconds, "torch_topk_seconds": topk})
    return entries


def _least(run: Callable[[Any], Any], values: torch.Tensor, runs: int = 3) -> float:
    """On copies of the values, which it may overwrite."""
    seconds = []
    for _ in range(runs):
        given = values.clone()
        start = time.thread_time()
        run(given)
        seconds.append(time.thread_time() - start)
    return min(seconds)


def _split(compressor: Any) -> Callable[[Any], Any]:
    state = ParameterState("p")
    return lambda gradient: split_by(compressor, gradient, state)


def _topk(ratio: float, given: torch.Tensor) -> None:
    torch.topk(given.abs_(), int(ratio * ELEMENTS), sorted=False)


def _threshold(compressor: Any, values: torch.Tensor) -> Callable[[Any], Any]:
    rule, memory = compressor.config.rule, {}
    for kind, array in rule.memory("p", (ELEMENTS,)).items():
        memory[kind] = torch.from_numpy(array)
    call = Call(torch_ops, ELEMENTS, rule.ratio, 0, 0, memory)
    for _ in range(20):  # until it has as many stages as it wants
        rule.learn(int((values.abs() > rule.limit(values, call)).sum()), call)
    return lambda given: rule.limit(given, call)
