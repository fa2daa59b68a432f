"""Whether a rank's stores go past the caches, by what both kinds have taken."""

from __future__ import annotations

import numpy as np
import pytest
from _engine_tests import shared

NEAR = {False: 0.1e-9, True: 0.1e-9}  # seconds a byte
FAR = {False: 0.5e-9, True: 0.1e-9}


def past(stores: shared.Stores, took: dict[bool, float], chunks: int) -> list[bool]:
    used = []
    for _ in range(chunks):
        used.append(stores.next())
        stores.took(used[-1], took[used[-1]])
    return used


def test_near_cores_meet_in_their_cache_but_for_a_trial() -> None:
    used = past(shared.Stores(), NEAR, 630)
    assert sum(used) == 10 and used[1]


def test_far_cores_do_not_and_the_operating_system_moves_ranks() -> None:
    stores = shared.Stores()
    for _ in range(2):
        assert sum(past(stores, FAR, 630)) > 500
        past(stores, NEAR, 200)
        assert sum(past(stores, NEAR, 630)) == 10


def test_a_rank_that_loses_its_core_for_a_moment_changes_nothing() -> None:
    stores = shared.Stores()
    past(stores, NEAR, 200)
    for _ in range(20):
        stores.took(False, 1e-6)
        assert sum(past(stores, NEAR, 63)) == 1


def test_halfway_there_it_stays_with_what_it_does() -> None:
    between = {False: 0.2e-9, True: 0.1e-9}
    near, far = shared.Stores(), shared.Stores()
    past(near, NEAR, 200)
    past(far, FAR, 200)
    assert sum(past(near, between, 630)) == 10
    assert sum(past(far, between, 630)) == 620


@pytest.mark.parametrize("offset", (0, 1, 8, 16))
@pytest.mark.parametrize("count", (0, 1, 15, 16, 17, 1024, 1030))
def test_such_copies_are_exact_at_any_address(offset: int, count: int) -> None:
    source = (np.arange(2048) * 7 % 251 + 1).astype(np.uint8)
    room = np.zeros(2048 + 64, np.uint8)
    begin = -room.ctypes.data % 16 + offset
    shared.copy_past_caches(room[begin : begin + count], source[3 : 3 + count])
    np.testing.assert_array_equal(room[begin : begin + count], source[3 : 3 + count])
    assert not room[:begin].any() and not room[begin + count :].any()
