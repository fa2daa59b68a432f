"""OMNIHVD_ARITHMETIC: how far sums are from exact ones.

    python benchmarks/arithmetic.py [--ranks 4]

Of sums over so many ranks, by the engine's own functions in blocks of 256, against sums in float64:
the root of the mean of squares, over that of the exact sums. Data: normal values; such of
magnitudes that differ by up to 2^8, and 2^24, inside a block; ranks that nearly cancel each other;
and the ranks' gradients in the twentieth step of a language model (benchmarks/evaluation). Writes
results/arithmetic.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
sys.path.insert(0, str(ROOT))
from benchmarks.evaluation.tasks import Words  # noqa: E402

BLOCK, COUNT, STEPS = 256, 1 << 18, 20


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
    """Of each rank in a step of a language model's training that they make together."""
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


def in_integers(rows: np.ndarray, arithmetic: Any) -> np.ndarray:
    bits = arithmetic.bits_for(len(rows))
    total = np.empty(rows.shape[1], np.float32)
    for first in range(0, rows.shape[1], BLOCK):
        block = rows[:, first : first + BLOCK]
        exponent = max(arithmetic.exponent_of(row) for row in block)
        integers = [arithmetic.to_integers(row, exponent, bits)[0] for row in block]
        total[first : first + BLOCK] = arithmetic.to_floats(sum(integers), exponent, bits)
    return total


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    args = parser.parse_args()
    from omnihvd.bench.command import machine

    found = {**machine(), **vars(args), "errors": errors(args.ranks)}
    (RESULTS / "arithmetic.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
