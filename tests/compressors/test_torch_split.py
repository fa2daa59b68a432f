"""Splitting a PyTorch gradient: what is particular to it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from omnihvd.compression import counters, torch_ops  # noqa: E402
from omnihvd.compression.compressor import Config  # noqa: E402
from omnihvd.compression.methods.threshold import ElementThreshold  # noqa: E402
from omnihvd.compression.rules import TopBlocks  # noqa: E402
from omnihvd.compression.split import ParameterState, _split_listed, split  # noqa: E402

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIZE = 8


def run(gradient, rule, error_feedback=True):
    ratio = getattr(rule, "ratio", 1.0)
    config = Config(rule, SIZE, error_feedback)
    return split(torch_ops, gradient, ParameterState("p"), config, ratio)


@given(
    seed=st.integers(0, 2**32),
    keep=st.lists(st.booleans(), min_size=4, max_size=4),
    dtype=st.sampled_from(DTYPES),
    keep_rest=st.booleans(),
)
@settings(max_examples=50)
def test_masks_and_lists_split_alike(seed, keep, dtype, keep_rest):
    """The way for CUDA and the way for the CPU, both on the CPU."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    total = torch.tensor(np.random.default_rng(seed).standard_normal((4, SIZE)), dtype=wide)
    results = []
    for way in (_split_listed, torch_ops.split_masked):
        tensors = [total.clone(), torch.full_like(total, 9, dtype=dtype), torch.ones_like(total)]
        count = way(torch_ops, torch.tensor(keep), 1.0, keep_rest, *tensors)
        results.append((int(count), *tensors))
    assert results[0][0] == results[1][0] == sum(keep) * SIZE
    for listed, masked in zip(results[0][1:], results[1][1:]):
        assert torch.equal(listed, masked)


def test_gradient_is_the_buffer_of_the_result():
    gradient = torch.randn(3, 5)
    assert run(gradient, TopBlocks(0.5)) is gradient


@pytest.mark.parametrize("error_feedback", [True, False])
def test_gradient_that_is_not_contiguous_is_left_alone(error_feedback):
    gradient = torch.randn(6, 9).t()
    before = gradient.clone()
    sent = run(gradient, TopBlocks(0.5), error_feedback)
    expected = run(before.contiguous(), TopBlocks(0.5), error_feedback)
    assert sent.is_contiguous() and torch.equal(sent, expected)
    assert torch.equal(gradient, before)


def test_counters_count_the_elements_of_kept_blocks():
    counters.reset()
    run(torch.ones(10 * SIZE), TopBlocks(0.2))
    run(torch.ones(SIZE + 3), TopBlocks(1.0))
    run(torch.tensor([1.0, -3.0, 0.5]), ElementThreshold(0.7))
    stats = counters.stats()
    assert (stats["calls"], stats["elements"]) == (3, 10 * SIZE + SIZE + 3 + 3)
    assert stats["kept_elements"] == 2 * SIZE + SIZE + 3 + 2
    assert stats["seconds"] > 0


def test_a_device_has_one_count_for_kernels_to_add_to(monkeypatch):
    monkeypatch.setattr(counters, "_added", {})
    made = []

    def zero():
        made.append(torch.zeros(1, dtype=torch.int64))
        return made[-1]

    before = counters.stats()["kept_elements"]
    for device, count in (("one", 5), ("other", 7), ("one", 9)):
        counters.kept_on(device, zero).add_(count)
    assert len(made) == 2 and counters.stats()["kept_elements"] == before + 21
    counters.reset()
    assert counters.stats()["kept_elements"] == 0
