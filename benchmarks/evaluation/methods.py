"""The methods that are compared, each with one setting for all tasks: 1% where there is a ratio.

But 10% where places are random: each waits for 1/ratio steps, and these trainings have 150 to 600.
Not in it, as each is nearly another: block_threshold (block_topk), and SIDCo's other distributions.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch

ADAM_RATE = 0.001


def methods(task: Any) -> dict[str, Callable[[], Any]]:
    """By name: what makes `compression=`."""
    import horovod.torch as hvd

    from omnihvd import OmniReduce

    return {
        "horovod": lambda: OmniReduce,  # in a job without omnihvd
        "none": lambda: OmniReduce,
        "fp16": lambda: hvd.Compression.fp16,
        "natural": lambda: OmniReduce.natural(),
        "int8": lambda: OmniReduce.int8(),
        "int4": lambda: OmniReduce.int4(),
        "qsgd 8 bits": lambda: OmniReduce.qsgd(bits=8),
        "qsgd 4 bits": lambda: OmniReduce.qsgd(bits=4),
        "terngrad": lambda: OmniReduce.terngrad(),
        "sign": lambda: OmniReduce.sign(),
        "one_bit": lambda: OmniReduce.one_bit(),
        "natural_dithering": lambda: OmniReduce.natural_dithering(),
        "ef_sign": lambda: OmniReduce.ef_sign(),
        "one_bit_sgd": lambda: OmniReduce.one_bit_sgd(),
        "block_topk": lambda: OmniReduce.block_topk(0.01),
        "block_topk 10%": lambda: OmniReduce.block_topk(0.1),
        "block_topk, no feedback": lambda: OmniReduce.block_topk(0.01).with_error_feedback(False),
        "block_random 10%": lambda: OmniReduce.block_random(0.1),
        "topk": lambda: OmniReduce.topk(0.01),
        "topk, natural": lambda: OmniReduce.topk(0.01).with_codec("natural"),
        "randomk 10%": lambda: OmniReduce.randomk(0.1),
        "topk_threshold": lambda: OmniReduce.topk_threshold(task.threshold),
        "dgc": lambda: OmniReduce.dgc(0.01),
        "dgc, warm-up": lambda: OmniReduce.dgc(0.01).with_warmup(1, 0.25, task.steps // 5),
        "sidco": lambda: OmniReduce.sidco(0.01),
        "adaptive": lambda: OmniReduce.adaptive(0.01),
        "power_sgd": lambda: OmniReduce.power_sgd(1),
        "sign_sgd": lambda: OmniReduce.sign_sgd(),
        "signum": lambda: OmniReduce.signum(),
        "eight_bit": lambda: OmniReduce.eight_bit(),
        "inceptionn": lambda: OmniReduce.inceptionn(),
        "sketch": lambda: OmniReduce.sketch(),
    }


def sidco(_: Any) -> dict[str, Callable[[], Any]]:
    """By name, "exponential 0.1": where what it keeps is compared with what it should."""
    from omnihvd import OmniReduce

    return {
        f"{distribution} {ratio}": functools.partial(OmniReduce.sidco, ratio, distribution)
        for distribution in ("exponential", "gamma", "pareto")
        for ratio in (0.1, 0.01, 0.001)
    }


def optimizer(kind: str, method: str, model: Any, task: Any) -> torch.optim.Optimizer:
    """kind: "sgd", "momentum" (0.9) or "adam". DGC and Signum have a momentum of their own: under
    "momentum" they are as under "sgd", and the others get the share of their rate that DGC has."""
    own = method.startswith("dgc") or method == "signum"
    if kind == "adam":
        return torch.optim.Adam(model.parameters(), ADAM_RATE)
    if kind == "momentum" and not own:
        return torch.optim.SGD(model.parameters(), 0.3 * task.rate, momentum=0.9)
    return torch.optim.SGD(model.parameters(), rate(method, task))


def rate(method: str, task: Any) -> float:
    """The rate for plain SGD: the task's, unless momentum adds up gradients, or they are signs."""
    if method in ("sign_sgd", "signum"):
        return float(task.sign_rate)
    return float(0.3 * task.rate if method.startswith("dgc") else task.rate)
