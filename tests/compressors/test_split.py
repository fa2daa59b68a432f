"""Properties of splitting one gradient into what is sent and what stays, in each framework."""

import numpy as np
import parameters
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnihvd.compression import block_random, block_threshold, block_topk, topk_threshold
from omnihvd.compression.rules import kept_count

SIZE = 8  # elements of a block: small, so that few elements make many blocks
DTYPES = ["float32", "float64", "float16", "bfloat16"]
each_framework = pytest.mark.parametrize("framework", parameters.FRAMEWORKS)
unhurried = settings(deadline=None)  # TensorFlow takes seconds to start
each_dtype = pytest.mark.parametrize("dtype", DTYPES)

ratios = st.floats(0.01, 1)
compressors = st.one_of(
    st.builds(block_topk, ratios, st.just(SIZE)),
    st.builds(block_random, ratios, st.integers(0, 2**40), st.just(SIZE)),
    st.builds(block_threshold, st.floats(0, 10), st.just(SIZE)),
    st.builds(topk_threshold, st.floats(0, 10)),
)
shapes = st.one_of(
    st.just(()),
    st.tuples(st.integers(1, 100)),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
)


def draw(data, shape):
    """Values of very different sizes, many of them zero."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    values = random.standard_normal(shape) * 10.0 ** random.integers(-4, 4, shape)
    return np.where(random.random(shape) < 0.3, 0, values)


def blocks_of(array):
    flat = array.reshape(-1)
    return [flat[i : i + SIZE] for i in range(0, len(flat), SIZE)]


def forgetful(compressor):
    return compressor.with_error_feedback(False)


@each_framework
@each_dtype
@unhurried
@given(data=st.data(), compressor=compressors, shape=shapes, momentum=st.sampled_from([0, 0.5]))
def test_sent_and_rest_are_gradient_and_old_rest_exactly(
    framework, dtype, data, compressor, shape, momentum
):
    compressor = compressor.with_momentum_correction(momentum)
    parameter = parameters.make(framework, compressor, dtype=dtype)
    wide = np.float64 if dtype == "float64" else np.float32
    rest, velocity = np.zeros(shape, wide), np.zeros(shape, wide)
    for _ in range(3):
        gradient = parameter.round(draw(data, shape))
        velocity = wide(momentum) * velocity + gradient.astype(wide)
        total = rest + velocity
        sent = parameter.send(gradient)
        rest = parameter.kept("rest").astype(wide)
        np.testing.assert_array_equal(sent + rest, total.astype(np.float64))
        if dtype in ("float32", "float64"):  # each element is on one side only
            assert not np.any((sent != 0) & (rest != 0))
        if momentum:
            velocity = parameter.kept("velocity").astype(wide)


@each_framework
@unhurried
@given(data=st.data(), ratio=ratios, shape=shapes)
def test_topk_sends_the_largest_blocks(framework, data, ratio, shape):
    parameter = parameters.make(framework, forgetful(block_topk(ratio, SIZE)))
    gradient = parameter.round(draw(data, shape))
    pairs = list(zip(blocks_of(gradient), blocks_of(parameter.send(gradient))))
    kept = [np.linalg.norm(block) for block, sent in pairs if sent.any()]
    left = [np.linalg.norm(block) for block, sent in pairs if not sent.any()]
    assert all(np.array_equal(block, sent) for block, sent in pairs if sent.any())
    nonzero = sum(block.any() for block, _ in pairs)
    assert len(kept) == min(nonzero, kept_count(ratio, len(pairs)))
    assert not kept or max(left, default=0) <= min(kept) * (1 + 1e-5)  # norms are float32


@each_framework
@unhurried
@given(data=st.data(), threshold=st.floats(0, 100), shape=shapes)
def test_threshold_sends_the_blocks_that_reach_it(framework, data, threshold, shape):
    compressor = forgetful(block_threshold(threshold, SIZE))
    parameter = parameters.make(framework, compressor, dtype="float64")
    gradient = draw(data, shape)
    for block, sent in zip(blocks_of(gradient), blocks_of(parameter.send(gradient))):
        norm = np.linalg.norm(block)
        if abs(norm - threshold) > 1e-12 * threshold:
            np.testing.assert_array_equal(sent, block if norm > threshold else 0)


@each_framework
@each_dtype
@unhurried
@given(data=st.data(), threshold=st.floats(0, 100), shape=shapes)
def test_element_threshold_sends_the_elements_above_it(framework, dtype, data, threshold, shape):
    parameter = parameters.make(framework, forgetful(topk_threshold(threshold)), dtype=dtype)
    gradient = parameter.round(draw(data, shape))
    sent = parameter.send(gradient)
    for value, got in zip(gradient.reshape(-1), sent.reshape(-1)):
        assert got in (value, 0)
        if abs(abs(value) - threshold) > 0.01 * threshold:  # as precise as bfloat16
            assert got == (value if abs(value) > threshold else 0)


@each_framework
@unhurried
@given(data=st.data(), seed=st.integers(0, 2**40), ratio=ratios)
def test_equal_seeds_draw_equal_blocks_on_all_ranks(framework, data, seed, ratio):
    ranks = [parameters.make(framework, block_random(ratio, seed, SIZE)) for _ in range(3)]
    for _ in range(2):
        sent = [rank.send(np.abs(draw(data, 50)) + 1) for rank in ranks]
        chosen = [[block.any() for block in blocks_of(s)] for s in sent]
        assert chosen[0] == chosen[1] == chosen[2]
        assert sum(chosen[0]) == kept_count(ratio, 7)


@each_framework
def test_other_seeds_steps_and_parameters_draw_other_blocks(framework):
    draws = set()
    for seed, name in ((1, "p"), (2, "p"), (1, "q")):
        parameter = parameters.make(framework, block_random(0.1, seed, SIZE), name)
        for _ in range(2):
            draws.add(tuple(b.any() for b in blocks_of(parameter.send(np.ones(100 * SIZE)))))
    assert len(draws) == 6


@each_framework
@pytest.mark.parametrize("ratio", [0.02, 0.1, 0.5, 1.0])
def test_random_blocks_without_error_feedback_are_unbiased(framework, ratio):
    """The mean over T seeds lies within five standard errors, in every block, of the gradient.

    In the first step and in the second; its blocks depend on the first's.
    """
    seeds, gradient = 200, np.arange(1.0, 50 * SIZE - 2)
    mean = np.zeros((2, gradient.size))
    for seed in range(seeds):
        parameter = parameters.make(framework, forgetful(block_random(ratio, seed, SIZE)))
        mean += np.stack([parameter.send(gradient), parameter.send(gradient)]) / seeds
    chance = kept_count(ratio, 50) / 50
    error = gradient * np.sqrt((1 - chance) / chance / seeds)
    assert np.all(np.abs(mean - gradient) <= 5 * error + 1e-6 * gradient)
    assert parameter.kept("rest") is None


@each_framework
@pytest.mark.parametrize("compressor", [block_topk(0.3, SIZE), block_random(0.3, 0, SIZE)])
def test_error_feedback_sends_everything_once(framework, compressor):
    """Blocks take turns: ceil(1 / 0.3) steps for all of them."""
    parameter = parameters.make(framework, compressor)
    gradient = parameter.round(np.random.default_rng(0).standard_normal(20 * SIZE + 3))
    received = parameter.send(gradient)
    for _ in range(3):
        assert parameter.kept("rest").any()
        received += parameter.send(np.zeros_like(gradient))
    np.testing.assert_array_equal(received, gradient)
    assert not parameter.kept("rest").any()


@each_framework
def test_momentum_correction_is_that_of_the_paper(framework):
    """u = m u + g; v = v + u; what is sent of v is cleared in v and u (Lin et al., 3.1 and 3.3)."""
    compressor = block_topk(0.4, SIZE).with_momentum_correction(0.9)
    parameter = parameters.make(framework, compressor, dtype="float64")
    random = np.random.default_rng(0)
    u = v = np.zeros(5 * SIZE)
    for _ in range(10):
        g = random.standard_normal(5 * SIZE)
        u = 0.9 * u + g
        v = v + u
        norms = np.linalg.norm(v.reshape(5, SIZE), axis=1)
        mask = np.repeat(norms >= np.sort(norms)[-2], SIZE)
        np.testing.assert_allclose(parameter.send(g), np.where(mask, v, 0), rtol=1e-12)
        u, v = np.where(mask, 0, u), np.where(mask, 0, v)
        np.testing.assert_allclose(parameter.kept("velocity"), u, rtol=1e-12)


@each_framework
def test_what_is_sent_whole_keeps_its_velocity(framework):
    """A bias of one block: nothing of it is late, so nothing is cleared."""
    compressor = block_topk(0.1, SIZE).with_momentum_correction(0.9)
    parameter = parameters.make(framework, compressor, dtype="float64")
    gradient = np.arange(1.0, SIZE + 1)
    for factor in (1, 1.9, 2.71):
        np.testing.assert_allclose(parameter.send(gradient), factor * gradient, rtol=1e-12)
        np.testing.assert_allclose(parameter.kept("velocity"), factor * gradient, rtol=1e-12)
        assert not parameter.kept("rest").any()


@each_framework
@each_dtype
@pytest.mark.parametrize("error_feedback", [True, False])
@pytest.mark.parametrize(
    "compressor",
    [
        block_topk(0.01, SIZE),
        block_random(0.01, block_size=SIZE),
        block_threshold(1e4, SIZE),
        topk_threshold(1e4),
    ],
    ids=["topk", "random", "threshold", "elements"],
)
def test_nan_and_infinity_are_sent_at_once_and_leave_nothing(
    framework, dtype, error_feedback, compressor
):
    compressor = compressor.with_error_feedback(error_feedback)
    parameter = parameters.make(framework, compressor, dtype=dtype)
    for _ in range(2):  # more such blocks than the ratio allows
        gradient = np.ones(10 * SIZE + 3)
        bad = [0, 2 * SIZE + 1, 5 * SIZE - 1, 10 * SIZE + 2]
        gradient[bad] = [np.nan, np.inf, -np.inf, np.nan]
        sent = parameter.send(gradient)
        np.testing.assert_array_equal(sent[bad], gradient[bad])
        if error_feedback:
            assert np.isfinite(parameter.kept("rest")).all()


@each_framework
def test_warm_up_sends_less_and_less(framework):
    compressor = block_topk(0.01, SIZE).with_warmup(2, 0.25, steps_per_epoch=1)
    parameter = parameters.make(framework, compressor)
    counts = []
    for _ in range(4):
        sent = parameter.send(np.random.default_rng(0).standard_normal(100 * SIZE))
        counts.append(sum(block.any() for block in blocks_of(sent)))
    assert counts == [25, 5, 1, 1]
