"""ncclAllReduce by NCCL on the union of the blocks, between real processes, without a GPU."""

from __future__ import annotations

import re

import pytest
from nccl_job import run, run_well

# Small batches, so that there are several in a sum.
UNION = {"OMNIHVD_GPU": "union", "OMNIHVD_GPU_CHUNK_BYTES": "65536"}
JITTER = {**UNION, "CUDA_DOUBLE_JITTER_US": "2000"}
NONBLOCKING = {**UNION, "NCCL_DOUBLE_NONBLOCKING": "1"}

# Hosts with several GPUs: sums are made on two levels.
LEVELS = {**UNION, "OMNIHVD_HIERARCHY": "on"}

# Enough for one of each stream: ranks may use communicators in different orders (test_queues.py).
MANY_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
# Enough for the streams of groups.py and of NCCL, if ours take none of them.
FIVE_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "5"}


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("ranks", "block_size"), [(2, 256), (3, 32)])
def test_sums(doubles, ranks, block_size):
    env = {**UNION, "OMNIHVD_BLOCK_SIZE": str(block_size)}
    run_well(doubles, "sums.py", ranks, "few", env=env, timeout=120)


@pytest.mark.parametrize(
    ("scenarios", "env"),
    [
        (("several_streams", "several_communicators"), JITTER),
        (("growing", "caller_never_waits", "left_alone"), UNION),
        (("back_to_back",), NONBLOCKING),
        (("back_to_back",), {"OMNIHVD_GPU": "auto"}),  # which does not stream
        (("back_to_back",), {**UNION, "CUDA_DOUBLE_LAUNCHES": "4"}),
    ],
)
def test_streams(doubles, scenarios, env):
    run_well(doubles, "streams.py", 3, *scenarios, env=env)


@pytest.mark.parametrize(
    ("ranks", "env"), [(3, {**JITTER, **FIVE_QUEUES}), (2, {**NONBLOCKING, **FIVE_QUEUES})]
)
def test_groups(doubles, ranks, env):
    run_well(doubles, "groups.py", ranks, env=env)


@pytest.mark.parametrize("way", ["original", "union"])
@pytest.mark.parametrize("levels", ["off", "on"])
def test_calls_that_are_grouped_on_some_ranks_only(doubles, way, levels):
    env = {**UNION, **MANY_QUEUES, "OMNIHVD_GPU": way, "OMNIHVD_HIERARCHY": levels}
    run_well(doubles, "grouped_elsewhere.py", 4, ranks_per_host=2, env=env, timeout=40)


def test_special_values_and_averages(doubles):
    run_well(doubles, "special.py", 2, env=UNION)
    run_well(doubles, "averages.py", 4, env=UNION, ranks_per_host=2)


