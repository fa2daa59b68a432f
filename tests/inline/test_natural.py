"""Powers of two through an aggregator: codes of a byte up, exact sums of integers down."""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from _engine_tests import arithmetic
from _engine_tests import inline_parts as parts
from hypothesis import given, settings
from hypothesis import strategies as st
from test_workers import HOST, SECRET, port_of, together

from benchmarks.integer_sums import BLOCK, in_integers
from omnihvd import inline
from omnihvd.engine import EngineError
from omnihvd.inline.aggregator import Aggregator, running

KEY, NONE = 77, 0xFFFFFFFF
HEAD = struct.Struct("<QBBHHHIIIB3x")
HAS_BLOCK, CODES = 1, 8
INT32, FLOAT32, FPISA, FPISA_A, NATURAL = range(5)


def floats(workers: int, count: int, density: float, seed: int) -> np.ndarray:
    """[workers, count], of many magnitudes, some of them no numbers, some blocks zero."""
    random = np.random.default_rng(seed)
    shape = (workers, count)
    keep = np.repeat(random.random((workers, -(-count // BLOCK))) < density, BLOCK, axis=1)
    values = random.standard_normal(shape) * 2.0 ** random.integers(-40, 12, shape)
    strange = random.random(shape) < 0.002
    values[strange] = random.choice([np.nan, np.inf, -np.inf], strange.sum())
    return np.where(keep[:, :count], values, 0).astype(np.float32)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 5),
    st.sampled_from([0, 1, 255, 256, 257, 3000]),
    st.sampled_from([0.5, 1.0]),
    st.booleans(),
    st.sampled_from([0.0, 0.2]),
    st.integers(0, 2**32),
)
def test_sums_are_those_of_the_powers_bit_for_bit(
    workers: int, count: int, density: float, dense: bool, lost: float, seed: int
) -> None:
    given_ = np.stack([floats(workers, count, density, seed + sum_) for sum_ in range(2)])
    network = parts.Network(lost=lost, twice=lost, late=lost)
    ended, sums, _, counts, _ = parts.run_job(given_, 3, dense, network, seed, natural=True)
    assert ended and not counts["impossible"] and not counts["short"] and not counts["long"]
    for number, rows in enumerate(given_):
        expected = in_integers(rows, arithmetic, seed=number)
        assert all(worker.tobytes() == expected.tobytes() for worker in sums[number])


def contribution(worker: int, round_: int, block: int, next_: int, data: bytes, slot: int = 0):
    flags = (HAS_BLOCK | CODES) if data else 0
    return HEAD.pack(KEY, 1, flags, 0, worker, slot, round_, block, next_, 0) + data


@pytest.mark.parametrize("numbers", [INT32, NATURAL])
def test_any_order_of_arrival_gives_the_same_bits(numbers: int) -> None:
    random = np.random.default_rng(1)
    codes = random.integers(0, 30, (3, BLOCK)) | random.integers(0, 2, (3, BLOCK)) << 7
    expected = np.zeros(BLOCK, np.int64)
    for row in codes:
        expected += np.where(row & 127, np.where(row & 128, -1, 1) << ((row & 127) - 1).clip(0), 0)
    for order in itertools.permutations(range(3)):
        model = parts.SlotAggregator(1, 1)
        model.set_job(0, KEY, 3, numbers)
        for worker in order:
            model.take(contribution(worker, 0, NONE, 0, b""))
        for worker in order:
            sent = contribution(worker, 1, 0, NONE, codes[worker].astype(np.uint8).tobytes())
            assert len(sent) == 288
            to, answer = model.take(sent)
        assert to == 1 and len(answer) == 1056
        assert np.array_equal(np.frombuffer(answer[32:], "<i4"), expected)


@pytest.mark.parametrize("numbers", [FLOAT32, FPISA, FPISA_A])
def test_codes_are_refused_where_no_integers_are_added(numbers: int) -> None:
    model = parts.SlotAggregator(1, 1)
    model.set_job(0, KEY, 1, numbers)
    assert model.take(contribution(0, 0, NONE, 0, b""))[0] == 1
    assert model.take(contribution(0, 1, 0, NONE, bytes(BLOCK)))[0] == 0
    assert {name for name, n in model.counts.items() if n} == {"taken", "results", "impossible"}


@pytest.mark.parametrize(("size", "counted"), [(BLOCK - 1, "short"), (4 * BLOCK, "long")])
def test_codes_of_another_length_are_refused(size: int, counted: str) -> None:
    model = parts.SlotAggregator(1, 1)
    model.set_job(0, KEY, 1, NATURAL)
    assert model.take(contribution(0, 1, 0, NONE, bytes(size)))[0] == 0
    assert model.counts[counted] == 1


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    with running(Aggregator(SECRET, host=HOST, port=0, jobs=2, slots=16)) as made:
        yield made


def joined(port: int, rank: int, ranks: int, arithmetic: str = "natural") -> inline.Worker:
    return inline.Worker(
        HOST, port, rank=rank, ranks=ranks, session=9, secret=SECRET, arithmetic=arithmetic
    )


def test_workers_sum_without_bias_and_alike(aggregator: Aggregator) -> None:
    """The mean of many sums comes near to the exact one, which no sum is."""
    ranks, sums = 3, 400
    port, made = port_of(aggregator), [np.zeros(0)] * ranks
    given_ = floats(ranks, 700, 1.0, 3)
    given_[~np.isfinite(given_)] = 1
    given_[:, 0] = 2.0**20, 2.0**-9, 3 * 2.0**-12  # below the unit of the first block

    def work(rank: int) -> None:
        with joined(port, rank, ranks) as one:
            made[rank] = np.repeat(given_[rank : rank + 1], sums, 0)
            for row in made[rank]:
                one.sum(row)

    together([functools.partial(work, rank) for rank in range(ranks)])
    assert made[0].tobytes() == made[1].tobytes() == made[2].tobytes()
    exact = given_.sum(0, dtype=np.float64)
    largest = np.abs(given_[:, :BLOCK]).max()
    unit = 2.0 ** (np.floor(np.log2(largest)) + 1 - arithmetic.bits_for(ranks))
    # A power's variance is an eighth of the number's square at most; below one unit, a quarter.
    spread = np.sqrt((given_.astype(np.float64) ** 2 / 8).sum(0) + ranks * unit**2 / 4)
    error = np.abs(made[0].mean(0, dtype=np.float64) - exact)
    assert (error <= 6 * spread / np.sqrt(sums) + 1e-6 * np.abs(given_).sum(0)).all()
    assert np.std(made[0], 0).max() > 0


def test_halves_and_what_is_no_number(aggregator: Aggregator) -> None:
    port = port_of(aggregator)

    def work(rank: int) -> None:
        with joined(port, rank, 2) as one:
            mine = np.full(1000, 2.0 ** (rank - 3), np.float16)  # powers stay as they are
            mine[[3, 700]] = [np.inf, np.nan if rank else 1]
            one.sum(mine)
            assert np.isinf(mine[3]) and np.isnan(mine[700])
            assert (np.delete(mine, [3, 700]) == 0.375).all()
            with pytest.raises(ValueError, match=r"sums are made of float32, float16, C-cont"):
                one.sum(np.ones(4, np.int32))

    together([functools.partial(work, rank) for rank in range(2)])


def test_a_worker_of_another_arithmetic_is_refused(aggregator: Aggregator) -> None:
    port = port_of(aggregator)
    with joined(port, 0, 2):
        said = "rank 1: .*other workers of this job sum other numbers: give all workers the same"
        with pytest.raises(EngineError, match=said):
            joined(port, 1, 2, "integer")


def test_workers_with_tensors_of_other_sizes_fail_alike(aggregator: Aggregator) -> None:
    port = port_of(aggregator)

    def work(rank: int) -> None:
        with joined(port, rank, 2) as one:
            said = f"rank {rank}: .*a tensor of another size or dtype from another worker"
            with pytest.raises(EngineError, match=said):
                one.sum(np.ones(1000 + rank, np.float32))

    together([functools.partial(work, rank) for rank in range(2)])
