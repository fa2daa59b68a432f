"""OMNIHVD_ARITHMETIC: the error of sums.

    python benchmarks/arithmetic.py [--ranks 4]
    sudo python benchmarks/arithmetic.py --times     # milliseconds and bytes, on emulated hosts

Sums over --ranks ranks, by the engine's own functions in blocks of 256, are compared with sums in
float64. The error is the root mean square, relative to the exact sums'. Data: normal values; normal
values with magnitudes that differ by up to 2^8, and 2^24, inside a block; ranks that nearly cancel
each other; and the ranks' gradients in the twentieth step of a language model
(benchmarks/evaluation). Times are of 100 MB under Horovod on as many hosts, at 1 and 10 Gbit/s, by
colocated aggregators, with random non-zero blocks. The modes take turns, and each sum is verified
first. Writes results/arithmetic.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).parent / "results" / "arithmetic.json"
sys.path.insert(0, str(ROOT))
from benchmarks.bench.backends import Hosts  # noqa: E402
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.worker import Visit  # noqa: E402
from benchmarks.evaluation.tasks import Words  # noqa: E402
from benchmarks.integer_sums import BLOCK, in_integers  # noqa: E402
from omnihvd.bench.patterns import Point  # noqa: E402

COUNT, STEPS = 1 << 18, 20
MODES = ("float", "integer", "switchml", "fpisa", "fpisa-a")
RATES, DENSITIES, ELEMENTS, TURNS = ("10gbit", "1gbit"), (1.0, 0.1, 0.01), 25_000_000, 3


def data(ranks: int) -> Iterator[tuple[str, np.ndarray]]:
    """float32 [ranks, n], n a multiple of BLOCK."""
    random = np.random.default_rng(1)
    normal = random.standard_normal((ranks, COUNT))
    yield "normal values", normal.astype(np.float32)
    for powers in (8, 24):
        spread = normal * 2.0 ** random.integers(-powers, 1, COUNT)
        yield f"normal values x 2^-{powers} to 1", spread.astype(np.float32)
    signs = np.where(np.arange(ranks) % 2, -1.0, 1.0)[:, None]
    yield "ranks that nearly cancel", (signs * normal[0] + normal * 2.0**-12).astype(np.float32)
    rows = gradients(ranks)
    first = Words.vocabulary * 64  # elements of the embedding
    yield "gradients: embedding", rows[:, :first]
    yield "gradients: layers", rows[:, first : rows.shape[1] // BLOCK * BLOCK]


def gradients(ranks: int) -> np.ndarray:
    """The gradients of each rank in one step of a language model that they train together."""
    torch.manual_seed(1)
    tasks = [Words(rank, ranks) for rank in range(ranks)]
    model = tasks[0].model()
    parameters = list(model.parameters())
    for step in range(STEPS):
        rows = []
        for rank, task in enumerate(tasks):
            inputs, targets = task.batch(rank, step)
            parts = torch.autograd.grad(task.loss(model(inputs), targets), parameters)
            rows.append(torch.cat([part.flatten() for part in parts]))
        with torch.no_grad():
            vector = torch.nn.utils.parameters_to_vector(parameters)
            vector -= Words.rate * torch.stack(rows).mean(0)
            torch.nn.utils.vector_to_parameters(vector, parameters)
    return torch.stack(rows).numpy()


def errors(ranks: int) -> dict[str, dict[str, float]]:
    sys.path.append(str(ROOT / "build" / "tests"))
    from _engine_tests import arithmetic

    found: dict[str, dict[str, float]] = {}
    for name, rows in data(ranks):
        exact = rows.sum(0, dtype=np.float64)
        sums = {
            "float": np.add.accumulate(rows, dtype=np.float32)[-1],
            "integer": in_integers(rows, arithmetic),
            "fpisa": arithmetic.fpisa_sum(rows)[2],
            "fpisa-a": arithmetic.fpisa_sum(rows, True)[2],
        }
        found[name] = {
            kind: float(np.sqrt(np.mean((one - exact) ** 2) / np.mean(exact**2)))
            for kind, one in sums.items()
        }
        print(name, {kind: f"{error:.1e}" for kind, error in found[name].items()}, flush=True)
    return found


def times(hosts: int, rate: str) -> dict[str, Any]:
    """By mode and density, for one sum: seconds, bytes that a host sends, and processor seconds of
    all ranks."""
    network = Hosts(hosts, rate)
    with contextlib.ExitStack() as stack:
        stack.callback(network.close)
        link = network.link_rate(seconds=1)
        sessions = {}
        for mode in MODES:
            env = {"OMNIHVD_WAY": "stream", "OMNIHVD_ARITHMETIC": mode}
            sessions[mode] = stack.enter_context(network.start("omnihvd", env=env))
        points = [Point(ELEMENTS, density) for density in DENSITIES]
        answers = {
            (mode, point): session.visit(Visit(point, True, 0, 1, None))
            for mode, session in sessions.items()
            for point in points
        }
        samples: dict[Any, list[float]] = {key: [] for key in answers}
        for _ in range(TURNS):
            for mode, point in answers:
                one = sessions[mode].visit(Visit(point, False, 0, 3, 2.0))
                samples[mode, point] += one["samples"]
                answers[mode, point] = one
    found: dict[str, Any] = {"link_rate": link}
    for (mode, point), answer in answers.items():
        found.setdefault(mode, {})[str(point.density)] = {
            "samples": samples[mode, point],
            "cpu_s": answer["cpu_s"],
            "bytes_sent": max(c["bytes_sent"] for c in answer["counters"]),
        }
    return found


def save(found: dict[str, Any]) -> None:
    FILE.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--times", nargs="*", metavar="RATE", choices=RATES, help="these instead, of links (root)"
    )
    args = parser.parse_args()
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    if args.times is None:
        found |= {**machine(), "ranks": args.ranks, "errors": errors(args.ranks)}
        save(found)
    for rate in () if args.times is None else args.times or RATES:
        found.setdefault("times", {})[rate] = {**machine(), **times(args.ranks, rate)}
        save(found)


if __name__ == "__main__":
    main()
