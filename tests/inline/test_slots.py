"""Sums over slots: right whatever a network does to datagrams, by a clock that is a number."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from _engine_tests import arithmetic
from _engine_tests import inline_parts as parts
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.integer_sums import BLOCK, in_integers

NONE = 0xFFFFFFFF
HEAD = struct.Struct("<QBBHHHIIIB3x")
INT32, FLOAT32, FPISA, FPISA_A = range(4)
CONTRIBUTION, RESULT, JOIN, WELCOME, REFUSAL, LEAVE, WAIT, QUESTION = range(1, 9)
HAS_BLOCK, REPEAT, THERE = 1, 2, 4
NOBODY, ALL, SENDER = range(3)
KEY = 77


def tensors(sums: int, workers: int, count: int, density: float, seed: int) -> np.ndarray:
    """int32 [sums, workers, count]. So many blocks are non-zero; each element says where
    it is from, and most sums over workers wrap around."""
    random = np.random.default_rng(seed)
    blocks = -(-count // BLOCK)
    keep = np.repeat(random.random((sums, workers, blocks)) < density, BLOCK, axis=2)[..., :count]
    values = random.integers(-(2**31), 2**31, (sums, workers, count))
    return np.where(keep, values, 0).astype(np.int32)


def summed(given: np.ndarray) -> np.ndarray:
    total = given.astype(np.int64).sum(1, keepdims=True).astype(np.int32)
    return np.broadcast_to(total, given.shape)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5),
    st.sampled_from([0, 1, 255, 256, 257, 3000, 9001]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([0.0, 0.02, 0.3]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0, 3000, 200_000]),
    st.integers(0, 2**32),
)
def test_sums_are_right_over_any_network(
    workers: int,
    count: int,
    density: float,
    slots: int,
    dense: bool,
    lost: float,
    twice: float,
    late: float,
    pause: int,
    seed: int,
) -> None:
    given_ = tensors(3, workers, count, density, seed)
    network = parts.Network(lost=lost, twice=twice, late=late, pause=pause)
    ended, sums, _, counts, _ = parts.run_job(given_, slots, dense, network, seed)
    assert ended
    assert np.array_equal(sums, summed(given_))
    assert not counts["impossible"] and not counts["forged"]


def floats(sums: int, workers: int, count: int, density: float, seed: int) -> np.ndarray:
    """float32 [sums, workers, count], of many magnitudes, some of them no numbers; blocks that
    a worker lacks are -0.0."""
    random = np.random.default_rng(seed)
    shape = (sums, workers, count)
    keep = np.repeat(random.random((sums, workers, -(-count // BLOCK))) < density, BLOCK, axis=2)
    values = random.standard_normal(shape) * 2.0 ** random.integers(-12, 12, shape)
    strange = random.random(shape) < 0.002
    values[strange] = random.choice([np.nan, np.inf, -np.inf], strange.sum())
    return np.where(keep[..., :count], values, -0.0).astype(np.float32)


def summed_floats(given: np.ndarray) -> np.ndarray:
    return np.stack([np.tile(in_integers(rows, arithmetic), (len(rows), 1)) for rows in given])


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 5),
    st.sampled_from([0, 1, 255, 256, 257, 3000]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 2**32),
)
def test_sums_of_floats_are_those_of_integers_bit_for_bit(
    workers: int,
    count: int,
    density: float,
    slots: int,
    dense: bool,
    lost: float,
    late: float,
    seed: int,
) -> None:
    given_ = floats(2, workers, count, density, seed)
    network = parts.Network(lost=lost, twice=lost, late=late)
    ended, sums, _, counts, _ = parts.run_job(given_, slots, dense, network, seed)
    assert ended and not counts["impossible"]
    assert sums.tobytes() == summed_floats(given_).tobytes()


def test_floats_of_two_bytes_are_widened() -> None:
    given_ = (floats(1, 3, 3000, 0.5, 7) / 256).astype(np.float16)
    ended, sums, *_ = parts.run_job(given_, 4, False, parts.Network(lost=0.1), 7)
    assert ended and np.isnan(sums).any() and np.isinf(sums).any()
    np.testing.assert_array_equal(sums, summed_floats(given_).astype(np.float16))
    assert all(worker.tobytes() == sums[0, 0].tobytes() for worker in sums[0])


def test_what_is_no_number_takes_a_datagram_more_for_its_block() -> None:
    given_ = np.ones((1, 3, 8 * BLOCK), np.float32)
    given_[0, 1, 5 * BLOCK + 3] = np.inf
    ended, sums, (_, _, blocks), *_ = parts.run_job(given_, 2, False, parts.Network(), 1)
    assert ended and blocks == 3 * 8 + 1
    expected = np.full(8 * BLOCK, 3, np.float32)
    expected[5 * BLOCK + 3] = np.inf
    assert np.array_equal(sums[0], [expected] * 3)


def test_all_workers_of_a_mask() -> None:
    given_ = tensors(2, 32, 700, 0.5, 1)
    ended, sums, *_ = parts.run_job(given_, 2, False, parts.Network(lost=0.05, late=0.1), 1)
    assert ended and np.array_equal(sums, summed(given_))


@pytest.mark.parametrize("dense", [False, True])
def test_on_a_sound_network_each_block_travels_once(dense: bool) -> None:
    given_ = tensors(1, 4, 64 * BLOCK, 0.25, 3)
    ended, _, (sent, again, blocks), counts, _ = parts.run_job(given_, 4, dense, parts.Network(), 3)
    present = given_.reshape(4, 64, BLOCK).any(2)
    openings, rounds = 4 * 4, 64 if dense else int(present.any(0).sum())
    assert ended and again == 0
    assert blocks == (4 * 64 if dense else present.sum())
    assert counts["results"] == rounds + 4
    # Those who lack a block say so in every other round at most.
    assert sent <= openings + blocks + (4 * rounds - blocks) / 2 + 4 * 4
    assert counts["answers"] == counts["duplicate"] == counts["early"] == 0


def test_who_is_silent_for_long_holds_up_what_he_may_need() -> None:
    # A worker without blocks, whom nothing reaches but after long: results are kept for it.
    given_ = tensors(1, 2, 40 * BLOCK, 1.0, 5)
    given_[0, 1] = 0
    network = parts.Network(late=0.3, lateness=60_000)
    ended, sums, _, counts, _ = parts.run_job(given_, 1, False, network, 5)
    assert ended and np.array_equal(sums, summed(given_))
    assert counts["early"] > 0 and counts["answers"] > 0


@pytest.mark.parametrize("lost", [0.3, 0.9])
@pytest.mark.parametrize("slots", [1, 7])
def test_lost_results_are_asked_for(lost: float, slots: int) -> None:
    given_ = tensors(2, 3, 30 * BLOCK, 0.5, 6)
    network = parts.Network(results_lost=lost, pause=3000)
    ended, sums, _, counts, _ = parts.run_job(given_, slots, False, network, 6)
    assert ended and np.array_equal(sums, summed(given_))
    assert counts["answers"] > 0 and counts["impossible"] == 0


def test_where_all_results_are_lost_it_shows_that_they_are_there() -> None:
    given_ = tensors(1, 3, 9 * BLOCK, 1.0, 7)
    for network, there in (
        (parts.Network(results_lost=1.0), True),
        (parts.Network(lost=1.0), False),
    ):
        waiting = parts.waiting(given_, 2, network, 300_000)
        assert [at for at, _ in waiting] == [there] * 3
        assert all(moved <= 300 for _, moved in waiting)  # none got on since it began


def test_a_sum_that_gets_on_says_so() -> None:
    given_ = tensors(1, 3, 4000 * BLOCK, 1.0, 7)
    waiting = parts.waiting(given_, 2, parts.Network(), 100_000)
    assert all(99_000 < moved <= 100_000 for _, moved in waiting)


def test_waiting_for_others_to_begin_does_not_make_losses_cost_more() -> None:
    # Each of some 100 lost datagrams costs a few of the least time-outs, 1 ms, not 50 ms.
    given_ = tensors(12, 2, 40 * BLOCK, 1.0, 8)
    network = parts.Network(lost=0.05, pause=200_000)
    ended, sums, _, _, took = parts.run_job(given_, 1, False, network, 8)
    assert ended and np.array_equal(sums, summed(given_))
    assert took < 12 * 200_000 + 1_200_000


def test_round_trips_above_the_first_time_out_are_measured_too() -> None:
    # Back and forth takes 10 ms, and the first time-out is 3 ms.
    given_ = tensors(1, 2, 64 * BLOCK, 1.0, 9)
    ended, sums, (sent, again, _), *_ = parts.run_job(given_, 4, True, parts.Network(least=5000), 9)
    assert ended and np.array_equal(sums, summed(given_))
    assert again < sent / 4


def contribution(worker: int = 0, round_: int = 0, block: int = NONE, **other: Any) -> bytes:
    fields = {"key": KEY, "kind": CONTRIBUTION, "flags": 0, "job": 0, "slot": 0, "next": 0, **other}
    flags = fields["flags"] | (HAS_BLOCK if block != NONE else 0)
    head = HEAD.pack(
        fields["key"], fields["kind"], flags, fields["job"], worker, fields["slot"], round_, block,
        fields["next"], other.get("exponent", 0),
    )  # fmt: skip
    return head + other.get("data", bytes(4 * BLOCK if flags else 0))


@pytest.fixture
def aggregator() -> parts.SlotAggregator:
    made = parts.SlotAggregator(2, 4)
    made.set_job(0, KEY, 2)
    return made


@pytest.mark.parametrize(
    ("datagram", "counted"),
    [
        (b"", "short"),
        (contribution()[:31], "short"),
        (contribution(block=0)[:-1], "short"),
        (contribution(block=0) + b"x", "long"),
        (contribution() + b"x", "long"),
        (contribution(key=KEY + 1), "forged"),
        (contribution(key=0, job=1), "other_job"),
        (contribution(job=2), "other_job"),
        (contribution(job=65535), "other_job"),
        (contribution(worker=2), "stranger"),
        (contribution(worker=65535), "stranger"),
        (contribution(slot=4), "impossible"),
        (contribution(round_=1), "impossible"),
        (contribution(block=0, next=4), "impossible"),  # before the opening
        (contribution(round_=2**32 - 9), "old"),
        (contribution(round_=2**32 - 1), "duplicate"),
        (contribution(round_=2**31 + 5), "old"),
    ],
)
def test_what_no_worker_sends_is_counted_and_has_no_effect(
    aggregator: parts.SlotAggregator, datagram: bytes, counted: str
) -> None:
    assert aggregator.take(datagram) == (NOBODY, b"")
    assert {name for name, n in aggregator.counts.items() if n} == {counted}
    assert aggregator.take(contribution(0, next=4))[0] == NOBODY
    to, result = aggregator.take(contribution(1, next=8, exponent=9))
    assert to == ALL
    assert HEAD.unpack(result)[6:] == (0, NONE, 4, 0)


def test_results_are_for_all_and_for_whom_they_have_not_reached(
    aggregator: parts.SlotAggregator,
) -> None:
    def said(answer: tuple[int, bytes]) -> tuple[int, ...]:
        return answer[0], *HEAD.unpack(answer[1][:32])[6:], len(answer[1])

    aggregator.take(contribution(0, next=4, exponent=3))
    assert said(aggregator.take(contribution(1, next=4, exponent=7))) == (ALL, 0, NONE, 4, 7, 32)
    aggregator.take(contribution(0, 1, 4, next=8))
    again = contribution(1, 0, next=4, flags=REPEAT)
    assert said(aggregator.take(again)) == (SENDER, 0, NONE, 4, 7, 32)
    assert aggregator.take(contribution(1, 0, next=4)) == (NOBODY, b"")
    assert aggregator.counts["duplicate"] == 1
    assert said(aggregator.take(contribution(1, 1, 4, next=NONE))) == (ALL, 1, 4, 8, 0, 1056)
    for wrong in (contribution(1, 2, 8), contribution(0, 2, 8, next=8), contribution(0, 2, 12)):
        assert aggregator.take(wrong) == (NOBODY, b"")  # not its own; not ascending; another block
    assert aggregator.counts["impossible"] == 3
    assert said(aggregator.take(contribution(0, 2, 8, next=NONE))) == (ALL, 2, 8, NONE, 0, 1056)


@pytest.mark.parametrize("numbers", [INT32, FPISA])
def test_a_job_cannot_read_what_the_last_left_in_its_slots(numbers: int) -> None:
    aggregator, versions = parts.SlotAggregator(2, 2), 8
    for job in range(2):
        for workers, key in ((2, KEY), (1, KEY + 1)):
            aggregator.set_job(job, key, workers, numbers)
            # Before this job's first round there is no result, whoever had the place before.
            for slot in range(2):
                for age in range(1, versions + 2):
                    before = 2**32 - age
                    asked = contribution(key=key, job=job, slot=slot, round_=before, flags=REPEAT)
                    said = aggregator.take(asked)[1]
                    assert not any(said[24:]), "neither a block nor its place"
            for round_ in range(versions + 3):
                for worker in range(workers):
                    data = np.arange(BLOCK, dtype="<i4") + 1000 * round_ + worker + 1
                    block = 2 * round_ - 1 if round_ else NONE
                    sent = contribution(
                        worker, round_, block, key=key, job=job, slot=1, next=2 * round_ + 1,
                        data=data.tobytes() if round_ else b"",
                    )  # fmt: skip
                    to, _ = aggregator.take(sent)
                assert to == ALL


SPECIAL = np.array([0.0, -0.0, 1.5, np.inf, -np.inf, np.nan, 1e-42, -3e38], "<f4")


@pytest.mark.parametrize("numbers", [FLOAT32, FPISA, FPISA_A])
def test_floats_are_added_as_the_job_says(numbers: int) -> None:
    aggregator = parts.SlotAggregator(1, 1)
    aggregator.set_job(0, KEY, 3, numbers)
    random = np.random.default_rng(9)
    blocks = random.standard_normal((3, BLOCK)).astype("<f4") * 2.0 ** random.integers(-9, 9, BLOCK)
    blocks = blocks.astype("<f4")
    blocks[1, :64], blocks[2, :64] = np.repeat(SPECIAL, 8), np.tile(SPECIAL, 8)
    for worker in range(3):
        aggregator.take(contribution(worker, next=0))
    for worker in range(3):
        sent = contribution(worker, 1, 0, next=NONE, data=blocks[worker].tobytes())
        to, result = aggregator.take(sent)
    asked = contribution(0, 1, 0, next=NONE, flags=REPEAT)
    assert to == ALL
    to, answer = aggregator.take(asked)
    assert to == SENDER and answer[32:] == result[32:]
    with np.errstate(all="ignore"):
        floats = blocks[0] + blocks[1] + blocks[2]
    _, _, registers = arithmetic.fpisa_sum(blocks, approximate=numbers == FPISA_A)
    expected = floats if numbers == FLOAT32 else registers
    got = np.frombuffer(result[32:], "<f4")
    assert np.array_equal(got, expected, equal_nan=True)


class TestJobs:
    SECRET, SESSION = "of the tests", 12345

    def said(
        self, kind: int, worker: int, workers: int = 2, session: int = SESSION, **other
    ) -> bytes:
        secret, flags = other.get("secret", self.SECRET), other.get("flags", 0)
        slot, awaited = other.get("slot", 0), other.get("awaited", 0)
        numbers = other.get("numbers", 0)
        return parts.signed_head(
            secret, session, kind, flags, worker, workers, slot, awaited, numbers
        )

    def test_a_job_begins_with_its_first_worker_and_ends_with_its_last(self) -> None:
        jobs = parts.Jobs(self.SECRET, 1, 16)
        for worker, changed in ((0, 0), (1, None), (1, None)):
            answer, what = jobs.take(1, 9, self.said(JOIN, worker))
            assert what == changed and HEAD.unpack(answer[:32])[1] == WELCOME
            assert HEAD.unpack(answer[:32])[5] == 16
        wait, _ = jobs.take(2, 9, self.said(JOIN, 0, session=6))
        assert HEAD.unpack(wait[:32])[1] == WAIT
        assert HEAD.unpack(jobs.take(2, 9, self.said(JOIN, 0, 3))[0][:32])[1:3] == (REFUSAL, 2)
        assert [jobs.take(3, 9, self.said(LEAVE, w))[1] for w in (0, 0, 1, 1)] == [
            None,
            None,
            0,
            None,
        ]
        gone, _ = jobs.take(4, 9, self.said(JOIN, 0, flags=REPEAT))
        assert HEAD.unpack(gone[:32])[1:3] == (REFUSAL, 3)
        assert jobs.take(4, 9, self.said(JOIN, 0, session=6))[1] == 0

    def test_who_asks_again_hears_whether_the_result_is_there(self) -> None:
        jobs = parts.Jobs(self.SECRET, 1, 16)

        def flags(slot: int, awaited: int) -> int:
            asked = self.said(JOIN, 0, flags=REPEAT, slot=slot, awaited=awaited)
            flags = HEAD.unpack(jobs.take(2, 9, asked)[0][:32])[2]
            assert flags & REPEAT
            return flags & ~REPEAT

        jobs.take(1, 9, self.said(JOIN, 0))
        jobs.sums.set_job(0, KEY, 2)
        jobs.sums.take(contribution(0, next=3, slot=3))
        assert flags(3, 0) == 0
        jobs.sums.take(contribution(1, next=3, slot=3))
        assert flags(3, 0) == THERE
        assert flags(3, 2**32 - 1) == THERE
        assert flags(3, 1) == flags(2, 0) == flags(16, 0) == flags(65535, 0) == 0

    def test_who_asks_again_hears_for_whom_the_round_waits(self) -> None:
        jobs = parts.Jobs(self.SECRET, 1, 16)

        def missing(awaited: int, slot: int = 3) -> list[int]:
            asked = self.said(JOIN, 0, 3, flags=REPEAT, slot=slot, awaited=awaited)
            bits = HEAD.unpack(jobs.take(2, 9, asked)[0][:32])[7]
            return [worker for worker in range(32) if bits >> worker & 1]

        jobs.take(1, 9, self.said(JOIN, 0, 3))
        jobs.sums.set_job(0, KEY, 3)
        assert missing(0) == [0, 1, 2]
        jobs.sums.take(contribution(0, next=3, slot=3))
        assert missing(0) == [1, 2] and missing(0, slot=16) == []
        jobs.sums.take(contribution(1, next=NONE, slot=3))
        jobs.sums.take(contribution(2, next=3, slot=3))
        assert missing(0) == []  # that result is there
        for round_ in range(1, 9):
            block = 3 + 16 * (round_ - 1)
            assert missing(round_) == ([0, 2] if round_ < 8 else [1])  # who may need the first
            for worker in (0, 2):
                sent = contribution(worker, round_, block, next=block + 16, slot=3)
                jobs.sums.take(sent)
        assert jobs.sums.counts["early"] == 2

    def test_a_silent_job_is_asked_and_keeps_its_place(self) -> None:
        jobs, hour = parts.Jobs(self.SECRET, 1, 16), 3_600_000_000
        for worker in range(2):
            jobs.take(1, 100 + worker, self.said(JOIN, worker))

        def kind(now: int, at: int = 9) -> tuple[int, ...]:
            answer, _ = jobs.take(now, at, self.said(JOIN, 0, session=6))
            return HEAD.unpack(answer[:32])[1:3]

        assert kind(hour)[0] == WAIT
        asked = jobs.questions(hour)
        assert [to for to, _ in asked] == [100, 101]
        heads = [HEAD.unpack(datagram[:32]) for _, datagram in asked]
        assert [head[:2] + head[4:5] for head in heads] == [
            (self.SESSION, QUESTION, worker) for worker in range(2)
        ]
        assert kind(hour + 1_499_999)[0] == WAIT
        assert kind(hour + 1_500_000) == kind(hour + 2_999_999) == (REFUSAL, 1)
        assert kind(hour + 2_999_999, at=8)[0] == WAIT  # another one
        assert kind(hour + 3_000_000)[0] == WAIT
        assert jobs.take_refusal(hour + 3_100_000, 100) is None
        assert kind(hour + 4_599_999)[0] == WAIT  # since there was news
        assert kind(hour + 4_600_000) == (REFUSAL, 1)  # a worker lives

    def test_a_job_has_ended_when_the_hosts_of_all_workers_say_so(self) -> None:
        jobs, ms = parts.Jobs(self.SECRET, 1, 16), 1000

        def refused(*times_and_addresses: tuple[int, int]) -> list[int | None]:
            return [jobs.take_refusal(now * ms, at) for now, at in times_and_addresses]

        for worker in range(2):
            jobs.take(1, 100 + worker, self.said(JOIN, worker))
        assert refused((1, 100), (2, 100), (300, 100), (301, 9)) == [None] * 4
        jobs.take(302 * ms, 100, self.said(JOIN, 0))  # it lives
        assert refused((303, 101), (304, 100), (305, 101), (402, 100)) == [None] * 4
        assert [to for to, _ in jobs.questions(402 * ms)] == [100, 101]  # to be sure
        assert refused((403, 101)) == [0]
        assert jobs.take(404 * ms, 9, self.said(JOIN, 0, session=6))[1] == 0
        jobs.take(405 * ms, 10, self.said(JOIN, 1, session=6))
        jobs.take(406 * ms, 10, self.said(LEAVE, 1, session=6))
        assert refused((500, 9), (501, 9), (600, 9)) == [None, None, 0]  # all that has not left

    def test_a_job_that_contributes_has_not_ended(self) -> None:
        jobs = parts.Jobs(self.SECRET, 1, 16)
        jobs.take(1, 100, self.said(JOIN, 0, 1))
        jobs.sums.set_job(0, KEY, 1)
        for now in range(100_000, 1_000_000, 50_000):
            jobs.sums.take(contribution(0, next=3))
            assert jobs.take_refusal(now, 100) is None
        assert [jobs.take_refusal(now, 100) for now in (1_000_000, 1_050_000)] == [None, 0]

    def test_all_workers_of_a_job_sum_the_same_numbers(self) -> None:
        jobs = parts.Jobs(self.SECRET, 1, 16)
        unknown, _ = jobs.take(1, 9, self.said(JOIN, 0, numbers=5))
        assert HEAD.unpack(unknown[:32])[1:3] == (REFUSAL, 5)
        jobs.take(1, 9, self.said(JOIN, 0, numbers=FLOAT32))
        other, _ = jobs.take(1, 9, self.said(JOIN, 1, numbers=INT32))
        assert HEAD.unpack(other[:32])[1:3] == (REFUSAL, 4)
        same, _ = jobs.take(1, 9, self.said(JOIN, 1, numbers=FLOAT32))
        assert HEAD.unpack(same[:32])[1] == WELCOME

    def test_strangers_get_no_answer(self) -> None:
        jobs = parts.Jobs(self.SECRET, 1, 16)
        right = self.said(JOIN, 0)
        wrong = [
            self.said(JOIN, 0, secret="another"), self.said(JOIN, 2), self.said(JOIN, 0, 0),
            self.said(JOIN, 0, 33), self.said(WELCOME, 0), right[:-1], right + b"x", b"",
        ]  # fmt: skip
        wrong += [right[:i] + bytes([right[i] ^ 1]) + right[i + 1 :] for i in range(len(right))]
        assert all(jobs.take(1, 9, datagram) is None for datagram in wrong)
        assert jobs.take(1, 9, right)
