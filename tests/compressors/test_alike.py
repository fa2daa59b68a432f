"""One method, one choice: NumPy's arrays, PyTorch's tensors and TensorFlow's send the same.

Small integers keep sums and norms exact, whatever the order of additions.
"""

import dataclasses

import numpy as np
import parameters
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnihvd import compression
from omnihvd.compression import numpy_ops
from omnihvd.compression.compressor import Compressor
from omnihvd.compression.split import ParameterState, split_by
from omnihvd.compression.two_steps import Ranks, begin

torch = pytest.importorskip("torch")
pytest.importorskip("tensorflow")
SIZE = 8
NAME = "p:0"  # a variable of TensorFlow's; names seed what is drawn

SPLITTING = {
    "block_topk": compression.block_topk(0.3, SIZE),
    "block_random": compression.block_random(0.3, 5, SIZE),
    "block_random, unbiased": compression.block_random(0.3, 5, SIZE).with_error_feedback(False),
    "block_threshold": compression.block_threshold(9, SIZE),
    "topk_threshold": compression.topk_threshold(3),
    "topk": compression.topk(0.1),
    "global_topk": compression.global_topk(0.1),
    "randomk": compression.randomk(0.1, 7),
    "randomk, unbiased": compression.randomk(0.1, 7).with_error_feedback(False),
    "dgc": compression.dgc(0.1),
    "sidco": compression.sidco(0.1),
    "sidco of gamma": compression.sidco(0.1, "gamma"),
    "sidco of pareto": compression.sidco(0.1, "pareto", True),
    "adaptive": compression.adaptive(0.1),
    "clipped": compression.topk(0.1).with_clipping(4),
    "momentum": compression.block_topk(0.3, SIZE).with_momentum_correction(0.5),
    "warm-up": compression.topk(0.1).with_warmup(2, 0.5, steps_per_epoch=1),
}
SUMMED = {
    name: getattr(compression, name)()
    for name in (
        *("eight_bit", "inceptionn", "sketch", "natural_dithering"),
        *("ef_sign", "one_bit_sgd", "sign_sgd", "signum", "power_sgd"),
    )
} | {"topk with a codec": compression.topk(0.2).with_codec("natural")}


def test_all_methods_are_here():
    tried = {name.split(",")[0].split(" ")[0] for name in {**SPLITTING, **SUMMED}}
    assert {*compression.factories.__all__, "clipped", "momentum", "warm-up"} == tried | {"grace"}


class NumpyParameter:
    def __init__(self, compressor: Compressor) -> None:
        self._compressor, self._state = compressor, ParameterState(NAME)

    def send(self, gradient: np.ndarray) -> np.ndarray:
        return split_by(numpy_ops, self._compressor, gradient.astype(np.float32), self._state)

    def kept(self, kind: str) -> "np.ndarray | None":
        kept = getattr(self._state, kind)
        feedback = self._compressor.config.error_feedback
        return np.zeros(1) if kept is None and feedback else kept


def drawn(seed, shape, step):
    random = np.random.default_rng([seed, step])
    return random.integers(-7, 8, shape) * (random.random(shape) < 0.8)


@pytest.mark.parametrize("kind", SPLITTING)
@settings(deadline=None, max_examples=12)
@given(
    seed=st.integers(0, 2**32),
    shape=st.sampled_from([(1,), (SIZE,), (9, 11), (5, SIZE), (12_000,)]),
)
def test_what_is_sent_and_what_stays_are_alike(kind, seed, shape):
    compressor = SPLITTING[kind]
    own = lambda: Compressor(dataclasses.replace(compressor.config))  # noqa: E731
    ways = [NumpyParameter(own()), parameters.make("torch", own(), NAME)]
    ways += [parameters.make("tensorflow", compressor, NAME.partition(":")[0])]
    exact = kind not in ("clipped", "adaptive")
    for step in range(4):
        gradient = drawn(seed, shape, step).astype(float)
        sent, *others = (way.send(gradient) for way in ways)
        rest, *rests = (way.kept("rest") for way in ways)
        for other, left in zip(others, rests):
            np.testing.assert_allclose(other, sent, rtol=0 if exact else 1e-5, atol=0)
            if rest is None:
                assert left is None
            else:
                np.testing.assert_allclose(left, np.broadcast_to(rest, shape), rtol=1e-5, atol=1e-5)


def exchanged(kind, makes, received):
    """Returns what each rank receives when the ranks give `makes`."""
    if kind == "average":
        return [sum(makes) / len(makes)] * len(makes)
    if kind == "allgather":
        return [np.concatenate(makes)] * len(makes)
    ends = [np.cumsum(splits) for _, splits in makes]
    return [
        np.concatenate(
            [code[end[r] - splits[r] : end[r]] for end, (code, splits) in zip(ends, makes)]
        )
        for r in range(received)
    ]


@pytest.mark.parametrize("kind", SUMMED)
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 2**32), ranks=st.sampled_from([1, 2, 3]))
def test_sums_in_two_steps_are_alike(kind, seed, ranks):
    """TensorFlow's are NumPy's (tensorflow_two_steps.py)."""
    from omnihvd.compression import torch_ops

    compressor, results, received = SUMMED[kind], [], []
    for ops, array in ((numpy_ops, np.asarray), (torch_ops, torch.tensor)):
        states = [ParameterState(NAME) for _ in range(ranks)]
        for step in range(3):
            sums = [
                begin(ops, compressor, state, Ranks(rank, ranks, True))
                for rank, state in enumerate(states)
            ]
            numbers = [drawn(seed + rank, (20, 30), step) for rank in range(ranks)]
            made = [s.first(array(n.astype(np.float32))) for s, n in zip(sums, numbers)]
            for number in (0, 1):
                way = sums[0].exchanges[number][0]
                if number:
                    made = [one.second(got) for one, got in zip(sums, received)]
                received = exchanged(way, made, ranks)
                copied = torch.clone if isinstance(received[0], torch.Tensor) else np.array
                received = [copied(got) for got in received]
            got = [np.asarray(one.result(of)).reshape(20, 30) for one, of in zip(sums, received)]
            rests = [s.rest for s in states if s.rest is not None]
            results.append([*got, *(np.asarray(rest) for rest in rests)])
    for mine, theirs in zip(results[:3], results[3:]):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
