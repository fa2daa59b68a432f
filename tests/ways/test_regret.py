"""The cost of choosing: sums of simulated libraries and links by the ways that the policy chooses,
against the library alone and against the way that is best in hindsight. Without a clock."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from _engine_tests import ways
from groups import log_level

AUTO = ways.Way.__members__["auto"]
BLOCK = 256
WAYS = ("stream", "union", "original")


@dataclass(frozen=True)
class World:
    """Latencies in s, rates in s a byte; the own way connects the ranks first."""

    library_s: float
    library_rate: float
    own_s: float
    own_rate: float  # of what is not zero
    scan_rate: float
    connect_s: float = 0.1

    def seconds(self, way: str, size: float, united: float) -> float:
        """A sum's of `size` bytes, `united` of them in the union."""
        if way == "stream":
            return self.own_s + self.scan_rate * size + self.own_rate * united
        if way == "coded":  # 0.86 of the bytes, and as much as a processor takes for them
            coding = 0.6e-9 * united
            return self.own_s + self.scan_rate * size + 0.86 * self.own_rate * united + coding
        if way == "union":
            look = self.library_s + 2 * self.scan_rate * size
            return look + self.library_s + self.library_rate * united
        return self.library_s + self.library_rate * size

    def best(self, size: float, united: float) -> float:
        return min(self.seconds(way, size, united) for way in WAYS)


WORLDS = {
    "1 Gbit/s": World(0.8e-3, 20e-9, 0.8e-3, 11e-9, 0.1e-9),
    "1 Gbit/s, a library as fast": World(0.5e-3, 11.5e-9, 0.8e-3, 11e-9, 0.1e-9),
    "10 Gbit/s, cores shared": World(0.7e-3, 4e-9, 1.4e-3, 4e-9, 0.3e-9),
    "fast library": World(0.1e-3, 0.4e-9, 0.5e-3, 1.5e-9, 0.15e-9),
    "slow library": World(2e-3, 10e-9, 0.5e-3, 1e-9, 0.1e-9),
    "one host": World(0.3e-3, 2e-9, 0.2e-3, 1.2e-9, 0.1e-9, connect_s=0.002),
}
DENSITIES = [0.002, 0.1, 0.5, 1.0]


class Job:
    """Rank 0 of four. Its library and own way take simulated time."""

    def __init__(self, world: World, seed: int = 0, stalls: float = 0.03) -> None:
        self.world, self.now, self.stalls = world, 0.0, stalls
        self.noise = random.Random(seed)
        self.ways = ways.Ways(AUTO, BLOCK, lambda: self.now, connect_s=world.connect_s)
        self.library = ways.Library(0, 4, self.gather, self.sum)
        self.connected = False
        self.taken: list[str] = []

    def spend(self, seconds: float) -> None:
        stalled = 4 if self.noise.random() < self.stalls else 1
        self.now += seconds * (1 + 0.1 * self.noise.random()) * stalled

    def gather(self, what: str, mine: bytes) -> list[bytes]:
        self.spend(self.world.library_s / (2 if what == "order" else 1))
        if what == "union":
            self.spend(2 * self.world.scan_rate * self.tensor.nbytes)
        return [mine] * 4

    def sum(self, how: str, source: memoryview, target: memoryview) -> None:
        self.spend(self.world.library_s + self.world.library_rate * len(source))

    def stream(self, source: memoryview, target: memoryview, coded: bool) -> int:
        if not self.connected:
            self.connected = True
            self.now += self.world.connect_s
        way = "coded" if coded else "stream"
        self.spend(self.world.seconds(way, self.tensor.nbytes, self.united))
        return int(self.united / self.tensor.itemsize / BLOCK)

    def allreduce(self, size: int, density: float) -> float:
        """Sums a tensor of this size; returns the seconds."""
        blocks = size // 4 // BLOCK
        self.tensor = np.zeros(blocks * BLOCK, np.float32)
        marked = max(1, round(density * blocks))
        self.tensor[: marked * BLOCK] = 1
        self.united = marked * BLOCK * 4
        begun = self.now
        way = self.ways.allreduce(self.library, self.tensor, self.tensor, "float32", self.stream)
        self.taken.append(way)
        return self.now - begun


SIZES = {"256 KiB": 1 << 18, "1 MB": 1 << 20, "5 MB": 5 << 20}
BEFORE = 18  # sums until omnihvd tries its own algorithm, once it may connect the ranks


