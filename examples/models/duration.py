"""Estimates how long a run of run.py will take, from a trial step on this machine."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from typing import Any, NamedTuple

import torch
import training
from compared import ALONE, WITH, WITHOUT
from links import BEST, REPORTED
from registry import MODELS

from benchmarks.bench.report import duration_text
from omnihvd.rates import rate_bytes

START_S = 8.0  # until a job's ranks have imported all and met, if each has a core
POINTS = 10  # at which a training of quality is judged


class Work(NamedTuple):
    """The work of one part."""

    jobs: int  # with ranks of their own
    steps: int  # of all jobs together
    judged: int = 0  # so often is what is held out looked at
    slow_s: float = 0  # on links, in seconds for each byte of the gradients


def work_of(args: Namespace, name: str, pieces: int) -> dict[str, Work]:
    """pieces: trainings of quality."""
    # Trainings and jobs of one measurement on links. Jobs of the report come before all of them.
    trainings, jobs, before = len(BEST) * len(WITHOUT) + len(WITH), len(BEST) + 1, 3
    if args.only:
        trainings, jobs, before = len(ALONE[args.only]), len(ALONE[args.only]), 0
    whole = args.steps
    rates = [] if args.local else args.rates
    links = Work(jobs * max(len(rates), 1), whole * trainings * max(len(rates), 1))
    if rates:
        slow = sum(2 * whole * trainings / rate_bytes(rate) for rate in rates)
        reported = REPORTED if before else 0
        links = Work(links.jobs + before, links.steps + reported, 0, slow)
    quality = args.quality_steps or MODELS[name].steps
    slow = 2 * pieces * quality / rate_bytes(rates[0]) if rates else 0
    work = {
        "zeros": Work(0, 1 if args.full else args.zeros_steps),
        "links": links,
        "quality": Work(pieces, pieces * quality, pieces * min(POINTS, quality), slow),
    }
    return {part: work[part] for part in args.parts}


class Tried(NamedTuple):
    """Seconds, of one process with one thread; bytes of the gradients."""

    begin: float  # to read the data and draw the model
    step: float
    judge: float
    size: float


def tried(name: str, args: Namespace) -> Tried:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    moments = [time.perf_counter()]

    def passed() -> float:
        moments.append(time.perf_counter())
        return moments[-1] - moments[-2]

    try:
        task: Any = MODELS[name](args.data, "full" if args.full else "default", 0, args.hosts)
        model = training.drawn_model(task, 0)
        optimizer, begin, steps = task.optimizer(model), passed(), []
        for step in range(2):
            model.zero_grad()
            task.loss(model, task.batch(0, step)).backward()
            optimizer.step()
            steps.append(passed())
        if "quality" in args.parts:
            task.quality(model)
        size = sum(4.0 * p.numel() for p in model.parameters() if p.requires_grad)
        return Tried(begin, min(steps), passed(), size)
    finally:
        torch.set_num_threads(threads)


def seconds(work: Work, one: Tried, hosts: int) -> float:
    shared = max(1.0, hosts / (os.cpu_count() or 1))  # ranks of a core
    if work.jobs == 0:  # one process has the batches of all ranks, and looks at each gradient
        return one.begin + work.steps * hosts * (one.step + one.size / 1e9)
    # Each rank also copies and sums its gradients, on a core that others share.
    step = shared * (one.step + 4 * one.size / 1e9)
    ends = one.judge * work.judged
    return (
        shared * (work.jobs * (START_S + one.begin) + ends)
        + work.steps * step
        + (work.slow_s * one.size)
    )


def told(name: str, args: Namespace, pieces: int) -> str:
    """The sentence, with what takes longest and how it is made short."""
    one = tried(name, args)
    takes = {part: seconds(w, one, args.hosts) for part, w in work_of(args, name, pieces).items()}
    parts = ", ".join(f"{part} {duration_text(s)}" for part, s in takes.items())
    return (
        f"{name}: about {duration_text(sum(takes.values()))} ({parts}); "
        "--steps N makes all parts short, and so do --parts, fewer --seeds and --rates"
    )
