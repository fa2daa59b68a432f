"""Delay control: the law, on modelled networks, and the compressors it is for."""

import itertools
import random

import numpy as np
import parameters
import pytest

from omnihvd import compression
from omnihvd.compression import counters, delay
from omnihvd.compression.delay import Controller, DelayControl

DENSE = 10e6  # bytes of a step without compression
BUDGET = 20  # ms


def run(controller, steps, bandwidth, noise=0.0, seed=0):
    """The ratios of so many steps over a link of `bandwidth` bytes/s."""
    draw, ratios = random.Random(seed), []
    for _ in range(steps):
        seconds = controller.ratio * DENSE / bandwidth
        controller.step(seconds * draw.lognormvariate(0, noise))
        ratios.append(controller.ratio)
    return ratios


def controller(ratio=0.5, min_ratio=0.01):
    return Controller(DelayControl(BUDGET, min_ratio), ratio)


@pytest.mark.parametrize("start", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("fits", [0.05, 0.2, 0.6])
def test_the_sums_come_to_take_the_budget(start, fits):
    ratios = run(controller(start), 100, fits * DENSE / (BUDGET / 1e3))
    assert 0.79 * fits <= ratios[-1] <= 1.21 * fits
    assert ratios[-1] == ratios[-20], "it does not come to rest"


def test_it_follows_a_link_that_gets_slower_and_faster():
    control = controller(0.5)
    assert run(control, 60, 125e6)[-1] == pytest.approx(0.25, rel=0.21)
    slow = run(control, 30, 12.5e6)
    assert slow[-1] == pytest.approx(0.025, rel=0.25)
    assert min(slow) >= 0.01
    assert run(control, 60, 125e6)[-1] == pytest.approx(0.25, rel=0.21)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_stable_under_noise(seed):
    control = controller(0.2)
    ratios = run(control, 300, 125e6, noise=0.3, seed=seed)[100:]
    assert 0.15 < np.mean(ratios) < 0.35
    assert np.std(ratios) < 0.15 * np.mean(ratios)


def test_one_slow_step_changes_little():
    control = controller(0.25)
    run(control, 50, 125e6)
    before = control.ratio
    control.step(2.0)
    assert control.ratio >= 0.7 * before
    assert run(control, 30, 125e6)[-1] == pytest.approx(0.25, rel=0.21)


def test_another_network_is_met_at_the_second_step():
    control = controller(0.25)
    run(control, 50, 125e6)
    slow = run(control, 2, 12.5e6)
    assert slow[0] > 0.1 and slow[1] == pytest.approx(0.025, rel=0.01)
    fast = run(control, 2, 125e6)
    assert fast[0] < 0.05 and fast[1] == pytest.approx(0.25, rel=0.01)


def test_a_rule_of_less_than_the_least_is_not_made_to_send_more():
    slow = controller(0.0005, min_ratio=0.001)
    slow.step(10.0)
    assert slow.ratio <= 0.0005


@pytest.mark.parametrize("seconds", [0.0, 1e-5])
def test_an_idle_network_brings_it_back_to_dense(seconds):
    control = controller(0.01)
    for _ in range(60):
        control.step(seconds)
    assert control.ratio == 1.0


@pytest.mark.parametrize(("ratio", "share"), [(1.0, 0.8), (0.5, 1.2)])
def test_the_edges_of_the_band_change_nothing(ratio, share):
    """A fit that differs from the ratio by just BAND of it; all of these numbers are exact."""
    control = Controller(DelayControl(1000 * share, 0.01), ratio)
    assert control.step(1.0) == ratio


def test_it_never_falls_below_its_least():
    assert run(controller(0.5, min_ratio=0.1), 50, 1e3)[-1] == 0.1


def monitored(monkeypatch, steps, sums_of_a_step):
    """The ratios of steps with these sums."""
    done = iter(range(steps + 1))

    def totals():
        so_far = next(done)
        return delay.Sums(*(so_far * figure for figure in sums_of_a_step))

    monkeypatch.setattr(delay, "_sums", totals)
    monitor = delay.Monitor(DelayControl(BUDGET, 0.01), 0.1)
    ratios = []
    for step in range(steps + 1):
        ratios.append(monitor.ratio(step))
        assert monitor.ratio(step) == ratios[-1]  # another parameter's, which ends no step
    return ratios


def test_sums_whose_time_is_not_known_are_no_idle_network(monkeypatch):
    seconds = 2 * BUDGET / 1e3
    alone = delay.Sums(0, 0.0, 0, 0, 1000)
    assert monitored(monkeypatch, 60, alone)[-1] == 1.0
    uncounted = delay.Sums(0, 0.0, 0, 0, 0)
    assert set(monitored(monkeypatch, 60, uncounted)) == {0.1}
    untimed = delay.Sums(0, 0.0, 0, 1000, 0)
    assert set(monitored(monkeypatch, 60, untimed)) == {0.1}
    half = delay.Sums(500, seconds, 500, 500, 0)  # all take twice as long as is known
    known = delay.Sums(500, 2 * seconds, 1000, 0, 0)
    assert monitored(monkeypatch, 9, half) == monitored(monkeypatch, 9, known)
    assert monitored(monkeypatch, 9, half)[-1] < 0.1


def test_what_was_left_to_the_library_and_codes_are_counted(monkeypatch):
    figures = {
        "bytes_sent": 3,
        "library_bytes": 4,
        "ways": {"stream": {"seconds": 0.5, "bytes": 10}, "unite": {"seconds": 0.25, "bytes": 20}},
        "passed": {"small": {"bytes": 5}, "one rank": {"bytes": 6}, "control": {"bytes": 7}},
    }
    monkeypatch.setattr(delay.engine.session, "stats", lambda: figures)
    before = delay._sums()
    assert before.alone == 6
    counters.add_codes(100, 0.25)
    counters.add_codes(11, None)
    assert delay._sums().since(before) == (111, 0.25, 100, 11, 0)
    counters.reset()
    assert delay._sums() == (7, 0.75, 30, 5, 6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: compression.block_random(0.1).with_delay_control(10),
        lambda: compression.randomk(0.1).with_delay_control(10),
        lambda: compression.power_sgd().with_delay_control(10),
        lambda: compression.topk(0.1).with_delay_control(0),
        lambda: compression.topk(0.1).with_delay_control(10, min_ratio=0),
        lambda: compression.topk(0.1).with_delay_control(10).with_warmup(1),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(ValueError):
        make()


def test_representation():
    text = "topk(ratio=0.1).with_delay_control(budget_ms=5.0, min_ratio=0.01)"
    assert repr(compression.topk(0.1).with_delay_control(5, 0.01)) == text


@pytest.mark.parametrize("framework", parameters.FRAMEWORKS)
@pytest.mark.parametrize(
    "compressor",
    [
        compression.block_topk(0.05, 8),
        compression.topk(0.05),
        compression.global_topk(0.05),
        compression.sidco(0.05),
        compression.topk_threshold(1.0),
        compression.block_threshold(4.0, 8),
    ],
    ids=lambda compressor: compressor.config.rule.factory,
)
def test_a_rank_alone_sends_all_in_the_end(framework, compressor, monkeypatch):
    """Its network is idle: more is sent from step to step."""
    bytes_summed = itertools.count()
    totals = lambda: delay.Sums(0, 0.0, 0, 0, next(bytes_summed))  # noqa: E731
    monkeypatch.setattr(delay, "_sums", totals)
    parameter = parameters.make(framework, compressor.with_delay_control(10))
    gradient, counts = np.random.default_rng(0).standard_normal(6000), []
    for _ in range(60):
        counts.append(np.count_nonzero(parameter.send(gradient)))
    assert counts[0] < 0.4 * 6000 and counts[-1] == 6000
