"""Properties of splitting one PyTorch gradient."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from omnihvd.compressors import counters  # noqa: E402
from omnihvd.compressors.rules import (  # noqa: E402
    ElementThreshold,
    RandomBlocks,
    ThresholdBlocks,
    TopBlocks,
    kept_count,
)
from omnihvd.compressors.torch_split import (  # noqa: E402
    ParameterState,
    _split_listed,
    _split_masked,
    split,
)

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, no_gpu])]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIZE = 8  # elements of a block: small, so that few elements make many blocks

rules = st.one_of(
    st.builds(TopBlocks, st.floats(0.01, 1)),
    st.builds(RandomBlocks, st.floats(0.01, 1), st.integers(0, 2**40)),
    st.builds(ThresholdBlocks, st.floats(0, 10)),
    st.builds(ElementThreshold, st.floats(0, 10)),
)
shapes = st.one_of(
    st.just(()),
    st.tuples(st.integers(1, 100)),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
)


def run(gradient, state, rule, error_feedback=True, momentum=0.0):
    ratio = getattr(rule, "ratio", 1.0)
    return split(gradient, state, rule, ratio, SIZE, error_feedback, momentum)


def draw_gradient(data, shape, dtype):
    """Values of very different sizes, many of them zero."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    values = random.standard_normal(shape) * 10.0 ** random.integers(-4, 4, shape)
    values = np.where(random.random(shape) < 0.3, 0, values)
    return torch.tensor(values).to(dtype)


def blocks_of(tensor):
    flat = tensor.reshape(-1)
    return [flat[i : i + SIZE] for i in range(0, len(flat), SIZE)]


