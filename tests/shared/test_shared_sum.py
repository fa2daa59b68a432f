"""Sums over shared memory. For ranks that fail: tests/session/test_failures.py."""

from __future__ import annotations

import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _engine_tests import shared
from groups import all_well, blocks_of, in_threads, processes, sum_of

from omnihvd.engine import EngineError, codec, session

BLOCK = 256


@pytest.mark.parametrize(
    "size, dtype",
    [(1, "float32"), (2, "float32"), (3, "float64"), (3, "int8"), (3, "float16"), (5, "float32")],
)
def test_sums(size: int, dtype: str) -> None:
    chunk = shared.chunk_bytes(size) // np.dtype(dtype).itemsize
    counts = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK]
    counts += [chunk - 1, chunk, chunk + 1, 4 * chunk + BLOCK + 1]  # three are under way at a time
    cases = [
        (
            [blocks_of(rank, count, density, dtype) for rank in range(size)],
            sum_of(size, count, density, dtype),
        )
        for count in counts
        for density in (0, 0.3, 1)
    ]

    def work(rank: int, group: Any) -> None:
        for parts, expected in cases:
            mine = parts[rank].copy()
            out = np.full_like(mine, 99)
            united = group.allreduce(mine, out)
            np.testing.assert_array_equal(out, expected)
            np.testing.assert_array_equal(mine, parts[rank])
            assert group.allreduce(mine, mine) == united
            np.testing.assert_array_equal(mine, expected)
            blocks = np.pad(expected, (0, -len(expected) % BLOCK)).reshape(-1, BLOCK)
            assert united == np.count_nonzero(blocks.any(1))

    all_well(in_threads(size, work, "shared"))


