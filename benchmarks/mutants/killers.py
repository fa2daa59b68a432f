"""Killers beside the tests: random simulated jobs, and the fuzz targets over their corpora."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from simulator import faults

ROOT = Path(__file__).resolve().parents[2]  # the copy with the mutants
FUZZ = ROOT / "tests" / "fuzz" / "corpus"
SEEDS = 100


@pytest.mark.parametrize("target", sorted(path.name for path in FUZZ.iterdir()))
def test_fuzz(target: str) -> None:
    inputs = sorted(str(path) for path in (FUZZ / target).iterdir())
    subprocess.run([str(ROOT / "build" / "fuzz" / target), *inputs], check=True)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_job(seed: int) -> None:
    faults.run_seed(seed)
