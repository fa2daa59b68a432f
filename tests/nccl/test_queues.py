"""Streams that share the hardware's queues, where one that waits holds up the others."""

from __future__ import annotations

import pytest
from nccl_job import run, run_well

EIGHT = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
# As where the callers' streams have the highest priority, too.
SHARED = {
    **EIGHT, "CUDA_DOUBLE_PRIORITIES_SHARE": "1", "OMNIHVD_GPU": "union", "OMNIHVD_TIMEOUT": "3",
}  # fmt: skip
MANY = "streams, which share 8 hardware queues"


def test_more_streams_than_queues(doubles):
    """Streams that wait for what is streamed hold up others."""
    for rank in run(doubles, "queues.py", 2, "in_one_order", env=EIGHT):
        assert "all well" in rank.output and MANY in rank.output, rank.output


def test_more_streams_than_queues_and_different_orders(doubles):
    run_well(doubles, "queues.py", 2, "in_different_orders", env={**EIGHT, "OMNIHVD_GPU": "union"})


def test_as_many_queues_as_streams(doubles):
    """The shim asks for 32 where it is preloaded."""
    run_well(doubles, "queues.py", 2, "in_different_orders")


@pytest.mark.parametrize("scenario", ["before_a_sum", "in_a_sum"])
def test_a_lock_up_is_noticed(doubles, scenario):
    first, second = run(doubles, "queues.py", 2, scenario, env=SHARED)
    assert "all well" in first.output and "all well" in second.output
    assert "shares a hardware queue with one that waits for it" in first.output, first.output
