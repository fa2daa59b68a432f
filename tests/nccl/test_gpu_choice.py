"""The cost model of sums on GPUs, and the memory of what they were: pure."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "omnihvd" / "csrc"
AUTO, STREAM, UNION, ORIGINAL = 0, 1, 3, 4  # as in csrc/base/way.h
MB = 10**6


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("choice") / "choice.so"
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{CSRC}"]
    command += [str(HERE / "choice.cc"), str(CSRC / "shims/nccl/gpu_choice.cc"), "-o", str(path)]
    subprocess.run(command, check=True, timeout=100)
    library = ctypes.CDLL(str(path))
    u64, f64 = ctypes.c_uint64, ctypes.c_double
    library.choose_way.argtypes = [
        ctypes.c_int, u64, f64, f64, ctypes.c_int, ctypes.c_bool, f64,
    ]  # fmt: skip
    library.estimate_ways.argtypes = [u64, f64, f64, ctypes.c_int, f64, ctypes.POINTER(f64)]
    library.new_choices.restype = ctypes.c_void_p
    library.next_way.argtypes = [ctypes.c_void_p, u64]
    library.learn_way.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library


def nccl(gigabits: float, ranks: int) -> float:
    """Seconds a byte of a ring over links of so many Gbit/s."""
    return 2 * (ranks - 1) / ranks / (gigabits * 1e9 / 8)


def chosen(library, bytes_, united, own, gigabits, ranks=8, one_each=True, setting=AUTO):
    rate = nccl(gigabits, ranks) if gigabits else 0.0
    return library.choose_way(setting, bytes_, united, own, ranks, one_each, rate)


@pytest.mark.parametrize(
    "megabytes, united, own, gigabits, way",
    [
        (100, 0.1, 0.05, 100, UNION),
        (100, 0.1, 0.05, 400, UNION),
        (100, 0.6, 0.4, 100, UNION),
        (100, 1.0, 1.0, 100, ORIGINAL),
        (100, 0.95, 0.9, 100, ORIGINAL),
        (1, 0.01, 0.01, 400, ORIGINAL),  # less than a hand-over to the host
        (100, 0.08, 0.01, 1, STREAM),  # disjoint blocks on a slow link: half the bytes
        (100, 0.08, 0.01, 10, STREAM),
        (100, 0.08, 0.08, 10, UNION),  # the same blocks everywhere: as many bytes
        (100, 0.08, 0.01, 100, UNION),  # faster than an engine thread
        (100, 1.0, 1.0, 1, ORIGINAL),
    ],
)
def test_chooses(library, megabytes, united, own, gigabits, way):
    assert chosen(library, megabytes * MB, united, own, gigabits) == way


def test_servers_with_several_gpus_do_not_stream_by_themselves(library):
    assert chosen(library, 100 * MB, 0.08, 0.01, 1, one_each=False) == UNION


def test_unites_while_nothing_is_known_of_the_network(library):
    assert chosen(library, 100 * MB, 1.0, 1.0, 0) == UNION


@pytest.mark.parametrize("united, way", [(0.0, UNION), (0.89, UNION), (0.91, ORIGINAL)])
def test_a_pinned_union_is_left_where_it_is_nearly_everything(library, united, way):
    assert chosen(library, 1000, united, 0.01, 400, setting=UNION) == way


def test_estimates_fall_with_the_union_and_with_the_network(library):
    def estimates(united: float, gigabits: float) -> list[float]:
        seconds = (ctypes.c_double * 3)()
        library.estimate_ways(100 * MB, united, united / 2, 8, nccl(gigabits, 8), seconds)
        return list(seconds)

    for gigabits in (1, 10, 100, 400):
        slower = estimates(0.5, gigabits)
        assert all(a < b for a, b in zip(estimates(0.1, gigabits)[:2], slower[:2]))
        assert (
            estimates(0.1, gigabits)[2] == slower[2] == pytest.approx(100 * MB * nccl(gigabits, 8))
        )
    assert all(a <= b for a, b in zip(estimates(0.1, 100), estimates(0.1, 10)))


def test_remembers_each_sum_of_a_step(library):
    """A step of three sums, of which the second is dense; verdicts come five sums late."""
    choices = library.new_choices()
    asked, ways = [], []
    for number in range(600):
        place = number % 3
        way = library.next_way(choices, 1000 + place)
        ways.append(way)
        if way == UNION:
            asked.append(ORIGINAL if place == 1 else UNION)
        if len(asked) > 5:
            library.learn_way(choices, asked.pop(0))
    assert all(way == UNION for i, way in enumerate(ways) if i % 3 != 1)
    of_second = ways[30:][1::3]
    looks = [i for i, way in enumerate(of_second) if way == UNION]
    assert 2 <= len(looks) <= 4, "now and then"
    gaps = [b - a for a, b in zip(looks, looks[1:])]
    assert all(gap >= 32 for gap in gaps) and sorted(gaps) == gaps, "ever more seldom"


def test_a_sum_that_becomes_sparse_is_united_again(library):
    choices = library.new_choices()
    assert library.next_way(choices, 1000) == UNION
    library.learn_way(choices, ORIGINAL)
    for _ in range(40):
        if library.next_way(choices, 1000) == UNION:
            library.learn_way(choices, UNION)
    assert all(library.next_way(choices, 1000) == UNION for _ in range(5))
