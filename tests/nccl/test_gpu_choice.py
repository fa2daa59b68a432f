"""Which sums on GPUs are made on unions: rank 0's choice, and that all ranks make it. Pure."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "omnihvd" / "csrc"
AUTO, UNION = 0, 3  # as in csrc/base/way.h
EITHER, TWO, ONE = 0, 1, 2  # levels, as in csrc/engine/settings.h
MB, US = 10**6, 1e-6
BYTES, BLOCKS = 100 * MB, 100_000


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("choice") / "choice.so"
    sources = [
        HERE / "choice.cc",
        *(CSRC / f"nccl/{n}.cc" for n in ("gpu_choice", "union_plans")),
    ]
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{CSRC}", *map(str, sources), "-o", str(path)]
    subprocess.run(command, check=True, timeout=100)
    library = ctypes.CDLL(str(path))
    u64, f64, chooser = ctypes.c_uint64, ctypes.c_double, ctypes.c_void_p
    library.all_orders.argtypes = [u64, ctypes.POINTER(ctypes.c_long)]
    library.all_orders.restype = library.wanted.restype = ctypes.c_long
    library.estimate.argtypes, library.estimate.restype = [u64, u64, f64], f64
    library.new_chooser.restype = chooser
    library.saw.argtypes = [chooser, u64, u64, u64, u64]
    library.took.argtypes = [chooser, ctypes.c_int, f64]
    library.wanted.argtypes = [chooser, ctypes.POINTER(ctypes.c_int)]
    library.refused.argtypes = [chooser, u64]
    return library


@pytest.mark.parametrize("first_call", range(5))
def test_ranks_have_the_same_plan_for_the_same_call_in_every_order(library, first_call):
    held = ctypes.c_long()
    orders = library.all_orders(first_call, held)
    assert orders > 1000, "ranks differed"
    # At a call that somebody has made before his vote it holds in no order, else it may.
    assert (held.value > 0) == (first_call < 3)
    assert held.value < orders


def test_ranks_have_the_same_plans_of_several_proposals(library):
    kept = [library.random_order(seed) for seed in range(3000)]
    assert min(kept) >= 0, "ranks differed, or got stuck"
    assert max(kept) == 3, "no proposal held"


class Chooser:
    """Rank 0's, of one sum of 100 MB."""

    def __init__(self, library: ctypes.CDLL, setting: int = AUTO, levels: int = ONE) -> None:
        self.library, self.handle = library, library.new_chooser(setting, levels)
        self.capacity, self.levels = 0, 1

    def sums(self, united: float, original: float = 0, on_union: float = 0) -> int:
        """One more sum, which took so long; returns the capacity from then on."""
        if self.capacity == 0 and original:
            self.library.took(self.handle, 0, original)
        if self.capacity > 0 and on_union:
            self.library.took(self.handle, self.levels, on_union)
        self.library.saw(self.handle, BYTES, BLOCKS, self.capacity, int(united * BLOCKS))
        wanted = self.wanted()
        if wanted >= 0:
            self.capacity = wanted
        return self.capacity

    def wanted(self) -> int:
        levels = ctypes.c_int(self.levels)
        capacity = int(self.library.wanted(self.handle, levels))
        self.levels = levels.value
        return capacity


@pytest.mark.parametrize("united, microseconds, pays", [
    (0.01, 600, True), (0.1, 600, True), (0.3, 600, True), (0.6, 600, False), (1, 600, False),
    (0.01, 100, False), (0.6, 6000, True), (0.8, 60_000, False), (0.95, 60_000, False),
])  # fmt: skip
def test_unions_pay_by_what_nccl_takes(library, united, microseconds, pays):
    capacity = Chooser(library).sums(united, microseconds * US)
    assert (capacity > 0) == pays
    if pays:
        assert united * BLOCKS * 1.25 <= capacity <= united * BLOCKS * 1.25 + 64


def test_nothing_is_united_while_nothing_is_known_of_nccl(library):
    chooser = Chooser(library)
    assert chooser.sums(0.01) == 0
    assert chooser.sums(0.01, 600 * US) > 0


def test_estimates_of_the_documentation(library):
    """docs/gpu.md: 100 MB that NCCL sums in 600 us."""
    at = {share: library.estimate(BYTES, int(share * BYTES), 600 * US) for share in (0.0125, 0.125)}
    assert at[0.0125] < 600 * US / 3
    assert at[0.125] < 600 * US / 2


def test_what_has_turned_out_slower_is_nccls_again(library):
    chooser = Chooser(library)
    capacity = chooser.sums(0.1, 600 * US)
    for _ in range(5):
        assert chooser.sums(0.1, on_union=300 * US) == capacity
    slower = [chooser.sums(0.1, on_union=590 * US) for _ in range(5)]
    assert slower[-1] == 0
    looks = 0
    while chooser.sums(0.1, 600 * US) == 0:
        looks += 1
    assert looks > 10, "not tried again at once"


