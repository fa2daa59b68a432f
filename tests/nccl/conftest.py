"""The doubles of CUDA and NCCL, built once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / "kernels"), str(Path(__file__).parent)]


@pytest.fixture(scope="session")
def doubles(tmp_path_factory):
    import nccl_job

    kernels = tmp_path_factory.getbasetemp() / "kernels"  # of tests/kernels, too
    kernels.mkdir(exist_ok=True)
    return nccl_job.build(tmp_path_factory.mktemp("doubles"), kernels)