def before(world: World, library: float) -> int:
    """Sums until omnihvd has tried its own algorithm. It may do so when the library's sums have
    taken twice as long as it takes to connect the ranks. library: seconds of one of these."""
    return BEFORE + round(2 * world.connect_s / library)


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("world", WORLDS)
def test_against_the_library_and_hindsight(world: str, size: str, density: float) -> None:
    job = Job(WORLDS[world], stalls=0)
    library = 1.05 * job.world.seconds("original", SIZES[size], 0)
    early = before(job.world, library)
    took = [job.allreduce(SIZES[size], density) for _ in range(early + 380)]
    best = 1.05 * job.world.best(job.tensor.nbytes, job.united)
    connecting = job.world.connect_s if job.connected else 0
    assert 10 * library / sum(took[:10]) > 0.78, job.taken[:10]
    allowed = 100 * best / 0.8 + connecting + early * library
    assert sum(took[: early + 80]) < allowed, job.taken[: early + 80]
    assert 200 * best / sum(took[-200:]) > 0.9, job.taken[-200:]


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("world", WORLDS)
def test_small_sums_connect_no_rank_early(world: str, density: float) -> None:
    """Nobody pays for a connection in the first sums of a job, and nobody waits for ever."""
    job = Job(WORLDS[world], stalls=0)
    while not job.connected and job.now < 1:
        job.allreduce(1 << 18, density)
    assert job.connected
    spent = job.now - job.world.connect_s
    assert spent > 1.9 * job.world.connect_s, spent


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("world", WORLDS)
def test_stalls_do_not_lead_astray(world: str, seed: int) -> None:
    """One sum in thirty takes four times as long."""
    job = Job(WORLDS[world], seed, stalls=1 / 30)
    early = before(job.world, job.world.seconds("original", 1 << 20, 0))
    took = [job.allreduce(1 << 20, 0.1) for _ in range(early + 580)]
    best = 1.05 * 1.1 * job.world.best(job.tensor.nbytes, job.united)
    assert sum(took[-300:]) < 1.1 * 300 * best, job.taken[-300:]


@pytest.mark.parametrize("world", WORLDS)
def test_a_step_of_equal_sizes_and_different_densities(world: str) -> None:
    """Tensors of one size are told apart by their counts; where these are equal, too, it takes the
    one way that is best for all of them."""
    for counts in ([0, 1, 2, 3], [0, 0, 0, 0]):
        job = Job(WORLDS[world], stalls=0)
        sums = [((1 << 20) + 1024 * n, d) for n, d in zip(counts, (1.0, 0.002, 1.0, 0.1))]
        steps = 150 + before(job.world, job.world.seconds("original", 4 << 20, 0))
        took = [job.allreduce(*one) for _ in range(steps) for one in sums]
        each = dict.fromkeys((*WAYS, "best"), 0.0)
        for size, density in sums:
            united = max(1, round(density * size / 1024)) * 1024
            for way in each:
                ask = job.world.best if way == "best" else partial(job.world.seconds, way)
                each[way] += 1.05 * ask(size, united)
        best = each["best"] if counts[1] else min(each[way] for way in ("stream", "original"))
        assert sum(took[-200:]) < (1.12 if counts[1] else 1.25) * 50 * best, (
            counts,
            job.taken[-20:],
        )


@pytest.mark.parametrize("world", WORLDS)
def test_blocks_are_coded_where_the_link_is_what_is_waited_for(world: str) -> None:
    job = Job(WORLDS[world], stalls=0)
    for _ in range(60):
        job.allreduce(20 << 20, 1.0)
    if "1 Gbit/s" in world:
        assert job.taken[-1] == "coded", job.taken
    else:
        assert "coded" not in job.taken


@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("size", [8 << 20, 32 << 20])
def test_a_slow_link_is_not_used_for_trials_of_the_library(size: int, density: float) -> None:
    """It would need as many bytes as streaming at the least, and takes nearly twice as long."""
    job = Job(WORLDS["1 Gbit/s"], stalls=0)
    took = [job.allreduce(size, density) for _ in range(64)]
    before = 3 if size < 16_000_000 else 0  # until connecting is worth while
    assert set(job.taken[before:]) <= {"stream", "coded"}, job.taken
    best = 1.05 * job.world.seconds("coded", size, job.united)
    early = before * 1.05 * job.world.seconds("original", size, 0) + job.world.connect_s
    assert sum(took[:20]) < early + 1.08 * (20 - before) * best, job.taken[:20]


def test_a_tensor_that_turns_dense_is_summed_as_dense_ones_are() -> None:
    """Not by the library, which takes five times as long, though the union was looked at first."""
    job = Job(World(0.1e-3, 20e-9, 2e-3, 2e-9, 0.1e-9, connect_s=0.002), stalls=0)
    dense, sparse = 1 << 20, (1 << 20) + 1024  # of one size class
    for _ in range(300):
        job.allreduce(dense, 1.0)
        job.allreduce(sparse, 0.002)
    assert job.taken[-2:] == ["stream", "union"]
    job.allreduce(sparse, 1.0)
    assert job.taken[-1] == "stream"


def test_rank_0_says_which_way_sums_go_from_now_on(capfd: pytest.CaptureFixture[str]) -> None:
    """Once for each change."""
    with log_level("info"):
        job = Job(WORLDS["slow library"], stalls=0)
        for _ in range(300):
            job.allreduce(1 << 20, 1.0)
    said: dict[str, list[str]] = {}
    for density, way in re.findall(
        r"of about 1048576 bytes in density class (unknown|\d) of 5: from now on (\w+)\n",
        capfd.readouterr().err,
    ):
        said.setdefault(density, ["original"]).append(way)
    assert said[str(ways.DENSE)][-1] == job.taken[-1] == "stream"
    for told in said.values():
        assert all(now != before for before, now in zip(told, told[1:])), said
