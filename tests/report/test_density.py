"""Counting what is not zero, and what follows from it, against counting one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from omnihvd.report import density


def some(elements: int, share: float, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(elements) < share, 1.0, 0.0).astype(np.float32)


@pytest.mark.parametrize("elements", [0, 1, 31, 32, 33, 1000, 70_000, (1 << 20) + 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int16])
def test_counts_are_those_of_counting(elements: int, dtype: type) -> None:
    array = some(elements, 0.1).astype(dtype)
    if elements > 40 and dtype is not np.int16:
        array[40] = -0.0
    counts = density.count(array)
    groups = density.groups_of(counts)
    padded = np.pad(array != 0, (0, -elements % 32)).reshape(-1, 32).sum(1)
    assert counts.elements == elements and counts.nonzero == (array != 0).sum()
    assert np.array_equal(groups, padded)
    for size in density.BLOCK_SIZES:
        padded = np.pad(array != 0, (0, -elements % size)).reshape(-1, size).sum(1)
        assert np.array_equal(density.by_block(groups, size), padded)


@pytest.mark.parametrize("width", [3, 32, 64, 100])
def test_rows(width: int) -> None:
    array = some(200 * width, 0.01).reshape(200, width)
    array[7] = 0
    counts = density.count(array, 200)
    assert np.array_equal(density.rows_of(counts), (array != 0).any(1))
    assert counts.nonzero_rows == (array != 0).any(1).sum()
    numbers = np.flatnonzero((array != 0).any(1))
    sparse = density.count_rows(200, width, numbers, array[numbers])
    assert np.array_equal(density.groups_of(sparse), density.groups_of(counts))
    assert sparse.nonzero_rows == counts.nonzero_rows
    twice = np.concatenate([numbers, numbers])  # rows that come twice count once
    again = density.count_rows(200, width, twice, array[twice])
    assert np.array_equal(density.groups_of(again), density.groups_of(counts))


def test_a_union_within_the_samples_is_the_mean_over_all_choices() -> None:
    masks = np.array([[1, 0, 1, 0, 0], [1, 1, 0, 0, 0], [1, 0, 0, 1, 0]], bool)
    incidence = masks.sum(0)
    pairs = [masks[[a, b]].any(0).mean() for a, b in ((0, 1), (0, 2), (1, 2))]
    assert density.union_share(incidence, 3, 1) == pytest.approx(masks.mean())
    assert density.union_share(incidence, 3, 2) == pytest.approx(np.mean(pairs))
    assert density.union_share(incidence, 3, 3) == pytest.approx(0.8)


def test_a_union_beyond_the_samples_is_near_the_truth() -> None:
    """Units that each sample has with Zipf's frequencies, drawn 4 times, and what 16 have."""
    rng = np.random.default_rng(3)
    chance = 1 - (1 - 1 / np.arange(1, 20_001) / math.log(20_000)) ** 300
    incidence = (rng.random((4, chance.size)) < chance).sum(0)
    for ranks in (4, 8, 16):
        truth = (1 - (1 - chance) ** ranks).mean()
        assert density.union_share(incidence, 4, ranks) == pytest.approx(truth, rel=0.1)
    same = np.where(np.arange(100) < 10, 4, 0)  # all samples have the same: so will others
    assert density.union_share(same, 4, 64) == pytest.approx(0.1)
    assert density.union_share(np.full(100, 4), 4, 64) == 1


def test_elements_of_a_union() -> None:
    one = np.array([[32, 0, 5, 8]], np.uint8)
    assert np.array_equal(density.united_groups(one), one[0])
    two = density.united_groups(np.array([[32, 0, 5, 8], [0, 0, 0, 8]], np.uint8))
    assert two.tolist() == [32, 0, 5, 14]  # 32 (1 - (1 - 8/32)^2)
