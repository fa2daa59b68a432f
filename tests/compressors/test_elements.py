"""Each rule for elements sends the right ones, in each framework."""

import math

import numpy as np
import parameters
import pytest

from omnihvd import compression
from omnihvd.compression import counters

each_framework = pytest.mark.parametrize("framework", parameters.FRAMEWORKS)
SIZE = 20_000  # more than are selected exactly, or sampled whole

SELECTING = {
    "topk": compression.topk(0.01),
    "randomk": compression.randomk(0.01),
    "dgc": compression.dgc(0.01),
    "exponential": compression.sidco(0.01),
    "gamma": compression.sidco(0.01, "gamma"),
    "pareto": compression.sidco(0.01, "pareto"),
}
ALL = {**SELECTING, "adaptive": compression.adaptive(0.01)}
each_rule = pytest.mark.parametrize("kind", ALL)


def normal(seed=0, size=SIZE):
    return np.random.default_rng(seed).standard_normal(size)


def heavy(seed=0, size=SIZE):
    """A tail as gradients have it, some of it zeros."""
    random = np.random.default_rng(seed)
    return random.standard_t(4, size) * random.exponential(1, size) * (random.random(size) < 0.8)


@each_framework
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@each_rule
def test_what_is_not_sent_stays(framework, dtype, kind):
    compressor = ALL[kind].with_momentum_correction(0)
    parameter = parameters.make(framework, compressor, dtype=dtype)
    rest = np.zeros(SIZE)
    for step in range(3):
        gradient = parameter.round(heavy(step))
        sent, total = parameter.send(gradient), rest + gradient
        rest = parameter.kept("rest")
        np.testing.assert_allclose(sent + rest, total, rtol=1e-6, atol=1e-5)
        if kind in SELECTING and dtype == "float32":  # each element is on one side only
            assert not np.any((sent != 0) & (rest != 0))


@each_framework
@pytest.mark.parametrize("size", [1, 2, 7, 300])
@each_rule
def test_small_parameters(framework, size, kind):
    parameter = parameters.make(framework, ALL[kind])
    for step in range(2):
        sent = parameter.send(normal(step, size))
        assert sent.shape == (size,) and sent.any()


@each_framework
@each_rule
def test_zeros_send_zeros(framework, kind):
    parameter = parameters.make(framework, ALL[kind])
    for _ in range(2):
        assert not parameter.send(np.zeros(SIZE)).any()


@each_framework
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@each_rule
def test_nan_and_infinity_are_sent_at_once_and_leave_nothing(framework, bad, kind):
    parameter = parameters.make(framework, ALL[kind])
    for size in (7, SIZE)[-1:]:
        gradient = normal(size=size)
        gradient[[1, 6]] = bad
        sent = parameter.send(gradient)
        assert not np.isfinite(sent[[1, 6]]).any()
        assert np.isfinite(parameter.kept("rest")).all()
        assert all(np.isfinite(memory).all() for memory in parameter.memory().values())
        assert np.isfinite(parameter.send(normal(size=size))).all()


@each_framework
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.5, 1.0])
def test_topk_sends_the_largest(framework, ratio):
    gradient = np.random.default_rng(0).permutation(np.arange(1.0, 1001))
    sent = parameters.make(framework, compression.topk(ratio)).send(gradient)
    np.testing.assert_array_equal(sent, np.where(gradient > 1000 - 1000 * ratio, gradient, 0))


@each_framework
def test_topk_sends_all_that_are_equal(framework):
    gradient = np.where(np.arange(100) % 2, 3.0, -3.0)
    np.testing.assert_array_equal(
        parameters.make(framework, compression.topk(0.1)).send(gradient), gradient
    )


def two_parameters(framework, compressor):
    """One has ten times the other's gradients, and both have more elements than a sample."""
    pair = [parameters.make(framework, compressor, name) for name in ("large", "small")]
    if framework == "tensorflow":  # they share the compressor, as in a training
        pair[1]._backend = pair[0]._backend
    sizes, scales = (90_000, 110_000), (10, 1)

    def step(number):
        """Yields the numbers that each parameter sends."""
        for parameter, size, scale in zip(pair, sizes, scales):
            sent = parameter.send(scale * normal(number, size))
            yield sent[sent != 0]

    return step


@each_framework
@pytest.mark.parametrize("ratio", [0.3, 0.05, 0.001])
def test_one_threshold_holds_for_all_parameters(framework, ratio):
    step = two_parameters(framework, compression.global_topk(ratio))
    for number in range(30):
        large, small = step(number)
        if number == 0:  # each parameter's own share, of a sample
            assert len(small) == pytest.approx(ratio * 110_000, rel=0.25)
    assert len(large) + len(small) == pytest.approx(
        ratio * 200_000, rel=0.1 if ratio > 0.01 else 0.4
    )
    assert len(small) < 0.2 * len(large)
    least = abs(large).min()
    assert len(small) < 9 or abs(small).min() == pytest.approx(least, rel=0.01)


