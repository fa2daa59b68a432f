"""Models that are trained over ncclAllReduce, on unions, without a GPU."""

from __future__ import annotations

import pytest
from nccl_job import run_well

pytest.importorskip("torch")


@pytest.mark.parametrize("framework", ["ddp", "horovod"])
def test_training(doubles, framework):
    env = {"OMNIHVD_GPU_CHUNK_BYTES": "65536", "OMP_NUM_THREADS": "1"}
    run_well(doubles, "training.py", 2, framework, env=env, timeout=110)
