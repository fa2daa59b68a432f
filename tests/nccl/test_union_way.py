"""ncclAllReduce by NCCL on the union of the blocks, between real processes, without a GPU."""

from __future__ import annotations

import pytest
from nccl_job import run, run_well

# Small batches, so that there are several in a sum.
UNION = {"OMNIHVD_GPU": "union", "OMNIHVD_GPU_CHUNK_BYTES": "65536"}
JITTER = {**UNION, "CUDA_DOUBLE_JITTER_US": "2000"}
NONBLOCKING = {**UNION, "NCCL_DOUBLE_NONBLOCKING": "1"}


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("ranks", "block_size"), [(2, 256), (3, 32)])
def test_sums(doubles, ranks, block_size):
    env = {**UNION, "OMNIHVD_BLOCK_SIZE": str(block_size)}
    run_well(doubles, "sums.py", ranks, "few", env=env, timeout=120)


@pytest.mark.parametrize(
    ("scenario", "env"),
    [
        ("back_to_back", NONBLOCKING),
        ("several_streams", JITTER),
        ("several_communicators", JITTER),
        ("growing", UNION),
        ("caller_never_waits", UNION),
        ("left_alone", UNION),
    ],
)
def test_streams(doubles, scenario, env):
    run_well(doubles, "streams.py", 3, scenario, env=env)


@pytest.mark.parametrize(("ranks", "env"), [(3, JITTER), (2, NONBLOCKING)])
def test_groups(doubles, ranks, env):
    run_well(doubles, "groups.py", ranks, env=env)


def test_special_values_and_averages(doubles):
    run_well(doubles, "special.py", 2, env=UNION)
    run_well(doubles, "averages.py", 4, env=UNION, ranks_per_host=2)


@pytest.mark.parametrize(
    "scenario",
    [
        "abort_lets_streams_go_on", "abort_during_a_result", "abort_ends_destroy",
        "aborts_in_a_group",
    ],
)  # fmt: skip
def test_abort(doubles, scenario):
    run_well(doubles, "failures.py", 3, scenario, env=UNION)


def test_nobody_is_in_a_call_on_what_is_aborted(doubles):
    env = {**UNION, "NCCL_DOUBLE_CALL_US": "20000"}
    run_well(doubles, "failures.py", 2, "abort_in_calls", env=env)


@pytest.mark.parametrize("scenario", ["a_rank_dies", "shrink_after_a_death"])
def test_a_dead_rank(doubles, scenario):
    results = run(doubles, "failures.py", 3, scenario, env=UNION)
    assert all("all well" in rank.output for rank in results[:-1])


def test_ways_follow_what_the_sums_were(doubles):
    run_well(doubles, "union.py", 2, "adapts", env=UNION)


def test_bytes(doubles):
    run_well(doubles, "union.py", 3, "moves_the_union_only", env=UNION)


def test_tensors_larger_than_the_memory_for_marks(doubles):
    run_well(doubles, "union.py", 2, "in_parts", env=UNION)


def test_a_rank_without_memory(doubles):
    ranks = run(doubles, "union.py", 2, "without_memory", env=UNION)
    assert all("all well" in rank.output for rank in ranks)
    assert "left to NCCL; rank 1: cuMemAlloc failed" in ranks[0].output


@pytest.mark.parametrize(
    ("reason", "setting"),
    [
        ("queues", "CUDA_DEVICE_MAX_CONNECTIONS=1"),
        ("blocking", "CUDA_LAUNCH_BLOCKING=1"),
        ("loading", "CUDA_MODULE_LOADING=LAZY"),
    ],
)
def test_where_streams_cannot_wait_sums_are_left(doubles, reason, setting):
    name, value = setting.split("=")
    run_well(doubles, "passes.py", 2, "always", reason, env={**UNION, name: value})


def test_a_driver_that_waits_with_its_locks_held(doubles):
    env = {**UNION, "CUDA_DOUBLE_LOCKS": "1", "OMNIHVD_TIMEOUT": "2"}
    ranks = run(doubles, "union.py", 2, "held", env=env, timeout=40)
    assert all("all well" in rank.output for rank in ranks)
    assert "a call of CUDA or NCCL has not returned for 2 s" in ranks[0].output


def test_a_rank_that_is_late_is_reported(doubles):
    env = {**UNION, "OMNIHVD_TIMEOUT": "2", "OMNIHVD_STALL_WARNING": "1"}
    ranks = run(doubles, "union.py", 2, "late", env=env)
    assert all("all well" in rank.output for rank in ranks)
    assert "has waited 1 s for other ranks" in ranks[0].output
    assert "waited too long for the other ranks" in ranks[0].output


def test_nothing_is_left_behind(doubles):
    run_well(doubles, "lifetime.py", 2, env=UNION)
