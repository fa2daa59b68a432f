"""What is guessed of a sum, and which way is chosen for it, without a clock."""

from __future__ import annotations

import random

import pytest
from _engine_tests import ways

Way = ways.Way
UNION = Way.__members__["union"]
TRIED = [Way.stream, UNION, Way.union_two_step, Way.original, Way.two_step]


def test_classes() -> None:
    united = (0, 3, 4, 24, 25, 96, 97, 256, 257, 512, 513, 768)
    assert [ways.density_class(n, 768) for n in united] == sorted([*range(6), *range(6)])
    assert ways.density_class(0, 0) == 0
    sizes = [ways.size_class(n) for n in (0, 1, 2, 1 << 20, 3 << 19, 1 << 60)]
    assert sizes == [0, 0, 2, 40, 41, 120]


def step(densities: object, sums: list[tuple[int, int]]) -> list[tuple[int, bool]]:
    """Guesses of a step's sums, each of which is then made in a way that tells."""
    guesses = []
    for count, density in sums:
        guesses.append(densities.guess(count))
        densities.learn(density)
    return guesses


def test_sums_are_known_by_their_place_in_the_step() -> None:
    densities = ways.Densities()
    # Equal sizes, told apart by what came before; the first of a step comes after the last.
    sums = [(1000, 5), (1000, 0), (7777, 3), (1000, 2)]
    step(densities, sums)
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
    for _ in range(4):  # until the two before are the same, too
        densities.guess(5000)
        densities.learn(ways.DENSE)
    looks = []
    for i in range(1000):
        density, look = densities.guess(5000)
        assert density == ways.DENSE
        if look:
            looks.append(i)
            densities.learn(ways.DENSE)
    gaps = [after - before for before, after in zip(looks, looks[1:])]
    assert gaps[0] >= 8 and gaps == sorted(gaps) and gaps[-1] == 128
    while not densities.guess(5000)[1]:
        pass
    densities.learn(0)
    assert densities.guess(5000) == (0, False)


def test_memory_is_bounded() -> None:
    densities = ways.Densities()
    for i in range(10_000):
        densities.guess(100_000 + i)
        densities.learn(i % 6)
    assert densities.guess(77)[0] == ways.UNKNOWN


MILLION = 10**6


def times(library: float, stream: float, scan: float, two_step: float) -> dict[object, object]:
    """Seconds of a sum of b bytes, a share u of them in the union, for each way. The arguments are
    seconds per byte: of the library, of streaming (what is non-zero), of a scan."""
    return {
        Way.stream: lambda b, u: 1e-4 + b * (scan + stream * u),
        UNION: lambda b, u: 2e-4 + b * (2 * scan + library * u),
        Way.union_two_step: lambda b, u: 3e-4 + b * (2 * scan + two_step * u),
        Way.original: lambda b, u: 1e-4 + b * library,
        Way.two_step: lambda b, u: 2e-4 + b * two_step,
    }


LINKS = {
    "slow link": times(12e-9, 11e-9, 0.1e-9, 13e-9),
    "slow link, slow library": times(25e-9, 11e-9, 0.1e-9, 12e-9),
    "one host": times(0.9e-9, 3e-9, 0.15e-9, 0.8e-9),
    "fast link": times(3.5e-9, 3.6e-9, 0.15e-9, 3.0e-9),
}


@pytest.mark.parametrize("density", range(6))
@pytest.mark.parametrize("link", LINKS)
def test_finds_the_fastest_way_and_keeps_to_it(link: str, density: int) -> None:
    share = (1 / 512, 1 / 64, 1 / 10, 1 / 5, 0.5, 1.0)[density]
    policy = ways.Policy()
    noise = random.Random(density)
    for size in (MILLION, 30 * MILLION):
        cell = ways.size_class(size), density
        took = {way: LINKS[link][way](size, share) for way in TRIED}
        if density == ways.DENSE:
            took = {way: t for way, t in took.items() if "union" not in way.name}
        used: list[object] = []
        for _ in range(2000):
            if len(used) > 1900:
                break
            now, trial, after = policy.order(*cell, size)
            for way in [now] * after + [trial]:
                seconds = took[way] * (1 + 0.05 * noise.random())
                policy.measured(*cell, way, size, int(share * size), seconds)
                if way != Way.stream:
                    summed = size * (share if "union" in way.name else 1)
                    policy.library_took("two_step" in way.name, int(summed), seconds)
                used.append(way)
        best = min(took.values())
        tried = sum(took[way] for way in used[:20])
        assert tried < 20 * best + 2.2 * sum(t for t in took.values() if t < 4 * best) + 16 * best
        # In the long run: within what hysteresis and trials may cost.
        assert sum(took[way] for way in used[20:]) < 1.09 * best * len(used[20:])


def test_hopeless_ways_are_not_tried() -> None:
    """A sum of 0.2% on a slow link: the original takes a hundred times as long."""
    policy = ways.Policy()
    cell = ways.size_class(100 * MILLION), 0
    for _ in range(50):
        now, trial, after = policy.order(*cell, 100 * MILLION)
        assert after > 0 or trial in (Way.stream, UNION, Way.union_two_step)
        if after > 0:
            break
        seconds = LINKS["slow link"][trial](100 * MILLION, 1 / 500)
        policy.measured(*cell, trial, 100 * MILLION, MILLION // 5, seconds)
        if trial != Way.stream:
            policy.library_took(False, MILLION // 5, 12e-9 * MILLION / 5)
    assert now == Way.stream and after >= 60


def test_a_link_that_changes_is_noticed() -> None:
    policy = ways.Policy()
    cell = ways.size_class(MILLION), ways.DENSE

    def run(took: dict[object, float], sums: int) -> object:
        done = 0
        while done < sums:
            now, trial, after = policy.order(*cell, MILLION)
            for way in [now] * after + [trial]:
                policy.measured(*cell, way, MILLION, MILLION, took[way])
                done += 1
        return policy.order(*cell, MILLION)[0]

    assert run({Way.stream: 1.0, Way.original: 1.2, Way.two_step: 1.4}, 500) == Way.stream
    assert run({Way.stream: 2.0, Way.original: 1.2, Way.two_step: 1.4}, 1000) == Way.original


def test_bad_luck_in_the_first_trials_is_corrected_soon() -> None:
    policy = ways.Policy()
    cell = ways.size_class(MILLION), ways.DENSE
    bad_luck, sums = 2, 0
    while sums < 60:
        now, trial, after = policy.order(*cell, MILLION)
        if now == Way.original:
            return
        for way in [now] * after + [trial]:
            took = {Way.stream: 3.8, Way.original: 2.9, Way.two_step: 9.0}[way]
            if way == Way.original and bad_luck > 0:
                bad_luck, took = bad_luck - 1, 4.5
            policy.measured(*cell, way, MILLION, MILLION, took)
            sums += 1
    pytest.fail(f"the fastest way was not found in {sums} sums")