def norm(block):
    return float(torch.linalg.vector_norm(block.double()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(data=st.data(), rule=rules, shape=shapes, momentum=st.sampled_from([0.0, 0.5]))
def test_sent_and_rest_are_gradient_and_old_rest_exactly(
    device, dtype, data, rule, shape, momentum
):
    state = ParameterState("p")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rest = torch.zeros(shape, dtype=wide, device=device)
    velocity = torch.zeros_like(rest)
    for step in range(3):
        gradient = draw_gradient(data, shape, dtype).to(device)
        velocity = momentum * velocity + gradient
        total = rest + velocity
        sent = run(gradient.clone(), state, rule, momentum=momentum)
        assert sent.dtype == dtype and sent.shape == gradient.shape
        assert state.rest.dtype == wide and state.rest.shape == gradient.shape
        assert torch.equal(sent.to(wide) + state.rest, total)
        if dtype == wide:  # each element is on one side only
            assert torch.equal((sent != 0) & (state.rest != 0), torch.zeros_like(sent).bool())
        rest = state.rest.clone()
        velocity = velocity if not momentum else state.velocity.clone()
        assert state.step == step + 1


@given(data=st.data(), ratio=st.floats(0.01, 1), shape=shapes)
def test_topk_sends_the_largest_blocks(data, ratio, shape):
    gradient = draw_gradient(data, shape, torch.float32)
    before = blocks_of(gradient.clone())
    sent = blocks_of(run(gradient, ParameterState("p"), TopBlocks(ratio), error_feedback=False))
    kept = [norm(b) for b, s in zip(before, sent) if torch.equal(b, s)]
    left = [norm(b) for b, s in zip(before, sent) if not torch.equal(b, s)]
    count = kept_count(ratio, len(before))
    zeros = sum(norm(b) == 0 for b in before)
    assert count <= len(kept) <= count + zeros  # a zero block looks alike, sent or not
    assert not left or max(left) <= min([*sorted(kept, reverse=True)[:count]]) * (1 + 1e-6)
    assert all(not s.any() for b, s in zip(before, sent) if not torch.equal(b, s))


@given(data=st.data(), threshold=st.floats(0, 100), shape=shapes)
def test_threshold_sends_the_blocks_that_reach_it(data, threshold, shape):
    gradient = draw_gradient(data, shape, torch.float64)
    before = blocks_of(gradient.clone())
    rule = ThresholdBlocks(threshold)
    sent = blocks_of(run(gradient, ParameterState("p"), rule, error_feedback=False))
    for b, s in zip(before, sent):
        assert torch.equal(s, b if norm(b) >= threshold else torch.zeros_like(b))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(data=st.data(), threshold=st.floats(0, 100), shape=shapes)
def test_element_threshold_sends_the_elements_above_it(dtype, data, threshold, shape):
    gradient = draw_gradient(data, shape, dtype)
    threshold = float(torch.tensor(threshold).to(dtype))
    expected = torch.where(gradient.abs() > threshold, gradient, 0)
    rule = ElementThreshold(threshold)
    assert torch.equal(run(gradient, ParameterState("p"), rule, error_feedback=False), expected)


@given(
    data=st.data(), seed=st.integers(0, 2**40), ratio=st.floats(0.01, 1), steps=st.integers(1, 4)
)
def test_equal_seeds_draw_equal_blocks_on_all_ranks(data, seed, ratio, steps):
    rule, ranks = RandomBlocks(ratio, seed), [ParameterState("p") for _ in range(3)]
    for _ in range(steps):
        gradients = [draw_gradient(data, (50,), torch.float32).abs() + 1 for _ in ranks]
        sent = [run(g, state, rule) for g, state in zip(gradients, ranks)]
        chosen = [[bool(b.any()) for b in blocks_of(s)] for s in sent]
        assert chosen[0] == chosen[1] == chosen[2]
        assert sum(chosen[0]) == kept_count(ratio, 7)


def drawn(rule, name="p", step=0):
    sent = run(torch.ones(100 * SIZE), ParameterState(name, step), rule, error_feedback=False)
    return tuple(bool(b.any()) for b in blocks_of(sent))


def test_other_seeds_steps_and_parameters_draw_other_blocks():
    rule = RandomBlocks(0.1, 1)
    draws = {drawn(rule), drawn(RandomBlocks(0.1, 2)), drawn(rule, "q"), drawn(rule, step=1)}
    assert len(draws) == 4


@pytest.mark.parametrize("ratio", [0.02, 0.1, 0.5, 1.0])
def test_random_blocks_without_error_feedback_are_unbiased(ratio):
    """The mean of T draws lies within five standard errors, in every block, of the gradient."""
    draws, gradient = 4000, torch.arange(1.0, 50 * SIZE - 2)
    state, rule = ParameterState("p"), RandomBlocks(ratio, 7)
    mean = (
        sum(run(gradient.clone(), state, rule, error_feedback=False) for _ in range(draws)) / draws
    )
    chance = kept_count(ratio, 50) / 50
    error = (gradient * ((1 - chance) / chance / draws) ** 0.5).clamp_min(1e-4 * gradient)
    assert ((mean - gradient).abs() <= 5 * error).all()
    assert state.rest is None


def test_error_feedback_sends_everything_in_the_end():
    """With no new gradients, each rule that has a ratio empties the rest, once per element."""
    for rule in (TopBlocks(0.1), RandomBlocks(0.3, 0)):
        gradient, state = torch.randn(20 * SIZE + 3), ParameterState("p")
        received = run(gradient.clone(), state, rule)
        for _ in range(60):
            received += run(torch.zeros_like(gradient), state, rule)
        assert torch.equal(received, gradient)
        assert not state.rest.any()


def test_momentum_correction_is_that_of_the_paper():
    """u = m u + g; v = v + u; what is sent of v is cleared in v and u (Lin et al., 3.1 and 3.3)."""
    state, random = ParameterState("p"), np.random.default_rng(0)
    u = v = np.zeros(5 * SIZE)
    for _ in range(10):
        g = random.standard_normal(5 * SIZE)
        u = 0.9 * u + g
        v = v + u
        sent = run(torch.tensor(g), state, TopBlocks(0.4), momentum=0.9).numpy()
        norms = np.linalg.norm(v.reshape(5, SIZE), axis=1)
        mask = np.repeat(norms >= np.sort(norms)[-2], SIZE)
        np.testing.assert_allclose(sent, np.where(mask, v, 0), rtol=1e-12)
        u, v = np.where(mask, 0, u), np.where(mask, 0, v)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("error_feedback", [True, False])
@pytest.mark.parametrize(
    "rule",
    [TopBlocks(0.01), RandomBlocks(0.01, 0), ThresholdBlocks(1e4), ElementThreshold(1e4)],
    ids=lambda rule: type(rule).__name__,
)
def test_nan_and_infinity_are_sent_at_once_and_leave_nothing(device, dtype, error_feedback, rule):
    state = ParameterState("p")
    for _ in range(2):  # more such blocks than the ratio allows
        gradient = torch.ones(10 * SIZE + 3, dtype=dtype, device=device)
        bad = torch.tensor([0, 2 * SIZE + 1, 5 * SIZE - 1, 10 * SIZE + 2])
        gradient[bad] = torch.tensor([torch.nan, torch.inf, -torch.inf, torch.nan], dtype=dtype).to(
            device
        )
        sent = run(gradient, state, rule, error_feedback).cpu()
        assert sent[bad].isnan().tolist() == [True, False, False, True]
        assert sent[bad].isinf().tolist() == [False, True, True, False]
        if error_feedback:
            assert state.rest.isfinite().all()


@given(data=st.data(), dtype=st.sampled_from(DTYPES), keep_rest=st.booleans())
@settings(max_examples=50)
def test_masks_and_lists_split_alike(data, dtype, keep_rest):
    """The way for CUDA and the way for the CPU, both on the CPU."""
    keep = torch.tensor(data.draw(st.lists(st.booleans(), min_size=4, max_size=4)))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    total = draw_gradient(data, (4, SIZE), wide)
    results = []
    for way in (_split_listed, _split_masked):
        tensors = [total.clone(), torch.full_like(total, 9, dtype=dtype), torch.ones_like(total)]
        count = way(keep, *tensors, scale=1.0, keep_rest=keep_rest)
        results.append((int(count), *tensors))
    assert results[0][0] == results[1][0] == int(keep.sum()) * SIZE
    for listed, masked in zip(results[0][1:], results[1][1:]):
        assert torch.equal(listed, masked)


def test_gradient_is_the_buffer_of_the_result():
    gradient = torch.randn(3, 5)
    assert run(gradient, ParameterState("p"), TopBlocks(0.5)) is gradient


@pytest.mark.parametrize("error_feedback", [True, False])
def test_gradient_that_is_not_contiguous_is_left_alone(error_feedback):
    gradient = torch.randn(6, 9).t()
    before = gradient.clone()
    sent = run(gradient, ParameterState("p"), TopBlocks(0.5), error_feedback)
    expected = run(before.contiguous(), ParameterState("p"), TopBlocks(0.5), error_feedback)
    assert sent.is_contiguous() and torch.equal(sent, expected)
    assert torch.equal(gradient, before)


def test_counters_count_the_elements_of_kept_blocks():
    counters.reset()
    run(torch.ones(10 * SIZE), ParameterState("p"), TopBlocks(0.2))
    run(torch.ones(SIZE + 3), ParameterState("q"), TopBlocks(1.0))
    run(torch.tensor([1.0, -3.0, 0.5]), ParameterState("r"), ElementThreshold(0.7))
    stats = counters.stats()
    assert (stats["calls"], stats["elements"]) == (3, 10 * SIZE + SIZE + 3 + 3)
    assert stats["kept_elements"] == 2 * SIZE + SIZE + 3 + 2
    assert stats["seconds"] > 0