def test_a_sample_has_other_elements_in_each_step(monkeypatch):
    from omnihvd.compression import numpy_ops
    from omnihvd.compression.methods import global_elements
    from omnihvd.compression.rules import Call

    class Samples:
        def put(self, parameter, counts):
            taken.append(counts)
            return counts

    taken = []
    numbers = heavy(size=1003).astype(np.float32)
    every = 1003 // 100
    monkeypatch.setattr(global_elements, "SAMPLE", 100)
    rule = global_elements.GlobalElements(0.1)
    for step in range(5, 5 + every):
        rule.limit(numbers, Call(numpy_ops, len(numbers), 0.1, 0, step, {}, Samples()))
    assert np.array_equal(sum(taken), every * numpy_ops.magnitudes(numbers))


def test_a_changed_ratio_holds_at_the_next_step():
    from omnihvd.compression import numpy_ops
    from omnihvd.compression.split import ParameterState, split

    compressor, state = compression.global_topk(0.05), ParameterState("p")
    sent = []
    for number in range(40):
        ratio = 0.05 if number < 39 else 0.005
        given = normal(number, 100_000).astype(np.float32)
        part = split(numpy_ops, given, state, compressor.config, ratio, compressor.together)
        sent.append(np.count_nonzero(part))
    assert sent[38] == pytest.approx(5000, rel=0.1) and sent[39] == pytest.approx(500, rel=0.3)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1, 0.01, 0.001])
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e30])
def test_a_histogram_tells_the_threshold(share, scale):
    from omnihvd.compression import numpy_ops
    from omnihvd.compression.methods.global_elements import level

    numbers = (scale * heavy(size=200_000)).astype(np.float32)
    numbers[numbers == 0] = scale
    limit = level(numpy_ops.magnitudes(numbers), share)
    assert np.mean(abs(numbers) > limit) == pytest.approx(share, rel=0.1)
    assert level(numpy_ops.magnitudes(numbers), 1.0) == 0
    assert math.isnan(level(numpy_ops.magnitudes(np.array([np.nan, np.inf])), share))


@each_framework
def test_random_elements_are_those_of_all_ranks_and_change(framework):
    ranks = [parameters.make(framework, compression.randomk(0.05, 7)) for _ in range(2)]
    others = [parameters.make(framework, compression.randomk(0.05, 8)) for _ in range(1)]
    masks = [
        [rank.send(1 + np.abs(normal(i))) != 0 for _ in range(2)]
        for i, rank in enumerate(ranks + others)
    ]
    for step in range(2):
        assert np.array_equal(masks[0][step], masks[1][step])
        assert not np.array_equal(masks[0][step], masks[2][step])
        assert abs(masks[0][step].mean() - 0.05) < 0.01
    assert not np.array_equal(*masks[0])


@each_framework
@pytest.mark.parametrize("ratio", [0.02, 0.5, 1.0])
def test_random_elements_without_error_feedback_are_unbiased(framework, ratio):
    """The mean over all elements and seeds lies within five standard errors."""
    seeds, size = 50, 500
    mean = 0.0
    for seed in range(seeds):
        compressor = compression.randomk(ratio, seed).with_error_feedback(False)
        mean += parameters.make(framework, compressor).send(np.ones(size)).mean() / seeds
    assert abs(mean - 1) <= 5 * np.sqrt((1 / ratio - 1) / (seeds * size)) + 1e-6


@each_framework
@pytest.mark.parametrize("ratio", [0.1, 0.001])
def test_dgc_is_near_its_ratio(framework, ratio):
    compressor = compression.dgc(ratio).with_error_feedback(True)
    sent = parameters.make(framework, compressor).send(heavy(size=100_000))
    assert 0.7 <= np.count_nonzero(sent) / (ratio * sent.size) <= 1.3
    left = np.where(sent == 0, heavy(size=100_000), 0)
    assert np.abs(left).max() <= np.abs(sent[sent != 0]).min() * 1.0001


@each_framework
def test_gradients_are_clipped_before_they_are_kept(framework):
    compressor = compression.dgc(0.01).with_clipping(0.5)
    parameter, gradient = parameters.make(framework, compressor), normal()
    for given in (gradient, gradient / np.linalg.norm(gradient) / 4):
        before = parameter.kept("rest") if given is not gradient else 0
        velocity = 0.9 * parameter.kept("velocity") if given is not gradient else 0
        sent = parameter.send(given)
        clipped = given * min(1, 0.5 / np.linalg.norm(given))
        wanted = before + velocity + clipped
        np.testing.assert_allclose(sent + parameter.kept("rest"), wanted, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="above 0"):
        compression.dgc(0.01).with_clipping(0)


