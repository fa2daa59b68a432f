"""Streams that share the hardware's queues, where one that waits holds up the others: NCCL's, which
waits for its last collective, does, too, so no design can do with any order of calls."""

from __future__ import annotations

import pytest
from nccl_job import run_well


@pytest.mark.parametrize("way", ["union", "original"])
@pytest.mark.parametrize(
    ("queues", "order"), [(8, "in_one_order"), (2, "in_one_order"), (32, "in_different_orders")]
)
def test_queues(doubles, way, queues, order):
    env = {"OMNIHVD_GPU": way, "CUDA_DEVICE_MAX_CONNECTIONS": str(queues)}
    run_well(doubles, "queues.py", 2, order, env=env)


@pytest.mark.parametrize("way", ["union", "original"])
def test_queues_of_hosts_with_several_gpus(doubles, way):
    """Their sums are made on communicators of our own, too, with streams of their own."""
    env = {"OMNIHVD_GPU": way, "OMNIHVD_HIERARCHY": "on", "CUDA_DEVICE_MAX_CONNECTIONS": "2"}
    run_well(doubles, "queues.py", 4, "in_one_order", ranks_per_host=2, env=env)


@pytest.mark.parametrize("way", ["union", "original"])
@pytest.mark.parametrize(
    "setting", [{"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}, {"CUDA_DOUBLE_KERNELS": "blocking"}]
)
def test_one_collective_at_a_time(doubles, way, setting):
    """In the order of the calls, of all communicators: by NCCL, or by a tool."""
    env = {"OMNIHVD_GPU": way, "OMNIHVD_HIERARCHY": "on", **setting}
    run_well(doubles, "queues.py", 4, "in_one_order", ranks_per_host=2, env=env)


def test_kernels_that_do_not_fit_beside_each_other(doubles):
    """Sums of one communicator on several streams: NCCL orders them, and so do we."""
    env = {"OMNIHVD_GPU": "union", "OMNIHVD_HIERARCHY": "on", "CUDA_DOUBLE_KERNELS": "alone"}
    run_well(doubles, "streams.py", 4, "several_streams", ranks_per_host=2, env=env)


@pytest.mark.parametrize(
    ("script", "scenario", "ranks"),
    [("union.py", "overflows", 2), ("streams.py", "several_streams", 3)],
)
def test_processes_that_take_turns_on_a_gpu(doubles, script, scenario, ranks):
    """While a kernel of one of them runs, none of another does; NCCL's, which need each other, are
    its own matter. `rest`, which waits, gives way; that another kernel waits is an error always."""
    env = {"OMNIHVD_GPU": "union", "CUDA_DOUBLE_KERNELS": "turns"}
    run_well(doubles, script, ranks, scenario, env=env)
