"""Low rank: what the factors remember from step to step, in NumPy's and PyTorch's arrays."""

import copy

import numpy as np
import pytest

from omnihvd import compression
from omnihvd.compression import numpy_ops
from omnihvd.compression.split import ParameterState
from omnihvd.compression.two_steps import Ranks, begin

SHAPE = ROWS, COLUMNS = 12, 20
each_face = pytest.mark.parametrize("face", ["numpy", "torch"])


def functions(face):
    """The arrays' functions, and what makes an array. TensorFlow's are NumPy's."""
    if face == "numpy":
        return numpy_ops, np.array
    torch = pytest.importorskip("torch")
    from omnihvd.compression import torch_ops

    return torch_ops, torch.tensor


def mean(face, compressor, states, gradients):
    """The mean of the ranks' gradients, as their states make it."""
    (ops, array), ranks = functions(face), len(states)
    sums = [begin(ops, compressor, s, Ranks(rank, ranks, True)) for rank, s in enumerate(states)]
    lefts = [one.first(array(given)) for one, given in zip(sums, gradients)]
    rights = [one.second(sum(lefts) / ranks) for one in sums]
    first, *others = (np.asarray(one.result(sum(rights) / ranks)) for one in sums)
    assert all(np.array_equal(first, other) for other in others)
    return first


def gradient(rank):
    """A matrix of rank 1, with a first row of zeros, as padding leaves it."""
    rows, columns = np.arange(ROWS), np.arange(1, COLUMNS + 1)
    return np.outer((rank + 1) * rows, columns).astype(np.float32)


@each_face
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_step_of_zeros_does_not_end_the_search(face, rank):
    compressor, states = compression.power_sgd(rank), [ParameterState("p") for _ in range(2)]
    zeros = np.zeros(SHAPE, np.float32)
    assert not mean(face, compressor, states, [zeros, zeros]).any()
    for _ in range(5):
        got = mean(face, compressor, states, [gradient(0), gradient(1)])
        np.testing.assert_allclose(got, 1.5 * gradient(0), rtol=1e-4, atol=1e-2)
    assert all(np.asarray(state.memory["right"]).any(0).all() for state in states)


@each_face
def test_a_checkpoint_of_another_rank_begins_anew(face):
    ops, array = functions(face)
    one, four = compression.power_sgd(1), compression.power_sgd(4)
    state = ParameterState("p")
    mean(face, one, [state], [gradient(0)])
    saved = state.save()
    for compressor, columns in ((four, 4), (one, 1), (four, 4)):
        state.load(saved, SHAPE, copy.deepcopy)
        mean(face, compressor, [state], [gradient(0)])
        assert state.memory["right"].shape == (COLUMNS, columns)
    state.load(saved, SHAPE, copy.deepcopy)
    kept = state.remember(ops, one.config.rule, array(gradient(0)))["right"]
    assert np.array_equal(kept, saved["memory"]["right"])