def test_a_hard_threshold_by_its_budget_is_the_authors():
    assert compression.topk_threshold(budget=11174).config.rule.threshold == pytest.approx(
        4.73e-3, rel=1e-3
    )
    for wrong in ({}, {"threshold": 1.0, "budget": 5}):
        with pytest.raises(ValueError, match="or a budget"):
            compression.topk_threshold(**wrong)


@each_framework
@pytest.mark.parametrize(("scale", "times"), [(1, 0.89), (2, 3.21)])
def test_a_budget_does_not_know_the_gradients_scale(framework, scale, times):
    """Rests of normal gradients are random walks, which pass T deviations after (T + 0.58)^2 steps.
    The gradient has a norm of 1/2, at which about the budget is sent; or twice that."""
    elements, budget = 10_000, 100
    parameter = parameters.make(framework, compression.topk_threshold(budget=budget))
    deviation, sent = scale * 0.5 / elements**0.5, []
    for step in range(400):
        gradient = deviation * normal(step, elements)
        sent.append(np.count_nonzero(parameter.send(gradient.astype(np.float32))))
    assert np.mean(sent[200:]) == pytest.approx(times * budget, rel=0.1)


CHOOSING = {
    **SELECTING,
    "global_topk": compression.global_topk(0.01),
    "block_topk": compression.block_topk(0.01),
    "block_random": compression.block_random(0.01),
}


@pytest.mark.parametrize("kind", CHOOSING)
def test_at_a_ratio_of_1_all_is_sent_unsearched(kind, monkeypatch):
    """As a floor and delay control may have it: a draw of all elements would fill the memory."""
    from omnihvd.compression import numpy_ops
    from omnihvd.compression.rules import Call
    from omnihvd.compression.split import ParameterState, split

    compressor, state = CHOOSING[kind].with_momentum_correction(0), ParameterState("p")
    config, together = compressor.config, compressor.together
    gradient = normal().astype(np.float32)
    sent = split(numpy_ops, gradient, state, config, 0.01, together)
    assert 0 < np.count_nonzero(sent) < 0.02 * SIZE
    rest = state.rest.copy()
    monkeypatch.setattr(numpy_ops, "kth_largest", None)
    monkeypatch.setattr(Call, "random", None)
    sent = split(numpy_ops, gradient, state, config, 1.0, together)
    np.testing.assert_array_equal(sent, rest + gradient)
    assert not state.rest.any()


def test_dgc_corrects_momentum():
    assert compression.dgc(0.01).config.momentum == 0.9
    assert compression.dgc(0.01).with_momentum_correction(0.5).config.momentum == 0.5


def fitted(distribution: str, sizes: np.ndarray, share: float, stages: int) -> float:
    """SIDCo's threshold for elements of these sizes, with either sign, before any correction."""
    torch = pytest.importorskip("torch")
    from omnihvd.compression import torch_ops as ops
    from omnihvd.compression.methods.moments import exceedance

    signs = np.random.default_rng(1).choice([-1, 1], len(sizes))
    total = torch.tensor((sizes * signs).astype(np.float32))
    rule = compression.sidco(share, distribution).config.rule
    return float(rule.fit(ops, total, exceedance(ops, total, 0.0), share, stages))


@pytest.mark.parametrize("share", [0.2, 0.01, 0.001])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_sidcos_fit_of_an_exponential_distribution(share, stages):
    """The distribution has no memory: stages find what one finds, also those of other tails."""
    sizes = np.random.default_rng(0).exponential(3.0, 400_000)
    exact = -3.0 * np.log(share)
    assert fitted("exponential", sizes, share, stages) == pytest.approx(exact, rel=0.03)
    assert fitted("gamma", sizes, share, stages) == pytest.approx(exact, rel=0.05)
    assert fitted("pareto", sizes, share, stages) == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("share", [0.2, 0.01])
def test_sidcos_fit_of_a_generalized_pareto_distribution(share):
    shape, scale = 0.1, 2.0
    rest = np.random.default_rng(0).random(400_000)
    sizes = scale * (rest**-shape - 1) / shape
    exact = scale * (share**-shape - 1) / shape
    assert fitted("pareto", sizes, share, 1) == pytest.approx(exact, rel=0.05)
    assert fitted("exponential", sizes, 0.01, 1) < 0.9 * scale * (0.01**-shape - 1) / shape


@pytest.mark.parametrize("shape", [0.5, 0.8])
@pytest.mark.parametrize("share", [0.1, 0.001])
def test_sidcos_fit_of_a_gamma_distribution(shape, share):
    """By the paper's bound of the tail, which is exact for shape 1."""
    sizes = np.random.default_rng(0).gamma(shape, 2.0, 400_000)
    bound = -2.0 * (np.log(share) + math.lgamma(shape))
    assert fitted("gamma", sizes, share, 1) == pytest.approx(bound, rel=0.05)


