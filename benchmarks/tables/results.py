"""The committed results, and how their figures are written."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
sys.path.insert(0, str(RESULTS.parents[1] / "examples" / "models"))


@functools.cache
def load(name: str) -> Any:
    path = RESULTS / name
    return json.loads(path.read_text()) if path.suffix == ".json" else path.read_text()


def in_ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"


def spread(values: list[float], digits: int) -> str:
    """The mean and the standard deviation of a sample; of fewer than three, the values."""
    if len(values) < 3:
        return " and ".join(f"{value:.{digits}f}" for value in values)
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def joined(texts: list[str]) -> str:
    return " / ".join(texts)


# Results of benchmarks/evaluation.


def pieces(task: str, part: str, method: str) -> list[dict[str, Any]]:
    """One for each seed."""
    return [e for e in load(f"evaluation/{task}-{part}.json") if e["method"] == method]


def step_s(task: str, rate: str, method: str) -> float:
    """Seconds of a step, in the middle one of the runs."""
    return float(median(piece["step_seconds"] for piece in pieces(task, rate, method)))


def ends(task: str, method: str) -> list[float]:
    """Each seed's last quality."""
    return [piece["curve"][-1][1] for piece in pieces(task, "quality", method)]


# Results of benchmarks/bench.


def of(run: str, backend: str, density: float = 1.0, pattern: str = "random") -> dict[str, Any]:
    """The result of one backend at one share of non-zero blocks."""
    for r in load(f"{run}.json")["results"]:
        point = r["point"]
        if (r["backend"], point["density"], point["pattern"]) == (backend, density, pattern):
            return {**r, "median_s": median(r["samples"])}
    raise KeyError(f"{run}.json has no {backend} at {density}, {pattern}")


def ms(run: str, backend: str, density: float = 1.0, pattern: str = "random") -> str:
    return in_ms(of(run, backend, density, pattern)["median_s"])


def horovod(run: str) -> str:
    """Plain Horovod at its best; older results have its ring by itself."""
    found = {r["backend"] for r in load(f"{run}.json")["results"]} & {"horovod", "horovod-ring"}
    return min(found, key=lambda backend: float(of(run, backend)["median_s"]))
