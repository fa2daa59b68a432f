"""The cost of methods apart from a training: processor seconds of one core for 25 M elements."""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any, Callable

import torch

from benchmarks.bench.source import source
from omnihvd import compression
from omnihvd.compression import counters, part_sums, torch_ops
from omnihvd.compression.compressor import Compressor
from omnihvd.compression.methods.sidco import DISTRIBUTIONS
from omnihvd.compression.rules import Call, CodedRule
from omnihvd.compression.split import ParameterState, split_by

ELEMENTS = 25_000_000
RATIOS = (0.1, 0.01, 0.001)


def all_methods() -> list[Compressor]:
    return [
        compression.block_topk(0.01),
        compression.block_random(0.01),
        compression.block_threshold(0.9),  # of norms about 0.8
        compression.topk_threshold(0.13),
        compression.topk(0.01),
        compression.global_topk(0.01),
        compression.randomk(0.01),
        compression.dgc(0.01),
        compression.sidco(0.01),
        compression.adaptive(0.01),
        compression.eight_bit(),
        compression.inceptionn(),
        compression.sketch(),
        compression.ef_sign(),
        compression.one_bit_sgd(),
        compression.natural_dithering(),
        compression.sign_sgd(),
        compression.signum(),
    ]


def measure(only: list[str] | None = None) -> list[dict[str, Any]]:
    """{"method", "seconds"} for each method. Thresholds add rounds and kept, and SIDCo's
    torch_topk_seconds. only: factories' names; then no thresholds."""
    torch.set_num_threads(1)
    wanted = [c for c in all_methods() if not only or c.config.rule.factory in only]
    entries = [{"method": repr(c), "seconds": _median(_split(c))} for c in wanted]
    for ratio in () if only else RATIOS:
        topk = _median(functools.partial(_topk, ratio))
        dgc = _threshold(compression.dgc(ratio))
        entries.append({"method": f"dgc's threshold ({ratio})", **dgc})
        for distribution in DISTRIBUTIONS:
            for published in (False, True):
                found = _threshold(compression.sidco(ratio, distribution, published))
                name = f"{'published ' * published}threshold of sidco({ratio}, {distribution})"
                entries.append({"method": name, **found, "torch_topk_seconds": topk})
    about = source()
    return [{**entry, **about} for entry in entries]


def _median(run: Callable[[torch.Tensor], Any], runs: int = 3) -> float:
    """The median for new gradients, after a warm-up on as many others. Results of `run` are called
    in between."""
    seconds = []
    for seed in range(2 * runs):
        given = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed)).div_(20)
        start = time.thread_time()
        after = run(given)
        seconds.append(time.thread_time() - start)
        if after is not None:
            after()
    return statistics.median(seconds[runs:])


def _split(compressor: Any) -> Callable[[Any], Any]:
    state, rule = ParameterState("p"), compressor.config.rule
    if not isinstance(rule, CodedRule):

        def split(gradient: torch.Tensor) -> None:
            split_by(torch_ops, compressor, gradient, state)

        return split
    memory = rule.memory("p", (ELEMENTS,))

    def coded(gradient: torch.Tensor) -> None:
        """Encodes a contribution as one of two ranks; a rank's share of the sum is not counted."""
        feedback = compressor.config.error_feedback
        total = state.accumulate(torch_ops, gradient) if feedback else gradient
        made = part_sums.contribution(rule, rule.values(total.numpy(), memory), 2)
        if feedback:
            total.sub_(torch.from_numpy(made.values)).nan_to_num_(0.0, 0.0, 0.0)

    return coded


def _topk(ratio: float, given: torch.Tensor) -> None:
    torch.topk(given.abs_(), int(ratio * ELEMENTS), sorted=False)


def _threshold(compressor: Any) -> dict[str, float]:
    """Its seconds, rounds of correction, and what it keeps of what it should, means of the same
    gradients without a rest."""
    rule, kept = compressor.config.rule, []
    memory = {k: torch.from_numpy(a) for k, a in rule.memory("p", (ELEMENTS,)).items()}
    call = Call(torch_ops, ELEMENTS, rule.ratio, 0, 0, memory)

    def limit(given: torch.Tensor) -> Callable[[], None]:
        found = rule.limit(given, call)

        def after() -> None:
            kept.append(int((given.abs() > found).sum()))
            if rule.learns:
                rule.learn(kept[-1], call)

        return after

    counters.reset()
    seconds = _median(limit)
    rounds = counters.stats()["rounds"] / len(kept)
    return {"seconds": seconds, "rounds": rounds, "kept": statistics.mean(kept) / call.count}
