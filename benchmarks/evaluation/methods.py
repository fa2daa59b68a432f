"""The methods that are compared, each with one setting for all tasks: 1% where there is a ratio."""

from __future__ import annotations

from typing import Any, Callable


def methods() -> dict[str, Callable[[], Any]]:
    import horovod.torch as hvd

    from omnihvd import OmniReduce

    return {
        "none": lambda: OmniReduce,
        "fp16": lambda: hvd.Compression.fp16,
        "block_topk": lambda: OmniReduce.block_topk(0.01),
        "block_random": lambda: OmniReduce.block_random(0.01),
        "topk": lambda: OmniReduce.topk(0.01),
        "randomk": lambda: OmniReduce.randomk(0.01),
        "dgc": lambda: OmniReduce.dgc(0.01),
        "sidco": lambda: OmniReduce.sidco(0.01),
        "sidco gamma": lambda: OmniReduce.sidco(0.01, "gamma"),
        "sidco pareto": lambda: OmniReduce.sidco(0.01, "pareto"),
        "adaptive": lambda: OmniReduce.adaptive(0.01),
        "eight_bit": lambda: OmniReduce.eight_bit(),
        "inceptionn": lambda: OmniReduce.inceptionn(),
        "sketch": lambda: OmniReduce.sketch(),
        "ef_sign": lambda: OmniReduce.ef_sign(),
        "signum": lambda: OmniReduce.signum(),
        "power_sgd": lambda: OmniReduce.power_sgd(1),
    }


def rate(method: str, task: Any) -> float:
    """The learning rate: the task's, but where momentum adds up gradients, or they are signs."""
    if method == "signum":
        return task.sign_rate
    return task.rate / 10 if method == "dgc" else task.rate
