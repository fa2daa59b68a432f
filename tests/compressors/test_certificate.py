"""The certificate: estimates that are unbiased over a rotation, one choice on all ranks, and the
floor that sends more."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnihvd import compression
from omnihvd.compression import counters
from omnihvd.compression.certificate import CALM, ENOUGH, EVERY, SETTLE, Blocks, Gauge, Products
from omnihvd.statistics import Statistics, compression_figures

SIZES = st.lists(st.integers(0, 900), min_size=1, max_size=6)


class Kept:
    """In place of a gauge: what it is told."""

    vote = 0

    def __init__(self):
        self.found = []

    def note(self, found, blocks, level):
        self.found.append((found, blocks, level))


def numbered(sizes, at=0):
    """Parameters of small integers, no two alike in a row, so that all sums are exact."""
    count = itertools.count(at)
    return [np.array([next(count) % 61 - 30 for _ in range(n)], np.float32) for n in sizes]


def chosen(blocks, parameters):
    out = np.zeros(blocks.length, np.float32)
    for number, flat in enumerate(parameters):
        blocks.put(out, number, flat)
    return out


@settings(deadline=None, max_examples=8)
@given(sizes=SIZES, block_size=st.sampled_from([1, 3, 8]), first=st.integers(0, 3 * EVERY))
def test_a_rotation_of_estimates_has_the_true_mean(sizes, block_size, first):
    kept = Kept()
    blocks = Blocks(kept, sizes, block_size)
    true, received = numbered(sizes), numbered(sizes, 17)
    blocks.step = first
    for _ in range(EVERY):
        blocks.compare(chosen(blocks, true), chosen(blocks, received), 1)
        blocks.step += 1
    a, b = (np.concatenate(p).astype(np.float64) for p in (true, received))
    sums = np.sum([found for found, _, _ in kept.found], axis=0)
    assert sums.tolist() == [EVERY * float(x @ y) for x, y in ((a, a), (b, b), (a, b))]
    count = sum(-(-n // block_size) for n in sizes)
    assert {compared for _, compared, _ in kept.found} == {-(-count // EVERY)}


@settings(deadline=None, max_examples=8)
@given(sizes=SIZES, block_size=st.sampled_from([1, 3, 8]))
def test_each_element_is_chosen_once_in_a_rotation(sizes, block_size):
    blocks, elements = Blocks(Kept(), sizes, block_size), sum(sizes)
    values = np.split(np.arange(1.0, elements + 1), np.cumsum(sizes)[:-1])
    seen = []
    for _ in range(EVERY):
        out = chosen(blocks, values)
        seen += out[out != 0].tolist()
        blocks.step += 1
    assert sorted(seen) == list(range(1, elements + 1))


@settings(deadline=None, max_examples=8)
@given(sizes=SIZES, step=st.integers(0, 10**6))
def test_pytorch_chooses_what_numpy_does(sizes, step):
    torch = pytest.importorskip("torch")
    blocks = Blocks(Kept(), sizes, 8)
    blocks.step = step
    out = torch.zeros(blocks.length)
    for number, flat in enumerate(numbered(sizes)):
        blocks.put(out, number, torch.from_numpy(flat))
    assert out.numpy().tolist() == chosen(blocks, numbered(sizes)).tolist()


def test_at_most_one_block_in_256_travels():
    blocks = Blocks(Kept(), [10_000_000, 300, 5_000_000], 256)
    assert (blocks.length - 257) / 15_000_300 < 1 / EVERY < 0.005


def test_what_the_figures_mean():
    assert Products(4, 1, 1).cosine() == 0.5
    assert Products(4, 1, 1).relative_error() == pytest.approx(3**0.5 / 2)
    assert Products(9, 9, 9).relative_error() == 0
    assert Products(4, 4, -4).cosine() == -1
    assert Products().cosine() is None and Products().relative_error() is None


def test_statistics_have_the_figures_of_an_interval():
    figures, gauge = Statistics(), Gauge(None, compression.topk(0.1).config.rule)
    gauge.note(Products(4, 1, 1), 1, 0)
    gauge.note(Products(float("nan"), 1, 1), 1, 0)
    found = figures.read(reset=True)["compression"]
    assert (found["certified_steps"], found["certified_true"]) == (1, 4)
    assert found["cosine"] == 0.5 and found["relative_error"] == pytest.approx(3**0.5 / 2)
    logged = compression_figures({"compression": found})
    assert logged == {"compression_cosine": 0.5, "compression_error": found["relative_error"]}
    assert figures.read()["compression"]["cosine"] is None
    assert counters.stats()["certified_steps"] >= 1


def levels(gauge, cosine, decisions):
    """The levels of so many steps, in which cosine(level) is what is sent."""
    found = []
    for _ in range(decisions):
        gauge.note(Products(1.0, 1.0, cosine(gauge.vote)), ENOUGH, gauge.vote)
        found.append(gauge.vote)
    return found


def test_below_the_floor_more_is_sent():
    compressor = compression.topk(0.1).with_floor(0.9)
    reached = levels(compressor.gauge, lambda level: [0.3, 0.6, 0.8, 0.92, 1.0][level], 100)
    assert reached[0] == 1 and reached[SETTLE] == 1, "it did not wait for the change's effect"
    assert reached[-1] == 3, "0.92 is above the floor, and not far above"
    compressor.gauge.note(Products(1, 1, 0.92), 1, 3)
    assert compressor.ratio(0) == pytest.approx(0.8)


def test_a_few_blocks_are_not_enough_to_send_more():
    gauge = compression.topk(0.1).with_floor(0.9).gauge
    gauge.note(Products(1, 1, 0.3), ENOUGH - 1, 0)
    assert gauge.vote == 0
    gauge.note(Products(1, 1, 0.3), 1, 0)
    assert gauge.vote == 1


def test_below_zero_all_is_sent_and_well_above_the_floor_less_again():
    compressor = compression.topk(0.05).with_floor(0.9)
    gauge = compressor.gauge
    assert levels(gauge, lambda level: -0.01, 1) == [gauge.last]
    gauge.note(Products(1, 1, 1), 1, gauge.last)
    assert compressor.ratio(0) == 1
    assert levels(gauge, lambda level: 0.99, SETTLE + CALM + 1)[-1] == gauge.last - 1


def test_without_a_floor_nothing_changes():
    gauge = compression.topk(0.05).with_certificate().gauge
    assert set(levels(gauge, lambda level: -1, 20)) == {0}


def test_thresholds_halve():
    compressor = compression.topk_threshold(8.0).with_floor(0.9)
    multiples = []
    for level in range(compressor.gauge.last + 1):
        compressor.gauge.level = level
        multiples.append(1 / compressor.ratio(0) - 1)
    assert multiples[:3] == pytest.approx([1, 0.5, 0.25]) and multiples[-1] == 0


def test_the_ranks_agree_by_the_mean_of_their_votes():
    kept = Kept()
    blocks = Blocks(kept, [5], 5)
    blocks.compare(np.array([0, 0, 0, 0, 0, 6], np.float32), np.zeros(6, np.float32), 3)
    assert kept.found[0][2] == 2


def test_it_says_itself():
    assert repr(compression.topk(0.1).with_certificate()) == "topk(ratio=0.1).with_certificate()"
    assert repr(compression.topk(0.1).with_floor(0.8)) == "topk(ratio=0.1).with_floor(0.8)"


def test_elastic_jobs_have_none(monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    with pytest.raises(ValueError, match="certificates and floors are not for elastic jobs: leave"):
        Blocks(Kept(), [5], 5)
