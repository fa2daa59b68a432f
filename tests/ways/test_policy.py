"""Guesses about a sum, and the way that is chosen for it, without a clock."""

from __future__ import annotations

from _engine_tests import ways

Way = ways.Way
UNION = Way.__members__["union"]


def test_classes() -> None:
    united = (0, 3, 4, 24, 25, 96, 97, 256, 257, 512, 513, 768)
    assert [ways.density_class(n, 768) for n in united] == sorted([*range(6), *range(6)])
    assert ways.density_class(0, 0) == 0
    sizes = [ways.size_class(n) for n in (0, 1, 2, 1 << 20, 3 << 19, 1 << 60)]
    assert sizes == [0, 0, 2, 40, 41, 120]


def step(densities: object, sums: list[tuple[int, int]]) -> list[tuple[int, bool]]:
    """Guesses of a step's sums; each is then made in a way that tells."""
    guesses = []
    for count, density in sums:
        guesses.append(densities.guess(count))
        densities.learn(density)
    return guesses


def test_sums_are_known_by_their_count() -> None:
    densities = ways.Densities()
    sums = [(1000, 5), (1001, 0), (7777, 3), (1003, 2)]
    step(densities, sums)
    for _ in range(5):
        assert step(densities, sums) == [(density, False) for _, density in sums]


def test_unknown_sums_are_like_others_of_their_size_if_those_agree() -> None:
    densities = ways.Densities()
    assert step(densities, [(10**6 + i, 5) for i in range(4)]) == [(ways.UNKNOWN, False)] * 4
    assert densities.guess(10**6 + 4) == (5, False)
    densities.learn(1)
    assert densities.guess(10**6 + 5) == (ways.UNKNOWN, False)
    assert densities.guess(10**7) == (ways.UNKNOWN, False)


def test_what_is_not_told_is_looked_at_ever_more_seldom_and_again_after_a_change() -> None:
    densities = ways.Densities()
    assert [densities.guess(5000) for _ in range(3)] == [
        (ways.UNKNOWN, False),
        (ways.UNKNOWN, False),
        (ways.UNKNOWN, True),
    ]
    densities.learn(ways.DENSE)
    looks = []
    for i in range(1000):
        density, look = densities.guess(5000)
        assert density == ways.DENSE
        if look:
            looks.append(i)
            densities.learn(ways.DENSE)
    gaps = [after - before for before, after in zip(looks, looks[1:])]
    assert gaps[0] >= 7 and gaps == sorted(gaps) and gaps[-1] == 127
    while not densities.guess(5000)[1]:
        pass
    densities.learn(0)
    assert densities.guess(5000) == (0, False)
    assert any(densities.guess(5000)[1] for _ in range(7)), "a new density is measured soon"


def test_a_density_that_lasted_may_change_but_not_twice() -> None:
    """A change costs no sum by a library that is slow then; tensors that take turns are unknown."""
    densities = ways.Densities()
    for told in (ways.DENSE, ways.DENSE, 1):
        densities.guess(5000)
        densities.learn(told)
    assert densities.guess(5000) == (1, False)
    for told in (ways.DENSE, 1, ways.DENSE):
        densities.learn(told)
        assert densities.guess(5000) == (ways.UNKNOWN, False)
    densities.learn(ways.DENSE)
    assert densities.guess(5000) == (ways.DENSE, False)


def test_memory_is_bounded() -> None:
    densities = ways.Densities()
    for i in range(10_000):
        densities.guess(100_000 + i)
        densities.learn(i % 6)
    assert densities.guess(77)[0] == ways.UNKNOWN


MILLION = 10**6


def run(policy: object, bin_: tuple[int, int], size: int, took: dict[object, float], sums: int):
    """Carries out orders for so many sums or some more; the ways that were gone."""
    took = {Way.coded: took[Way.stream], **took}
    used: list[object] = []
    while len(used) < sums:
        now, trial, after = policy.order(*bin_, size)
        for way in [now] * after + [trial]:
            if not policy.connects(way, took[way]):
                policy.measured(*bin_, way, size, size if way == Way.stream else None, took[way])
                if way == Way.original:
                    policy.library_took(size, took[way])
            used.append(way)
    return used


def test_small_sums_connect_at_once_if_told_so() -> None:
    took = {Way.stream: 1e-3, Way.original: 2e-3, Way.union: 3e-3}
    bin_, size = (ways.size_class(8192), ways.UNKNOWN), 8192
    patient, told = ways.Policy(), ways.Policy()
    told.connect_at_once()
    assert Way.stream not in run(patient, bin_, size, took, 50)
    used = run(told, bin_, size, took, 50)
    assert used[:2] == [Way.stream] * 2  # the first connects, and says nothing of the time
    assert used.count(Way.stream) > 40


