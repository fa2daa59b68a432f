"""ncclAllReduce end to end, between real processes, where there is no GPU."""

from __future__ import annotations

import subprocess

import pytest
from nccl_job import run, run_well


def test_groups_with_calls_that_are_left(doubles):
    """The ranks' non-blocking communicators take different times to queue them."""
    run_well(doubles, "mixed_groups.py", 2, env={"NCCL_DOUBLE_NONBLOCKING": "1"})


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


def test_a_profiler_sees_ranges(doubles, tmp_path):
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o"]
    command.append(str(tmp_path / "libnvtx3interop.so.1"))
    subprocess.run(command, input=NVTX, text=True, check=True, timeout=60)
    where = {"LD_LIBRARY_PATH": str(tmp_path)}
    for profiler in ({}, {"NVTX_INJECTION64_PATH": "its own"}):
        for rank in run(doubles, "streams.py", 2, "back_to_back", env={**where, **profiler}):
            begun, ended = rank.output.count("<omnihvd union, "), rank.output.count("<end>")
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


def test_where_the_engine_cannot_start_nccl_sums(doubles):
    for rank in run(doubles, "passes.py", 2, "always", "memory", env={"UCX_TLS": "nonsense"}):
        assert "all well" in rank.output and rank.returncode == 0


def test_groups_that_are_only_simulated(doubles):
    run_well(doubles, "passes.py", 2, "simulated")


def test_a_communicator_is_not_split_while_it_is_busy(doubles):
    env = {"OMNIHVD_HIERARCHY": "on"}
    run_well(doubles, "levels.py", 4, "busy", ranks_per_host=2, env=env)


def test_a_communicator_of_one(doubles):
    run_well(doubles, "passes.py", 2, "one_rank")


def test_several_ranks_in_a_process(doubles):
    run_well(doubles, "passes.py", 2, "ranks_in_a_process")


def test_a_rank_that_never_comes(doubles):
    env = {"OMNIHVD_TIMEOUT": "2", "OMNIHVD_STALL_WARNING": "1"}
    results = run(doubles, "failures.py", 3, "a_rank_never_comes", env=env)
    assert all("all well" in rank.output for rank in results)
    assert "Did one fail, or does one not use omnihvd?" in results[0].output


@pytest.mark.parametrize("others", [(1, 3), (2, 3)])
def test_other_block_sizes_on_some_ranks(doubles, others):
    """All use rank 0's, those too who sum with others without it; and it is said."""
    ranks = run(doubles, "block_sizes.py", 4, *others, ranks_per_host=2)
    for number, rank in enumerate(ranks):
        assert "all well" in rank.output
        said = f"OMNIHVD_BLOCK_SIZE is 32 on rank {others[0]} "
        assert (said in rank.output) == (number == 0)


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
