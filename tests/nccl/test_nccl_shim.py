"""ncclAllReduce end to end, between real processes, where there is no GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from nccl_job import run, run_well

JITTER = {"CUDA_DOUBLE_JITTER_US": "2000"}


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("ranks", "block_size"), [(2, 256), (3, 32)])
def test_sums(doubles, ranks, block_size):
    env = {"OMNIHVD_BLOCK_SIZE": str(block_size)}
    run_well(doubles, "sums.py", ranks, env=env, timeout=120)


@pytest.mark.parametrize("env", [{}, JITTER, {"NCCL_DOUBLE_NONBLOCKING": "1"}])
def test_streams(doubles, env):
    scenarios = (
        "back_to_back", "several_streams", "several_communicators", "growing",
        "caller_never_waits", "left_alone",
    )  # fmt: skip
    run_well(doubles, "streams.py", 3, *scenarios, env=env)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("env", [JITTER, {"NCCL_DOUBLE_NONBLOCKING": "1"}])
def test_groups(doubles, ranks, env):
    run_well(doubles, "groups.py", ranks, env=env)


def test_groups_with_calls_that_are_left(doubles):
    """On ranks whose non-blocking communicators take different times to queue them."""
    run_well(doubles, "mixed_groups.py", 2, env={"NCCL_DOUBLE_NONBLOCKING": "1"})


def test_special_values(doubles):
    run_well(doubles, "special.py", 2)


def test_calls_that_are_not_ours_by_their_arguments(doubles):
    run_well(doubles, "passes.py", 2, "by_arguments")


def test_small_tensors_are_left(doubles):
    run_well(doubles, "passes.py", 2, "by_size", env={"OMNIHVD_GPU_MIN_BYTES": "10000"})


NVTX = r"""
#include <cstdio>
#include <cstdlib>
extern "C" int nvtxRangePushA(const char* text) { return std::fprintf(stderr, "<%s>\n", text); }
extern "C" int nvtxRangePop() { return std::fputs("<end>\n", stderr); }
"""


@pytest.mark.parametrize("way", ["stream", "union"])
def test_a_profiler_sees_ranges(doubles, tmp_path, way):
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o"]
    command.append(str(tmp_path / "libnvtx3interop.so.1"))
    subprocess.run(command, input=NVTX, text=True, check=True, timeout=60)
    where = {"LD_LIBRARY_PATH": str(tmp_path), "OMNIHVD_GPU": way}
    for profiler in ({}, {"NVTX_INJECTION64_PATH": "its own"}):
        for rank in run(doubles, "streams.py", 2, "back_to_back", env={**where, **profiler}):
            begun, ended = rank.output.count(f"<omnihvd {way}, "), rank.output.count("<end>")
            assert begun == ended and (begun > 0) == bool(profiler), rank.output


def test_off(doubles):
    run_well(doubles, "passes.py", 2, "off", env={"OMNIHVD_GPU": "original"})


def test_disabled(doubles):
    run_well(doubles, "passes.py", 2, "always", "disabled", env={"OMNIHVD_ENABLE": "0"})


def test_no_kernels_for_the_gpu(doubles, tmp_path):
    env = {"OMNIHVD_KERNEL_CACHE": str(tmp_path)}
    ranks = run(doubles, "passes.py", 2, "always", "kernels", env=env)
    assert all("all well" in rank.output for rank in ranks)
    assert "`omnihvd kernels` on this host makes it" in ranks[0].output


def test_ranks_of_one_host_are_left(doubles):
    run_well(doubles, "passes.py", 2, "always", "one host", ranks_per_host=2)


def test_a_way_for_one_communicator(doubles):
    run_well(doubles, "passes.py", 2, "chosen")


def test_ranks_that_choose_different_ways(doubles):
    for rank in run(doubles, "passes.py", 2, "chosen_by_one"):
        assert "all well" in rank.output
        assert "rank 1 has chosen another way for this communicator than rank 0" in rank.output


def test_a_rank_without_memory_leaves_large_tensors(doubles):
    ranks = run(doubles, "passes.py", 3, "without_memory")
    assert all("all well" in rank.output for rank in ranks)
    assert "bytes or more are left to NCCL; rank 1: cuMemHostAlloc failed" in ranks[0].output


def test_groups_that_are_only_simulated(doubles):
    run_well(doubles, "passes.py", 2, "simulated")


def test_a_communicator_is_not_split_while_it_is_busy(doubles):
    run_well(doubles, "levels.py", 4, "busy", ranks_per_host=2)


def test_averages_that_fit_the_type_though_sums_do_not(doubles):
    run_well(doubles, "averages.py", 4)
    run_well(doubles, "averages.py", 4, ranks_per_host=2)


def test_a_communicator_of_one(doubles):
    run_well(doubles, "passes.py", 2, "one_rank")


def test_several_ranks_in_a_process(doubles):
    run_well(doubles, "passes.py", 2, "ranks_in_a_process")


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_dead_rank_is_a_remote_error(doubles, ranks):
    results = run(doubles, "failures.py", ranks, "a_rank_dies")
    for rank in results[:-1]:
        assert "all well" in rank.output and f"rank {ranks - 1}" in rank.output


@pytest.mark.parametrize(("ranks", "each", "words"), [(3, 0, ()), (4, 2, ("hosts",))])
def test_shrink(doubles, ranks, each, words):
    words = ("shrink_after_a_death", *words)
    results = run(doubles, "failures.py", ranks, *words, ranks_per_host=each)
    assert all("all well" in rank.output for rank in results[:-1])


@pytest.mark.parametrize(
    "scenario",
    [
        "abort_lets_streams_go_on", "abort_during_a_result", "abort_ends_destroy",
        "aborts_in_a_group",
    ],
)  # fmt: skip
def test_abort(doubles, scenario):
    run_well(doubles, "failures.py", 3, scenario)


def test_a_rank_that_never_comes(doubles):
    env = {"OMNIHVD_TIMEOUT": "2", "OMNIHVD_STALL_WARNING": "1"}
    results = run(doubles, "failures.py", 3, "a_rank_never_comes", env=env)
    assert all("all well" in rank.output for rank in results)
    assert "Did one fail, or does one not use omnihvd?" in results[0].output


def test_nothing_is_left_behind(doubles):
    run_well(doubles, "lifetime.py", 2)


LEVELS = {
    "two_levels": {},
    "compress_first": {"OMNIHVD_COMPRESS_FIRST": "1"},
    "one_level": {"OMNIHVD_HIERARCHY": "off"},
}


@pytest.mark.parametrize("scenario", LEVELS)
@pytest.mark.parametrize(("ranks", "each"), [(4, 2), (6, 3)])
def test_hosts_with_several_gpus(doubles, ranks, each, scenario):
    env = {**JITTER, **LEVELS[scenario]}
    run_well(doubles, "levels.py", ranks, scenario, ranks_per_host=each, env=env)


def test_hosts_with_different_numbers_of_gpus(doubles):
    results = run(
        doubles, "levels.py", 3, "one_level", ranks_per_host=2, env={"OMNIHVD_LOG": "info"}
    )
    assert all("all well" in rank.output for rank in results)
    assert "the hosts have different numbers of them" in results[0].output


@pytest.mark.parametrize("levels", ["two_levels", "compress_first"])
def test_a_dead_rank_of_a_host_with_several(doubles, levels):
    results = run(
        doubles, "levels.py", 4, "a_rank_dies", levels, ranks_per_host=2, env=LEVELS[levels]
    )
    assert all("all well" in rank.output for rank in results[:-1])


@pytest.mark.parametrize("levels", LEVELS)
def test_abort_with_more_queued(doubles, levels):
    env = {**LEVELS[levels], "OMNIHVD_SLOTS": "1"}
    run_well(
        doubles, "departures.py", 4, "abort_with_more_queued", ranks_per_host=2, env=env,
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3])
def test_abort_in_the_middle(doubles, ranks):
    env = {"OMNIHVD_SLOTS": "1", "OMNIHVD_MESSAGE_BYTES": "2048"}  # hundreds of messages
    run_well(doubles, "departures.py", ranks, "abort_in_the_middle", env=env)


def test_a_part_of_the_engine_fails(doubles):
    env = {"OMNIHVD_STREAMS": "2", "OMNIHVD_TIMEOUT": "1"}
    run_well(doubles, "departures.py", 2, "a_part_of_the_engine_fails", env=env)


def test_one_of_two_groups_fails(doubles):
    env = LEVELS["compress_first"]
    run_well(doubles, "departures.py", 4, "one_group_fails", ranks_per_host=2, env=env)


@pytest.mark.parametrize("others", [(1, 3), (2, 3)])
def test_other_block_sizes_on_some_ranks(doubles, others):
    """All use rank 0's, those too who sum with others without it; and it is said."""
    words, env = ("other_block_sizes", *others), LEVELS["compress_first"]
    ranks = run(doubles, "departures.py", 4, *words, ranks_per_host=2, env=env)
    for number, rank in enumerate(ranks):
        assert "all well" in rank.output
        said = f"OMNIHVD_BLOCK_SIZE is 32 on rank {others[0]} "
        assert (said in rank.output) == (number == 0)


@pytest.mark.parametrize("levels", ["two_levels", "compress_first"])
def test_aborts_in_a_group_of_hosts_with_several(doubles, levels):
    env = LEVELS[levels]
    run_well(doubles, "failures.py", 4, "aborts_in_a_group", ranks_per_host=2, env=env)


HOOKED = """
#include <stddef.h>
int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
int all_reduce(const void* in, void* out, size_t n, int type, int op, void* comm, void* stream) {
  return ncclAllReduce(in, out, n, type, op, comm, stream);
}
"""


def test_a_hooked_library(doubles, tmp_path):
    """It calls none of the other functions, as one that never ends its communicators."""
    path = tmp_path / "torch" / "lib" / "libtorch_cuda.so"
    path.parent.mkdir(parents=True)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), "-x", "none"]
    subprocess.run([*command, str(doubles.nccl)], input=HOOKED, text=True, check=True, timeout=60)
    run_well(doubles, "hooked.py", 2, path, preload=False)


def test_the_benchmark_of_host_functions(doubles):
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    run_well(doubles, "host_function.py", 1, benchmarks, preload=False)
