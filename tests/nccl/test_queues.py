"""Streams that share the hardware's queues, where one that waits holds up the others: NCCL's, which
waits for its last collective, does, too, so no design can do with any order of calls."""

from __future__ import annotations

import pytest
from nccl_job import run_well


@pytest.mark.parametrize("way", ["union", "stream", "original"])
@pytest.mark.parametrize(
    ("queues", "order"), [(8, "in_one_order"), (2, "in_one_order"), (32, "in_different_orders")]
)
def test_queues(doubles, way, queues, order):
    env = {"OMNIHVD_GPU": way, "CUDA_DEVICE_MAX_CONNECTIONS": str(queues)}
    run_well(doubles, "queues.py", 2, order, env=env)
