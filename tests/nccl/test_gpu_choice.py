"""Which sums on GPUs are made on unions: the model, and that all ranks plan alike. Pure."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
from benchmarks import gpu_model  # noqa: E402

CSRC = HERE.parents[1] / "omnihvd" / "csrc"
MB, US = 10**6, 1000
BYTES = 100 * MB
RANKS, HOSTS = 32, 4
BEHIND = 64  # UnionPlans::kBehind


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("choice") / "choice.so"
    sources = [
        HERE / "choice.cc",
        *(CSRC / f"nccl/{n}.cc" for n in ("gpu_choice", "gpu_model", "union_plans")),
    ]
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{CSRC}", *map(str, sources), "-o", str(path)]
    subprocess.run(command, check=True, timeout=100)
    library = ctypes.CDLL(str(path))
    u64, pointer, flag = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_bool
    for name, result, arguments in (
        ("all_orders", ctypes.c_long, [ctypes.c_uint, u64]),
        ("random_order", ctypes.c_long, [ctypes.c_uint, pointer, pointer]),
        ("estimate_original", u64, [ctypes.c_int, ctypes.c_int, u64]),
        ("estimate_look", u64, [ctypes.c_int, ctypes.c_int, u64, u64, u64]),
        ("estimate_union", u64, [ctypes.c_int, ctypes.c_int, u64, u64, u64, u64]),
        ("times_through", None, [flag, pointer, pointer]),
        ("trailer", ctypes.c_uint32, [u64, u64, u64]),
        ("new_plans", pointer, [ctypes.c_int, ctypes.c_int, flag]),
        ("next", u64, [pointer, u64, pointer]),
        ("is_behind", flag, [pointer]),
        ("saw", None, [pointer, u64, ctypes.c_uint32]),
        ("new_choice", pointer, [ctypes.c_int, ctypes.c_int, u64, flag]),
        ("share_of", ctypes.c_double, [pointer]),
        ("add", None, [pointer, ctypes.c_double, flag, u64, u64, u64]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


# --- all ranks plan alike


@pytest.mark.parametrize(
    "calls",
    [BEHIND + 3, BEHIND + 5, 2 * BEHIND + 6, 200, pytest.param(300, marks=pytest.mark.slow)],
)
def test_ranks_have_the_same_plan_for_the_same_call_in_every_order(library, calls):
    for seed in range(3):
        orders = library.all_orders(seed, calls)
        assert orders > 100, "ranks differed"


def test_ranks_have_the_same_plans_in_random_orders(library):
    united, left = ctypes.c_long(), ctypes.c_long()
    for seed in range(200):
        plans = library.random_order(seed, ctypes.byref(united), ctypes.byref(left))
        assert plans > 0, ("ranks differed", "they got stuck")[plans + 1 == -1]
        assert plans > 5 and united.value > 50, "nothing changed"
        # One thread's end is known to all kBehind calls later: then NCCL makes all calls.
        assert left.value == (seed % 4 == 3)


def test_times_travel_in_a_trailer(library):
    """Within the 5% that a choice wants to gain; of too long and too short times, the bounds."""
    for alone in (False, True):
        for us in (1, 3, 17, 150, 999, 15_000):
            given = [us * US, 2 * us * US, 3 * us * US]
            times, is_alone = (ctypes.c_uint64 * 3)(*given), ctypes.c_bool()
            library.times_through(alone, times, ctypes.byref(is_alone))
            assert is_alone.value == alone
            for before, after in zip(given, times):
                assert before <= after <= 1.05 * before
    times, is_alone = (ctypes.c_uint64 * 3)(0, 10**12, 1), ctypes.c_bool()
    library.times_through(False, times, ctypes.byref(is_alone))
    assert list(times) == [0, times[1], 1000] and 50_000 * US < times[1] < 100_000 * US


def test_the_maximum_over_ranks_is_the_slowest_sum_and_the_fastest_look(library):
    """The ranks that came early have waited in their looks for the last one."""
    ranks = [library.trailer(*(us * US for us in one)) for one in ((300, 500, 90), (40, 450, 110))]
    least = [max(t >> at & 255 for t in ranks) for at in (8, 16, 24)]
    expected = library.trailer(40 * US, 500 * US, 110 * US)
    assert least == [expected >> at & 255 for at in (8, 16, 24)]


# --- the model


def test_the_document_s_model_is_the_shim_s(library):
    for row in gpu_model.rows():
        ranks, nbytes = int(row["gpus"]), int(row["mb"]) * MB
        hosts = ranks // 8
        original = gpu_model.allreduce(ranks, hosts, nbytes)
        assert library.estimate_original(ranks, hosts, nbytes) == original
        look = library.estimate_look(ranks, hosts, nbytes, nbytes // 1024 + 1, original)
        assert look == gpu_model.look(ranks, hosts, nbytes)
        for summed in (nbytes // 100, nbytes // 3, nbytes):
            found = library.estimate_union(ranks, hosts, nbytes, summed, 64 << 20, original)
            assert found == gpu_model.united(ranks, hosts, summed)


def test_a_slower_network_takes_longer_for_small_sums_too(library):
    original = gpu_model.allreduce(RANKS, HOSTS, BYTES)
    estimates = [
        library.estimate_look(RANKS, HOSTS, BYTES, 10**5, times * original) for times in (1, 4, 0)
    ]
    assert estimates[1] > 2 * estimates[0] and estimates[2] == estimates[0]


def test_the_model_s_gains():
    for row in gpu_model.rows():
        if row["wait_us"] == 0:
            assert row["dense"] > 0.97
        if row["mb"] == 100:
            least = {0: (1.4, 2.5), 60: (1.4, 2.2), 400: (0.9, 1.1)}[row["wait_us"]]
            assert row["gain_0.1"] > least[0] and row["gain_0.01"] > least[1]


# --- the choice for one kind of sums


class Choice:
    """For sums of 100 MB on 32 GPUs in 4 hosts."""

    def __init__(self, library: ctypes.CDLL, always: bool = False, original: int = 600) -> None:
        self.library, self.handle = library, library.new_choice(RANKS, HOSTS, BYTES, always)
        self.original, self.looked = original, 0

    @property
    def share(self) -> float:
        return float(self.library.share_of(self.handle))

    def sums(self, united: float, on_union: int = 0, look: int = 0, stale: bool = False) -> float:
        """One more sum, and its times in us; returns the capacity from then on."""
        times = (us * US for us in (look, self.original, on_union))
        self.library.add(self.handle, united, stale, *times)
        return self.share


@pytest.mark.parametrize("united, microseconds, pays", [
    (0.01, 600, True), (0.1, 600, True), (0.3, 600, True), (0.6, 600, False), (1, 600, False),
    (0.01, 100, False), (0.5, 6000, True), (0.8, 60_000, False), (0.95, 60_000, False),
])  # fmt: skip
def test_unions_pay_by_what_nccl_takes(library, united, microseconds, pays):
    share = Choice(library, original=microseconds).sums(united)
    assert (share > 0) == pays
    if pays:
        assert 1.25 * united <= share + 1e-4 and share <= 1.25 * united + 1e-4


def test_nothing_is_united_while_nothing_is_known_of_nccl(library):
    choice = Choice(library, original=0)
    assert choice.sums(0.01) == 0
    choice.original = 600
    assert choice.sums(0.01) > 0


@pytest.mark.parametrize("ranks", [16, 32, 128, 1024])
@pytest.mark.parametrize("mb", [1, 4, 25, 100])
def test_no_union_where_the_model_gains_less_than_5_percent(library, ranks, mb):
    hosts, nbytes = ranks // 8, mb * MB
    original = library.estimate_original(ranks, hosts, nbytes)
    look = library.estimate_look(ranks, hosts, nbytes, nbytes // 1024 + 1, original)
    chosen = 0
    for percent in (0, 1, 3, 10, 20, 30, 45, 60):
        handle = library.new_choice(ranks, hosts, nbytes, False)
        library.add(handle, percent / 100, False, 0, original, 0)
        capacity = int(nbytes * min(1.25 * percent / 100 + 2**-16, 1))
        summed = library.estimate_union(ranks, hosts, nbytes, capacity, 64 << 20, original)
        gain = original / (look + summed)
        assert (library.share_of(handle) > 0) == (gain >= 1.05) or abs(gain - 1.05) < 0.01
        chosen += library.share_of(handle) > 0
    assert (chosen > 2) == (mb >= 25)


def test_what_has_turned_out_slower_is_nccls_again(library):
    choice = Choice(library)
    share = choice.sums(0.1)
    for _ in range(5):
        assert choice.sums(0.1, on_union=200, look=50) == share
    assert choice.sums(0.1, on_union=540, look=50) == 0
    looks = 0
    while choice.sums(0.1) == 0:
        looks += 1
    assert looks > 5, "not tried again at once"


def test_a_sum_that_overflows_twice_in_a_hundred_is_nccls(library):
    choice = Choice(library)
    choice.sums(0.1)
    choice.sums(0.2, on_union=200)
    assert choice.share >= 0.25, "the first: more room"
    for _ in range(50):
        choice.sums(0.2, on_union=200)
    assert choice.sums(0.4, on_union=200) == 0
    choice = Choice(library)
    choice.sums(0.1)
    choice.sums(0.2, on_union=200)
    for _ in range(100):
        choice.sums(0.2, on_union=200)
    assert choice.sums(0.3, on_union=200) > 0.3, "long ago"


def test_sums_called_before_the_share_has_changed_do_not_count_again(library):
    """When the density jumps, as many sums overflow as had been called."""
    choice = Choice(library)
    choice.sums(0.02)
    choice.sums(0.2, on_union=100)
    for _ in range(BEHIND):
        assert choice.sums(0.2, on_union=550, look=100, stale=True) > 0.24


def test_capacities_follow_but_not_every_wave(library):
    choice = Choice(library)
    first = choice.sums(0.1)
    for united in (0.09, 0.11, 0.1, 0.07):
        assert choice.sums(united, on_union=200) == first
    for _ in range(8):
        choice.sums(0.02, on_union=200)
    assert 0.02 < choice.share < 0.03
    assert choice.sums(1, on_union=200) == 0


@pytest.mark.parametrize("united", [0.47, 0.6, 0.68])
def test_room_that_is_not_needed_is_given_back(library, united):
    """Also where it was less than twice of what is: a union starts with room for all blocks."""
    choice = Choice(library, always=True)
    assert choice.share == 1
    share = choice.sums(united)
    assert share == pytest.approx(1.25 * united, abs=1e-4)
    for fewer in (0.97, 0.92, 1):
        assert choice.sums(fewer * united) == share, "not every wave"
    for _ in range(8):
        choice.sums(0.8 * united)
    assert choice.share == pytest.approx(united, abs=1e-4)


@pytest.mark.parametrize("part", [0.9, 0.95, 1, 1.05, 1.1])
def test_a_capacity_stays_where_little_would_change(library, part):
    choice = Choice(library, always=True)
    share = choice.sums(0.4)
    for _ in range(20):
        assert choice.sums(0.4 * part) == share


@pytest.mark.parametrize("united, share", [(0.4, 0.5), (0.89, 1), (0.91, 0)])
def test_a_pinned_union_asks_nobody_for_the_time(library, united, share):
    found = Choice(library, always=True, original=0).sums(united)
    assert found == pytest.approx(share, abs=1e-4)


# --- kinds of sums, and whole trainings


class Training:
    """The calls of a job by their counts of float32. The model gives their unions and NCCL's times;
    the device is as far behind as it may be."""

    def __init__(self, library: ctypes.CDLL, always: bool = False) -> None:
        self.library, self.handle = library, library.new_plans(RANKS, HOSTS, always)
        self.looks: list[tuple[int, int]] = []  # united blocks, trailer
        self.took, self.plain = 0.0, 0.0
        self.overflows = 0

    def call(self, count: int, united: float) -> int:
        """Returns the capacity in blocks."""
        library = self.library
        while library.is_behind(self.handle):
            library.saw(self.handle, *self.looks.pop(0))
        look = ctypes.c_bool()
        capacity = int(library.next(self.handle, count, ctypes.byref(look)))
        nbytes, blocks = 4 * count, -(-count // 256)
        original = library.estimate_original(RANKS, HOSTS, nbytes)
        look_ns = library.estimate_look(RANKS, HOSTS, nbytes, blocks, original)
        union_ns = library.estimate_union(RANKS, HOSTS, nbytes, capacity * 1024, 64 << 20, original)
        found = -(-int(united * count) // 256)
        if look:
            scale = (1 << (count - 1).bit_length()) / count  # trailers are of a power of two
            times = [int(scale * ns) for ns in (look_ns, original, union_ns)]
            times[1 if capacity else 2] = 0
            self.looks.append((found, library.trailer(*times)))
        self.plain += original
        self.took += (union_ns if capacity else original) + look_ns * look.value
        self.overflows += 0 < capacity < found  # not counted in the times
        return capacity

    @property
    def gain(self) -> float:
        return self.plain / self.took


def test_each_tensor_of_a_step_has_its_own_plan(library):
    """Two of one size with different neighbours: a sparse and a dense one."""
    training = Training(library)
    for _ in range(200):
        sparse = training.call(25 * MB, 0.01)
        training.call(3 * MB, 1)
        dense = training.call(25 * MB, 1)
    assert 0 < sparse < 0.02 * 25 * MB / 256 and dense == 0


def test_fused_buffers_of_varying_size_are_known_by_their_class(library):
    """As Horovod's: which tensors share a buffer differs from step to step, so no size recurs."""
    training, planned = Training(library), 0
    for step in range(400):
        count = 17 * MB + 37_123 * (step * 7919 % 400)
        capacity = training.call(count, 0.02 + 0.01 * (step % 3))
        if step >= 200:
            planned += 0 < capacity < 0.1 * count / 256
    assert planned == 200 and training.overflows <= 1
    assert training.gain > 1.3


def test_more_kinds_of_sums_than_are_remembered(library):
    """The least recently called are forgotten; those that recur in time stay known."""
    training = Training(library)
    for step in range(1500):
        sparse = training.call(25 * MB, 0.01)
        training.call(1 * MB + step, 1)
    assert 0 < sparse < 0.02 * 25 * MB / 256


def density_of(kind: str, step: int) -> float:
    if kind == "dense":
        return 1.0
    if kind == "sparse":
        return 0.01
    if kind == "jumps":  # from sparse to less sparse and back
        return 0.01 if step // 250 % 2 == 0 else 0.15
    return 0.02 if step // 250 % 2 == 0 else 1.0  # "dense phases"


@pytest.mark.parametrize(("kind", "least", "jumps"), [
    ("dense", 0.97, 0), ("sparse", 2.2, 0), ("jumps", 1.8, 2), ("dense phases", 1, 2),
])  # fmt: skip
def test_a_thousand_sums(library, kind, least, jumps):
    """Sums stay on unions where they are faster, and leave them where they are not. After a jump
    those overflow that were planned before."""
    training = Training(library)
    for step in range(1000):
        training.call(25 * MB, density_of(kind, step))
    assert training.gain > least, training.gain
    assert training.overflows <= jumps * BEHIND
