"""Hooks of DDP with residuals: one rank, a bucket made by hand."""

from __future__ import annotations

import pickle
import types

import pytest

torch = pytest.importorskip("torch")

import omnihvd.torch.codec as codec_module  # noqa: E402
import omnihvd.torch.compress as compress_module  # noqa: E402
from omnihvd import compression  # noqa: E402
from omnihvd.compression import codecs  # noqa: E402
from omnihvd.torch import CodecState, CompressionState, codec_hook, compress_wrapper  # noqa: E402


class Bucket:
    def __init__(self, gradients: dict[str, torch.Tensor], parameters: dict) -> None:
        self._parameters = [parameters[name] for name in gradients]
        self._gradients = list(gradients.values())

    def parameters(self) -> list:
        return self._parameters

    def gradients(self) -> list:
        return self._gradients

    def buffer(self) -> torch.Tensor:
        first = self._gradients[0]
        return first if first._base is None else first._base  # that they are views of

    def index(self) -> int:
        return 0


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    group = types.SimpleNamespace(size=lambda: 1)
    monkeypatch.setattr(compress_module, "group_of", lambda _: group)
    monkeypatch.setattr(codec_module, "group_of", lambda _: group)
    monkeypatch.setattr(codec_module, "average", lambda _, tensor, *__: tensor)


def test_the_residual_of_a_parameter_that_nobody_used_waits() -> None:
    """DDP leaves its gradient alone, and so would throw away what is sent for it."""
    parameters = {name: torch.nn.Parameter(torch.zeros(1000)) for name in "ab"}
    state = CompressionState(compression.block_topk(0.1, 10), parameters.items())
    hook = compress_wrapper(lambda *_: None)
    hook(state, Bucket({name: torch.randn(1000) for name in "ab"}, parameters))
    kept = {name: state.kept[name].rest.clone() for name in "ab"}
    unused = {"a": torch.randn(1000), "b": torch.zeros(1000)}
    hook(state, Bucket(unused, parameters))
    assert not torch.equal(state.kept["a"].rest, kept["a"])
    assert torch.equal(state.kept["b"].rest, kept["b"]) and not unused["b"].any()
    assert state.kept["a"].step == state.kept["b"].step == 2
    again = {"b": torch.full((1000,), 1e-9)}
    hook(state, Bucket(again, parameters))
    assert again["b"].count_nonzero() == 100


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16, torch.float64))
@pytest.mark.parametrize("name", ("sign", "one_bit"))
def test_buckets_of_all_dtypes_keep_what_a_codec_loses(name: str, dtype: torch.dtype) -> None:
    state = CodecState(getattr(compression, name)())
    owed = torch.zeros(600, dtype=torch.float64)
    got = torch.zeros(600, dtype=torch.float64)
    for step in range(5):
        gradient = (torch.arange(600) % 7 - 3 + step / 8).to(dtype)
        owed += gradient.double()
        codec_hook(state, Bucket({"all": gradient}, {"all": None}))
        got += gradient.double()
    torch.testing.assert_close(state.rests[0].double(), owed - got, atol=1e-4, rtol=0)
    assert state.rests[0].any()


def test_a_codec_keeps_what_it_owes_to_parameters_that_nobody_used() -> None:
    state = CodecState(compression.sign())

    def step(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        buffer = torch.cat([a, b])
        gradients = dict(zip("ab", buffer.split([len(a), len(b)])))
        codec_hook(state, Bucket(gradients, dict.fromkeys("ab")))
        return buffer.split([len(a), len(b)])

    step(torch.randn(768), torch.randn(300))
    owed = state.rests[0].clone()
    _, b = step(torch.randn(768), torch.zeros(300))
    assert not b.any()
    assert torch.equal(state.rests[0][768:], owed[768:])
    assert not torch.equal(state.rests[0][:768], owed[:768])


def test_a_bucket_that_is_made_anew_has_no_residual_of_other_parameters() -> None:
    """DDP's first bucket has the model's order, later ones that in which gradients come; a job that
    goes on from a checkpoint begins with the first one. All have one size."""
    state = CodecState(compression.sign())
    parameters = {name: torch.nn.Parameter(torch.zeros(512)) for name in "ab"}

    def step(order: str) -> torch.Tensor:
        """Returns what is sent of b's ones, which the codec keeps: nothing is owed to b."""
        given = {"a": torch.randn(512), "b": torch.ones(512)}
        parts = dict(zip(order, torch.cat([given[name] for name in order]).split(512)))
        codec_hook(state, Bucket(parts, parameters))
        return parts["b"]

    step("ab")
    assert state.rests[0][:512].any() and not state.rests[0][512:].any()
    assert torch.equal(step("ba"), torch.ones(512))
    assert state.rests[0][512:].any()
    state = pickle.loads(pickle.dumps(state))
    parameters = {name: torch.nn.Parameter(torch.zeros(512)) for name in "ab"}
    assert torch.equal(step("ab"), torch.ones(512))


@pytest.mark.parametrize("name", codecs.__all__)
def test_what_was_decoded_stays_when_the_engine_encodes_it(name: str) -> None:
    """Else the residual, which is made of the rank's own round trip, lacks what is lost then."""
    codec = getattr(codecs, name)()
    if name == "terngrad":
        with pytest.raises(ValueError, match="terngrad has no error feedback, since it clips"):
            codec.with_error_feedback()
        return
    codec = codec.with_error_feedback()
    block = torch.where(torch.arange(256) % 13 == 0, 10.0, 0.1)
    codec.round_trip(block.data_ptr(), 256, seed=1)
    again = block.clone()
    codec.round_trip(again.data_ptr(), 256, seed=2)
    torch.testing.assert_close(again, block, rtol=1e-6, atol=0)


def test_a_mean_over_three_ranks_is_rounded_before_it_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mean's share is a power of two: the engine has nothing to round."""
    monkeypatch.setattr(codec_module, "group_of", lambda _: types.SimpleNamespace(size=lambda: 3))
    state, given = CodecState(compression.natural().with_error_feedback()), torch.arange(1.0, 601)
    gradient = given.clone()
    codec_hook(state, Bucket({"all": gradient}, {"all": None}))
    assert torch.all(torch.frexp(gradient / 3).mantissa == 0.5)
    torch.testing.assert_close(gradient + state.rests[0], given)