def test_a_sum_that_overflows_twice_in_a_hundred_is_nccls(library):
    chooser = Chooser(library)
    chooser.sums(0.1, 600 * US)
    chooser.sums(0.2, on_union=300 * US)
    assert chooser.capacity >= 0.25 * BLOCKS, "the first: more room"
    for _ in range(50):
        chooser.sums(0.2, on_union=300 * US)
    assert chooser.sums(0.4, on_union=300 * US) == 0
    chooser = Chooser(library)
    chooser.sums(0.1, 600 * US)
    chooser.sums(0.2, on_union=300 * US)
    for _ in range(100):
        chooser.sums(0.2, on_union=300 * US)
    assert chooser.sums(0.3, on_union=300 * US) > 0.3 * BLOCKS, "long ago"


def test_capacities_follow_but_not_every_wave(library):
    chooser = Chooser(library)
    first = chooser.sums(0.1, 600 * US)
    for united in (0.09, 0.11, 0.1, 0.07):
        assert chooser.sums(united, on_union=200 * US) == first
    for _ in range(8):
        chooser.sums(0.02, on_union=200 * US)
    assert 0.02 * BLOCKS < chooser.capacity < 0.03 * BLOCKS
    assert chooser.sums(1, on_union=200 * US) == 0


@pytest.mark.parametrize("united", [0.47, 0.6, 0.68])
def test_room_that_is_not_needed_is_given_back(library, united):
    """Also where it was less than twice of what is: a union starts with room for all blocks."""
    chooser = Chooser(library, UNION)
    chooser.capacity = BLOCKS
    capacity = chooser.sums(united)
    assert 1.25 * united * BLOCKS <= capacity <= 1.25 * united * BLOCKS + 64
    for fewer in (0.97, 0.92, 1):
        assert chooser.sums(fewer * united) == capacity, "not every wave"
    for _ in range(8):
        chooser.sums(0.8 * united)
    assert united * BLOCKS <= chooser.capacity <= united * BLOCKS + 64


@pytest.mark.parametrize("part", [0.9, 0.95, 1, 1.05, 1.1])
def test_a_capacity_stays_where_little_would_change(library, part):
    chooser = Chooser(library, UNION)
    capacity = chooser.sums(0.4)
    for _ in range(20):
        assert chooser.sums(0.4 * part) == capacity


def test_what_came_too_late_is_proposed_again(library):
    chooser = Chooser(library)
    capacity = chooser.sums(0.1, 600 * US)
    library.refused(chooser.handle, capacity)
    assert chooser.wanted() == capacity
    assert chooser.wanted() == -1


@pytest.mark.parametrize("united, capacity", [(0.4, 0.5), (0.89, 1), (0.91, 0)])
def test_a_pinned_union_asks_nobody_for_the_time(library, united, capacity):
    found = Chooser(library, UNION).sums(united)
    assert capacity * BLOCKS <= found <= capacity * BLOCKS + 64


@pytest.mark.parametrize("setting", [AUTO, UNION])
@pytest.mark.parametrize(("one", "two", "levels"), [(300, 200, 2), (200, 300, 1), (200, 195, 2)])
def test_levels_are_tried_and_the_faster_stays(library, setting, one, two, levels):
    """Both are tried in turns. Of two that are about equal, that which is in use stays."""
    chooser = Chooser(library, setting, EITHER)
    chooser.sums(0.1, 600 * US)
    tried = []
    for _ in range(40):
        tried.append(chooser.levels)
        chooser.sums(0.1, on_union=(one if chooser.levels == 1 else two) * US)
    assert tried[:4] == [1] * 4 and tried[4:8] == [2] * 4
    assert set(tried[8:]) == {levels}


def test_a_union_pays_on_two_levels_where_it_does_not_on_one(library):
    chooser = Chooser(library, AUTO, EITHER)
    capacity = chooser.sums(0.1, 600 * US)
    for _ in range(12):
        assert chooser.sums(0.1, on_union=(420 if chooser.levels == 1 else 300) * US) == capacity
    for _ in range(4):
        chooser.sums(0.1, on_union=700 * US)
    assert chooser.levels == 1, "it has become slower"


@pytest.mark.parametrize(("setting", "levels"), [(ONE, 1), (TWO, 2)])
def test_levels_that_are_set_are_not_tried(library, setting, levels):
    chooser = Chooser(library, AUTO, setting)
    for _ in range(20):
        chooser.sums(0.1, 600 * US, on_union=300 * US)
        assert chooser.levels == levels
