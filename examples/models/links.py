"""Steps on links of a given rate: measured by each method, and predicted by the report."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import model_jobs
from compared import WAYS, WITH, WITHOUT
from model_jobs import OFF, Tell

from benchmarks.bench.lab import Lab
from benchmarks.bench.settings import HOROVOD, Setting
from benchmarks.bench.source import source
from benchmarks.machines import measured_machine
from omnihvd.report import figures, samples
from omnihvd.report.predictions import Model

# The fastest of Open MPI's settings there (benchmarks/training.py tries seven).
BEST = [s for s in HOROVOD if s.name in ("yielding, ring", "yielding, segmented ring")]
SCHEMES = {"horovod": "ring", "fp16": "fp16", "omnireduce": "omnireduce"}
SCHEMES |= {"codec": "qsgd4", "block_topk": "block_topk"}
SMALL, LARGE = 250_000, 6_250_000  # floats, of sums that say what hosts can do
REPORTED = 16  # steps; the report samples some
# Of losses, relative: sums in another order differ in their last bits, and optimizers that divide
# by small gradients make more of that from step to step.
TOLERANCE, COMPARED = 1e-3, 10


class Differs(Exception):
    """OmniReduce is lossless, but gave other losses."""


def measure(
    given: Mapping[str, Any], hosts: int, rate: str | None, tell: Tell, timeout: float
) -> dict[str, Any]:
    """{"settings": the seconds of a step of plain Horovod by setting, "methods": what worker.py
    says of each}. omnihvd gets Open MPI's settings that suit plain Horovod best, as a user who
    changes one argument keeps them. rate: None: on this machine alone."""
    lab = Lab(hosts, rate=rate) if rate else None
    try:
        tried: dict[str, list[dict[str, Any]]] = {}
        for setting in BEST:
            tried[setting.name] = model_jobs.run(
                {**given, "methods": WITHOUT},
                hosts,
                lambda what, *n, name=setting.name: tell(f"{rate}, {name}, {what}", *n),  # type: ignore[misc]
                **{"lab": lab, "mca": setting.mca, "env": OFF, "timeout": timeout},
            )
        best = [min(tried, key=lambda name: tried[name][i]["step_s"]) for i in range(len(WITHOUT))]
        (kept,) = (setting for setting in BEST if setting.name == best[0])
        ours = model_jobs.run(
            {**given, "methods": WITH},
            hosts,
            lambda what, *n: tell(f"{rate}, {what}", *n),
            **{"lab": lab, "mca": kept.mca, "timeout": timeout},
        )
    finally:
        if lab:
            lab.close()
    methods = {
        method: {**tried[best[i]][i], "setting": best[i]} for i, method in enumerate(WITHOUT)
    }
    methods |= {entry["method"]: entry for entry in ours}
    first, second = (entries[0]["losses"] for entries in tried.values())
    agreed = methods["horovod"]["losses"][: alike(first, second)]
    check(agreed, methods["omnireduce"]["losses"])
    settings = {name: entries[0]["step_s"] for name, entries in tried.items()}
    return {"settings": settings, "methods": methods}


def measure_alone(
    ways: Sequence[str],
    given: Mapping[str, Any],
    hosts: int,
    rate: str | None,
    settings: Mapping[str, float],
    tell: Tell,
    timeout: float,
) -> dict[str, dict[str, Any]]:
    """By way what worker.py says of it. Each has a job of its own, since a job has one environment.
    settings: the seconds of plain Horovod's steps, by Open MPI's settings; these
    jobs have the best of them, as omnihvd's others do."""
    kept = best_of(settings)
    found = {}
    with Lab(hosts, rate=rate) if rate else nullcontext() as lab:
        for way in ways:
            (entry,) = model_jobs.run(
                {**given, "methods": [way]},
                *(hosts, lambda what, *n: tell(f"{rate}, {what}", *n)),
                **{"lab": lab, "mca": kept.mca, "env": WAYS[way].env, "timeout": timeout},
            )
            found[way] = {**source(), **entry, "setting": kept.name}
    return found


def best_of(settings: Mapping[str, float]) -> Setting:
    """settings: the seconds of plain Horovod's steps, by Open MPI's settings."""
    return min(BEST, key=lambda setting: settings.get(setting.name, float("inf")))


def alike(one: list[float], other: list[float]) -> int:
    """How many steps' losses are the same, but for a tolerance."""
    same = [abs(a - b) <= TOLERANCE * abs(a) for a, b in zip(one[:COMPARED], other)]
    return [*same, False].index(False)


def check(plain: list[float], ours: list[float]) -> None:
    """plain: as far as plain Horovod agrees with itself, as a model may make much of last bits."""
    step = alike(plain, ours)
    if step < min(len(plain), COMPARED):
        a, b = plain[step], ours[step]
        raise Differs(f"the losses differ at step {step + 1}: {a} and, with OmniReduce, {b}")


def predict(
    given: Mapping[str, Any], hosts: int, rates: list[str], tell: Tell, timeout: float
) -> dict[str, dict[str, float]]:
    """Seconds of a step by rate and method, from a report made on links that nothing slows, and
    from what hosts that share this machine's cores can do, all at once."""
    setting: Setting = BEST[-1]
    with tempfile.TemporaryDirectory() as name, Lab(hosts, rate=None) as lab:
        common: dict[str, Any] = {"lab": lab, "timeout": timeout}
        reported = {**given, "methods": ["horovod"], "steps": REPORTED, "seeds": [0], "points": 0}
        model_jobs.run(
            *(reported, hosts, lambda what, *n: tell(f"report, {what}", *n)),
            **common,
            **{"mca": setting.mca, "env": OFF},
            under=["-m", "omnihvd", "--report", name],
        )
        seen = samples.load_all([Path(name)])
        parameters = figures.measured(seen)
        buffers = figures.job_buffers(seen, parameters)
        timing, copied = figures.timing(seen), figures.copied_bytes(seen, buffers)
        machines = {}
        for looks, environment in ((False, OFF), (True, {"OMNIHVD_WAY": "stream"})):
            mca = {} if looks else setting.mca
            (found,) = model_jobs.run(
                {"calibrate": [SMALL if looks else 1, LARGE], "take_over": looks, "timed": True},
                *(hosts, lambda *_: None),
                **{"mca": mca, "env": environment, **common},
            )
            (latency, _, _), (zeros, ones, copy) = found["calibrated"]
            machines[looks] = measured_machine(
                latency, zeros, ones, copy, 4.0 * LARGE, hosts, looks
            )
    predicted: dict[str, dict[str, float]] = {}
    for method, scheme in SCHEMES.items():
        model = Model(buffers, timing, hosts, machines[method in WITH], copied)
        for rate in rates:
            predicted.setdefault(rate, {})[method] = model.predict(scheme, rate).step_s
    return predicted