def test_a_first_sum_is_measured_if_connecting_does_not_matter_in_it() -> None:
    """Else an algorithm that takes seconds would be tried twice."""
    for way, long in ((Way.stream, 1.0), (Way.original, 0.1)):
        assert ways.Policy().connects(way, 0.9 * long)
        assert not ways.Policy().connects(way, long)


def test_a_link_that_changes_is_noticed() -> None:
    policy = ways.Policy()
    bin_ = ways.size_class(MILLION), ways.DENSE
    used = run(policy, bin_, MILLION, {Way.stream: 1.0, Way.original: 1.2}, 500)
    assert used[-20:].count(Way.stream) >= 19
    used = run(policy, bin_, MILLION, {Way.stream: 2.0, Way.original: 1.2}, 1000)
    assert used[-20:].count(Way.original) >= 18


def test_bad_luck_in_the_first_trials_is_corrected_soon() -> None:
    policy = ways.Policy()
    bin_ = ways.size_class(MILLION), ways.DENSE
    for way in (Way.stream, Way.original):
        assert policy.connects(way, 1e-3) and not policy.connects(way, 1e-3)
    bad_luck, sums = 2, 0
    while sums < 80:
        now, trial, after = policy.order(*bin_, MILLION)
        for way in [now] * after + [trial]:
            took = {Way.stream: 2.9e-3, Way.coded: 2.9e-3, Way.original: 3.8e-3}[way]
            if way == Way.stream and bad_luck > 0:
                bad_luck, took = bad_luck - 1, 4.2e-3
            policy.measured(*bin_, way, MILLION, MILLION, took)
            sums += 1
    assert policy.order(*bin_, MILLION)[0] in (Way.stream, Way.coded)


def test_a_way_that_was_bad_is_not_tried_again_soon() -> None:
    policy = ways.Policy()
    bin_ = ways.size_class(MILLION), ways.DENSE
    used = run(policy, bin_, MILLION, {Way.stream: 20.0, Way.original: 1.0}, 500)
    assert used.count(Way.stream) <= 4  # the first connects, and does not count


def test_a_new_cell_begins_with_what_is_likely_to_be_the_fastest() -> None:
    """From other sizes: where the library takes a hundred times as long, it is not asked at all."""
    policy = ways.Policy()
    large = ways.size_class(64 * MILLION), 0
    used = run(policy, large, 64 * MILLION, {Way.stream: 0.02, UNION: 0.1, Way.original: 1.6}, 100)
    assert used[0] == Way.stream and used.count(Way.original) <= 3
    used = run(
        policy,
        (ways.size_class(8 * MILLION), 0),
        8 * MILLION,
        {Way.stream: 0.004, UNION: 0.02, Way.original: 0.2},
        50,
    )
    assert used[0] == Way.stream and used.count(Way.original) <= 1


def test_a_sparse_tensor_begins_with_the_union_if_only_the_library_is_known() -> None:
    """The library then sums few bytes, and the rest of a union costs no more than the library."""
    policy = ways.Policy()
    policy.connects(Way.original, 0.01)
    policy.library_took(MILLION, 0.01)
    size = ways.size_class(8 * MILLION)
    assert policy.order(size, 0, 8 * MILLION)[0] == UNION
    assert policy.order(size, ways.DENSE, 8 * MILLION)[0] == Way.original


def test_a_dense_tensor_that_streams_as_fast_as_cores_can_has_the_library_tried_next() -> None:
    policy = ways.Policy()
    bin_ = ways.size_class(MILLION), ways.DENSE
    policy.connects(Way.stream, 1.0)
    policy.order(*bin_, MILLION)
    policy.measured(*bin_, Way.stream, MILLION, MILLION, 0.001)
    _, trial, after = policy.order(*bin_, MILLION)
    assert trial == Way.original and after < 8


def test_a_tensor_of_few_blocks_tells_little_of_a_dense_one() -> None:
    """Streaming it took a thirtieth of the library's time, but next to nothing was sent."""
    size = 64 * MILLION
    sparse, dense = (ways.size_class(size), 0), (ways.size_class(size), ways.DENSE)
    policy = ways.Policy()
    for way in (Way.stream, Way.original):
        policy.connects(way, 1.0)
    policy.order(*sparse, size)
    policy.measured(*sparse, Way.stream, size, 800, 0.001)
    policy.library_took(size, 0.033)
    assert policy.order(*dense, size)[0] == Way.original