@pytest.mark.parametrize("in_place", [True, False])
def test_sums_in_two_steps(in_place: bool) -> None:
    """In the last case the ranks' elements cancel out, and what was there before must go."""
    size, count = 3, 70_001
    blocks = -(-count // BLOCK)
    cancels = blocks_of(0, count, 0.3)
    cases = [
        ([blocks_of(rank, count, density) for rank in range(size)], sum_of(size, count, density))
        for density in (0, 0.3, 1)
    ]
    cases.append(([cancels, -cancels, 0 * cancels], 0 * cancels))

    def work(rank: int, group: Any) -> None:
        part = blocks * rank // size, blocks * (rank + 1) // size
        for parts, expected in cases:
            mine = parts[rank].copy()
            out = mine if in_place else np.full_like(mine, 99)
            group.in_two_steps(mine, out, blocks, part)
            np.testing.assert_array_equal(out, expected)

    all_well(in_threads(size, work, "shared"))


def test_two_steps_code_what_ranks_give_and_not_the_sum() -> None:
    """This codec has powers of two alone: 1 and 2, but not 3."""
    blocks, natural = 40, codec.Codec("natural", seed=3)

    def work(rank: int, group: Any) -> tuple[np.ndarray, np.ndarray]:
        x = np.full(blocks * BLOCK, rank + 1, np.float32)
        group.in_two_steps(x, x, blocks, (20 * rank, 20 * (rank + 1)), codec=natural)
        y = np.full(blocks * BLOCK, rank + 1, np.float32)
        group.allreduce(y, y, codec=natural)
        return x, y

    for in_two, in_one in all_well(in_threads(2, work, "shared")):
        assert (in_two == 3).all()
        assert {*in_one} == {2, 4}


def test_sums_without_a_codec_code_nothing() -> None:
    def work(rank: int, group: Any) -> None:
        x = np.ones(10_000, np.float32)
        group.allreduce(x, x)

    before = session.stats()["codecs"]
    all_well(in_threads(2, work, "shared"))
    assert session.stats()["codecs"] == before


def would_send(density: float, kind: Any) -> int:
    """Bytes between hosts of the fuller of two ranks, for a sum of 100 blocks."""

    def work(rank: int, group: Any) -> None:
        x = blocks_of(0, 100 * BLOCK, density)
        group.allreduce(x, x, codec=kind)

    before = session.stats()["between_hosts_bytes"]
    all_well(in_threads(2, work, "shared"))
    return (session.stats()["between_hosts_bytes"] - before) // 2


def test_what_hosts_would_send() -> None:
    plain, codes = would_send(1, codec.Codec()), would_send(1, codec.Codec("natural"))
    assert plain >= 400 * BLOCK and would_send(0, codec.Codec()) == 0
    assert 0.24 * plain < codes < 0.27 * plain


@pytest.mark.parametrize("block_size", [1, 100, 4096])
def test_block_sizes(block_size: int) -> None:
    def work(rank: int, group: Any) -> None:
        for count in (1, 4097, 70_001):
            out = blocks_of(rank, count, 0.3)
            group.allreduce(out, out)
            np.testing.assert_array_equal(out, sum_of(3, count, 0.3))

    all_well(in_threads(3, work, "shared", block_size=block_size))


def test_half_precision_is_added_in_float32() -> None:
    def work(rank: int, group: Any) -> None:
        half = np.full(1000, [2048, 1, 1, 1][rank], np.float16)
        group.allreduce(half, half)
        assert (half == 2052).all()  # one by one, 2048 + 1 rounds to 2048
        brain = np.full(1000, [0x4380, 0x3F80, 0x3F80, 0x3F80][rank], np.uint16)  # 256, 1, 1, 1
        group.allreduce(brain, brain, "bfloat16")
        assert (brain == 0x4382).all()  # 259 lies between 258 and 260: to even, 260

    all_well(in_threads(4, work, "shared"))


def test_negative_zeros_are_zeros() -> None:
    def work(rank: int, group: Any) -> bytes:
        tensor = np.zeros(3000, np.float32)
        tensor[300 * rank : 2000] = -0.0
        tensor[2500] = 1
        group.allreduce(tensor, tensor)
        assert tensor[2500] == 3
        assert not np.signbit(tensor).any()
        return tensor.tobytes()

    assert len(set(all_well(in_threads(3, work, "shared")))) == 1


def _sums(rank: int, size: int, group: Any, pipe: Any) -> None:
    for count in (1, 70_000, 1_000_003):
        for density in (0.01, 1):
            for _ in range(5):
                tensor = blocks_of(rank, count, density)
                group.allreduce(tensor, tensor)
                np.testing.assert_array_equal(tensor, sum_of(size, count, density))


def test_between_processes() -> None:
    with processes(4, _sums, "shared") as ranks:
        ranks.gather()
        for rank in range(4):
            ranks.expect(rank, "done")


def _one_large_sum(rank: int, size: int, group: Any, pipe: Any) -> None:
    x = np.ones(16 << 20, np.float32)
    pipe.send(("ready", None))
    pipe.recv()
    begun = time.monotonic()
    try:
        group.allreduce(x, x)
    except EngineError as why:
        pipe.send(("late", (str(why), time.monotonic() - begun)))


def test_the_timeout_bounds_a_sum_and_not_each_wait() -> None:
    """A rank that makes some progress all the time, but little."""
    with processes(3, _one_large_sum, "shared", timeout_s=1.0) as ranks:
        ranks.gather()
        for rank in range(3):
            ranks.expect(rank, "ready")
        ranks.go_on()
        slow = ranks.processes[2].pid
        assert slow
        while not ranks.pipes[0].poll(0.002):
            os.kill(slow, signal.SIGSTOP)
            time.sleep(0.3)
            os.kill(slow, signal.SIGCONT)
        for rank in (0, 1):
            why, seconds = ranks.expect(rank, "late")
            assert "did not end within 1 s (OMNIHVD_TIMEOUT); waiting for rank 2 (" in why
            assert 1 < seconds < 3
        ranks.expect(2, "late")  # finds the group failed


@pytest.mark.parametrize(
    ("kind", "most", "said"),
    [("shared", 1 << 16, "no room in /dev/shm"), ("small", 1 << 13, "no shared memory")],
)
def test_no_room_is_known_to_all_ranks(kind: str, most: int, said: str) -> None:
    """A rank that may write no such file stands for a /dev/shm that is full."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limit[1]))
    try:
        results = in_threads(3, lambda rank, group: None, kind)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    for result in results:
        assert isinstance(result, EngineError) and said in str(result)


@pytest.mark.root
@pytest.mark.parametrize(("size", "taken"), [("8m", False), ("16m", True), ("0", True)])
def test_half_of_what_is_free_stays_for_others(size: str, taken: bool) -> None:
    """As in a container, where data loaders would get SIGBUS. Two ranks take 6 MB. 0: no limit."""
    program = "from groups import *; print(in_threads(2, lambda rank, group: 'made', 'shared'))"
    python = shlex.join([sys.executable, "-c", program])
    inside = f"mount -t tmpfs -o size={size} tmpfs /dev/shm && exec {python}"
    words = ["unshare", "--mount", "sh", "-c", inside]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    said = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert ("['made', 'made']" in said.stdout) == taken, said
    assert ("at most half of what is free" in said.stdout) != taken, said


INTERRUPTED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/types.h>
int posix_fallocate(int file, off_t at, off_t size) {
  static int calls;
  if (__atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST) % 2 == 0) return EINTR;
  return ((int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate"))(file, at, size);
}
"""


def test_a_signal_while_memory_is_allocated_harms_nothing(tmp_path: Path) -> None:
    library = tmp_path / "interrupted.so"
    compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(compiler, input=INTERRUPTED, text=True, check=True, timeout=60)
    program = "from groups import *; print(in_threads(2, lambda rank, group: 'made', 'shared'))"
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "LD_PRELOAD": str(library)}
    words = [sys.executable, "-c", program]
    said = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert "['made', 'made']" in said.stdout, said


def test_blocks_that_are_too_large_are_refused() -> None:
    most = shared.chunk_bytes(1) // 64
    assert in_threads(1, lambda rank, group: None, "shared", block_size=most) == [None]
    (result,) = in_threads(1, lambda rank, group: None, "shared", block_size=most + 1)
    assert str(result) == f"OMNIHVD_BLOCK_SIZE is larger than {most}"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_ranks_are_added_in_their_order(dtype: str) -> None:
    """The sum of these numbers depends on it. Not every rank has every block."""
    size, count = 4, 300_003

    def part(rank: int) -> np.ndarray:
        values = np.sin(np.arange(count) * 1.1 + rank) * 10.0 ** (rank % 3)
        return np.where(blocks_of(rank, count, 0.7) != 0, values, 0).astype(dtype)

    def work(rank: int, group: Any) -> bytes:
        x = part(rank)
        group.allreduce(x, x)
        return x.tobytes()

    expected = part(0).astype(np.float32)
    for rank in range(1, size):
        expected = expected + part(rank).astype(np.float32)
    sums = all_well(in_threads(size, work, "shared"))
    assert set(sums) == {expected.astype(dtype).tobytes()}