@pytest.mark.parametrize(
    "scenario",
    [
        "abort_lets_streams_go_on", "abort_during_a_result", "abort_ends_destroy",
        "aborts_in_a_group", "healthy_abort",
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


def test_auto(doubles):
    run_well(doubles, "union.py", 2, "auto", env={**UNION, "OMNIHVD_GPU": "auto"})


def test_auto_goes_by_the_network(doubles):
    env = {**UNION, "OMNIHVD_GPU": "auto", "NCCL_DOUBLE_NS": "20000,0"}
    run_well(doubles, "union.py", 2, "leaves_fast_sums", env=env)


@pytest.mark.parametrize("env", [UNION, NONBLOCKING])
def test_calls_far_ahead_of_the_device(doubles, env):
    run_well(doubles, "union.py", 3, "far_ahead", env=env)


def test_a_rank_that_waits_for_its_device_says_so(doubles):
    env = {**UNION, "OMNIHVD_STALL_WARNING": "1"}
    ranks = run(doubles, "union.py", 2, "waits_for_its_device", env=env)
    assert "for the device to begin an ncclAllReduce called 64 calls before" in ranks[0].output
    assert all("all well" in rank.output for rank in ranks)


def test_bytes(doubles):
    run_well(doubles, "union.py", 3, "moves_the_union_only", env=UNION)


def test_no_sum_is_left_out_of_the_counts(doubles):
    run_well(doubles, "union.py", 3, "counts_all_sums", env=UNION)


@pytest.mark.parametrize(
    ("scenario", "env"),
    [
        ("overflows", UNION),
        ("overflows", JITTER),
        ("driver_locks", {**UNION, "CUDA_DOUBLE_LOCKS": "1"}),
        ("other_sizes_are_connected", {**UNION, "NCCL_DOUBLE_CONNECT": "1"}),
        ("the_device_has_failed", UNION),
    ],
)
def test_union(doubles, scenario, env):
    run_well(doubles, "union.py", 2, scenario, env=env)


@pytest.mark.parametrize(
    ("ranks", "each", "env"),
    [
        (4, 2, {**LEVELS, "CUDA_DOUBLE_JITTER_US": "2000"}),
        (6, 3, {**LEVELS, "NCCL_DOUBLE_NONBLOCKING": "1"}),
        (4, 2, {**LEVELS, "CUDA_DOUBLE_KERNELS": "alone"}),
        (4, 2, {**LEVELS, "CUDA_DOUBLE_KERNELS": "blocking"}),
        (4, 2, {**LEVELS, "NCCL_LAUNCH_ORDER_IMPLICIT": "1", "NCCL_DOUBLE_CONNECT": "1"}),
    ],
)
def test_two_levels(doubles, ranks, each, env):
    run_well(doubles, "levels.py", ranks, "union_levels", ranks_per_host=each, env=env)


def test_bytes_on_two_levels(doubles):
    words = ("union.py", 6, "moves_the_union_on_two_levels")
    run_well(doubles, *words, ranks_per_host=3, env=LEVELS)


@pytest.mark.parametrize(
    "scenario",
    [pytest.param("overflows", marks=pytest.mark.slow), "other_sizes_are_connected"],
)
def test_union_on_two_levels(doubles, scenario):
    env = {**LEVELS, "NCCL_DOUBLE_CONNECT": "1"}
    run_well(doubles, "union.py", 4, scenario, ranks_per_host=2, env=env)


@pytest.mark.parametrize("scenario", ["abort_lets_streams_go_on", "aborts_in_a_group"])
def test_abort_on_two_levels(doubles, scenario):
    run_well(doubles, "failures.py", 4, scenario, ranks_per_host=2, env=LEVELS)


def test_a_dead_rank_on_two_levels(doubles):
    results = run(doubles, "failures.py", 4, "shrink_after_a_death", ranks_per_host=2, env=LEVELS)
    assert all("all well" in rank.output for rank in results[:-1])


def test_groups_on_two_levels(doubles):
    env = {**LEVELS, **NONBLOCKING, **MANY_QUEUES}
    run_well(doubles, "groups.py", 4, ranks_per_host=2, env=env)


def test_hosts_with_different_numbers_of_gpus(doubles):
    words = ("levels.py", 3, "union_one_level")
    for rank in run(doubles, *words, ranks_per_host=2, env=LEVELS)[:1]:
        assert "all well" in rank.output, rank.output
        assert "the hosts have different numbers of them" in rank.output


@pytest.mark.parametrize(
    ("what", "env"), [("no_communicators", UNION), ("union_one_level", LEVELS)]
)
def test_a_device_without_room_for_more_communicators(doubles, what, env):
    """By default the shim makes none; if it is told to, it does without those that do not fit."""
    env = {**env, "CUDA_DOUBLE_MOST_DEVICE_BYTES": "100000000"}
    run_well(doubles, "levels.py", 4, what, ranks_per_host=2, env=env)


@pytest.mark.parametrize(("rank", "call"), [(2, "ncclGetUniqueId"), (3, "ncclCommInitRankConfig")])
def test_no_communicator_for_hosts(doubles, rank, call):
    words = ("levels.py", 4, "no_communicator_for_hosts", rank, call)
    ranks = run(doubles, *words, ranks_per_host=2, env=LEVELS)
    assert all("all well" in one.output for one in ranks), ranks
    assert (
        f"sum without reducing inside the hosts first: rank {rank}: {call} failed"
        in ranks[0].output
    )


def test_a_rank_dies_in_the_rest(doubles):
    *others, died = run(doubles, "union.py", 3, "a_rank_dies_in_the_rest", env=UNION, check=False)
    assert died.returncode < 0
    assert all("all well" in rank.output for rank in others), others


def test_a_rank_without_memory(doubles):
    ranks = run(doubles, "union.py", 2, "without_memory", env=UNION)
    assert all("all well" in rank.output for rank in ranks)
    assert "a communicator is left to NCCL; rank 1: cuMemAlloc failed" in ranks[0].output


@pytest.mark.parametrize("kernel", ["mark", "unite", "gather", "spread"])
@pytest.mark.parametrize("env", [UNION, LEVELS])
def test_kernels_that_are_wrong_on_a_rank(doubles, kernel, env):
    env = {**env, "CUDA_DOUBLE_BROKEN": f"1:{kernel}"}
    ranks = run(doubles, "union.py", 4, "with_wrong_kernels", env=env, ranks_per_host=2)
    assert all("all well" in rank.output for rank in ranks)
    said = re.findall(
        r"a communicator is left to NCCL; rank \d: omnihvd's kernels sum wrongly on this GPU "
        r"\(float32, element \d+: \w+ where \w+ was expected\): remove OMNIHVD_KERNEL_CACHE's",
        ranks[0].output,
    )
    assert said, ranks[0].output


def test_nothing_is_left_behind(doubles):
    run_well(doubles, "lifetime.py", 2, env=UNION)