@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("distribution", ["exponential", "gamma", "pareto"])
def test_sidco_meets_its_ratio_after_20_steps(distribution, ratio):
    pytest.importorskip("torch")
    parameter = parameters.make("torch", compression.sidco(ratio, distribution))
    size, achieved = 20_000, []
    for step in range(32):
        sent = parameter.send(heavy(step, size))
        achieved.append(np.count_nonzero(sent) / (ratio * size))
    assert 0.8 <= np.mean(achieved[20:]) <= 1.2


@pytest.mark.parametrize("ratio", [0.1, 0.001])
@pytest.mark.parametrize("distribution", ["exponential", "gamma", "pareto"])
def test_sidco_meets_its_ratio_where_rests_grow_together(distribution, ratio):
    pytest.importorskip("torch")
    parameter = parameters.make("torch", compression.sidco(ratio, distribution))
    random, size, achieved = np.random.default_rng(0), 20_000, []
    for _ in range(32):
        gradient = random.choice([-1, 1], size) * (1 + 0.1 * random.random(size))
        sent = parameter.send(gradient.astype(np.float32))
        achieved.append(np.count_nonzero(sent) / (ratio * size))
    assert 0.8 <= np.mean(achieved[20:]) <= 1.2


@pytest.mark.parametrize("kind", ["uniform", "heavy", "normal"])
def test_sidco_learns_which_share_to_ask_of_a_fit_that_is_wrong(kind):
    """No stages of the exponential fit keep a tenth of these. Learnt gains do: then the fit needs
    no correction, and keeps what was asked."""
    pytest.importorskip("torch")
    compressor = compression.sidco(0.1).with_error_feedback(kind == "heavy")
    parameter, kept = parameters.make("torch", compressor), []
    for step in range(60):
        random = np.random.default_rng(step)
        drawn = {
            "uniform": random.uniform(-1, 1, SIZE),
            "heavy": heavy(step),
            "normal": normal(step),
        }
        if step == 40:
            counters.reset()
        parameter.send(drawn[kind])
        kept.append(parameter.memory()["fit"][3])
    assert counters.stats()["rounds"] == 0
    assert np.mean(kept[40:]) == pytest.approx(0.1 * SIZE, rel=0.05)


@pytest.mark.parametrize("as_published", [False, True])
def test_sidcos_rounds_of_correction_are_counted(as_published):
    """None where the fit is right, or as published; some where rests grow together."""
    pytest.importorskip("torch")
    counters.reset()
    compressor = compression.sidco(0.01, "exponential", as_published)
    exponential = np.random.default_rng(0).exponential(1, SIZE)
    parameters.make("torch", compressor.with_error_feedback(False)).send(exponential)
    assert counters.stats()["rounds"] == 0
    parameters.make("torch", compressor).send(np.linspace(1, 1.1, SIZE))
    assert (counters.stats()["rounds"] > 0) != as_published


def test_sidco_as_published_changes_its_stages_by_one_after_five_steps():
    pytest.importorskip("torch")
    parameter = parameters.make("torch", compression.sidco(0.001, "exponential", True))
    stages = []
    for step in range(16):
        kept = np.count_nonzero(parameter.send(heavy(step)))
        stages.append(parameter.memory()["fit"][0])
        if step < 5:  # heavier than exponential: one stage keeps too much
            assert kept > 1.2 * 0.001 * SIZE
    assert stages[:4] == [1] * 4 and stages[4:9] == [2] * 5 and stages[9] != 2


@each_framework
def test_adaptive_sends_two_values(framework):
    gradient = normal()
    sent = parameters.make(framework, compression.adaptive(0.01)).send(gradient)
    up, down = np.sort(gradient)[::-1], np.sort(gradient)
    counts = [max(1, int(0.01 * (side > 0).sum() + 0.5)) for side in (gradient, -gradient)]
    means = [up[: counts[0]].mean(), down[: counts[1]].mean()]
    np.testing.assert_allclose(np.unique(sent), [means[1], 0, means[0]], rtol=1e-5)
    assert [(sent > 0).sum(), (sent < 0).sum()] == counts


def test_frameworks_send_alike():
    """Random draws aside, which each framework makes in its own way."""
    pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    for kind in ("topk", "exponential", "gamma", "pareto", "adaptive"):
        sent = []
        for framework in ("torch", "tensorflow"):
            parameter = parameters.make(framework, ALL[kind])
            sent.append([parameter.send(heavy(step)) for step in range(7)])
        different = ~np.isclose(*sent, rtol=1e-4, atol=1e-5)
        assert different.mean() < 2e-4, kind
