"""Compressors' blocks by kernels, against those by PyTorch's operators on CPUs: bit for bit."""

from __future__ import annotations

import contextlib
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuda_double import cubin, stream_at  # noqa: E402

from omnihvd import kernels, log  # noqa: E402
from omnihvd.compression import (  # noqa: E402
    block_random,
    block_threshold,
    block_topk,
    counters,
    topk_threshold,
    torch_cuda,
    torch_ops,
)
from omnihvd.compression.split import ParameterState, split_by  # noqa: E402
from omnihvd.intercept import kernel_cache  # noqa: E402

SIZE = 32
TYPESTRS = {torch.float32: "<f4", torch.float16: "<f2", torch.bfloat16: "<V2",
            torch.uint8: "|u1", torch.bool: "|b1", torch.int64: "<i8"}  # fmt: skip


class OnDevice:
    """A tensor of the host as one of the device that is emulated."""

    def __init__(self, tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous()
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": TYPESTRS[tensor.dtype],
            "data": (tensor.data_ptr(), False),
        }
        self.tensor = tensor  # until the work is done: PyTorch's allocator looks after that on GPUs


class Emulated:
    """kernels.Sparsifier for tensors of the host; what it queues waits for finish()."""

    device = torch.device("cpu")

    def __init__(self, monkeypatch, double) -> None:
        monkeypatch.setitem(sys.modules, "cupy", double)
        monkeypatch.setattr(kernels.build, "cubin", cubin)
        monkeypatch.setattr(torch_cuda, "sparsifier", self._sparsifier)
        kernels.build._loaded.cache_clear()
        self._held: list[object] = []
        self._own, self._taken = None, True

    def _sparsifier(self, gradient, block_size):
        if not self._taken:
            return None
        self._own = kernels.Sparsifier(str(gradient.dtype).partition(".")[2], block_size)
        return self

    def _queue(self, method, given, named):
        def placed(value):
            return OnDevice(value) if isinstance(value, torch.Tensor) else value

        given, named = [placed(v) for v in given], {n: placed(v) for n, v in named.items()}
        self._held += [*given, *named.values()]
        getattr(self._own, method)(*given, **named)

    def split(self, *given, **named):
        self._queue("split", given, named)

    def above(self, *given, **named):
        self._queue("above", given, named)

    @contextlib.contextmanager
    def left_to_operators(self):
        self._taken = False
        yield
        self._taken = True

    def finish(self):
        stream_at(0).synchronize()
        self._held.clear()


class Real:
    device = torch.device("cuda")

    def __init__(self) -> None:
        probe = torch.ones(1, device="cuda")
        assert torch_cuda.sparsifier(probe, SIZE) is not None, "no kernels for this GPU"

    left_to_operators = contextlib.nullcontext
    finish = staticmethod(torch.cuda.synchronize)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request, monkeypatch, double):
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        yield Real()
    else:
        yield Emulated(monkeypatch, double)
        kernels.build._loaded.cache_clear()


def assert_same(one: torch.Tensor | None, other: torch.Tensor | None) -> None:
    """The same bits, or NaN on both sides."""
    if one is None or other is None:
        assert one is other
        return
    one, number = one.cpu(), ~other.isnan()
    bits = {4: torch.int32, 2: torch.int16}[other.element_size()]
    assert one.dtype == other.dtype and torch.equal(~one.isnan(), number)
    assert torch.equal(one.view(bits)[number], other.view(bits)[number])


def check(where, compressor, gradients) -> None:
    """One parameter's, step by step."""
    ours, theirs = ParameterState("p"), ParameterState("p")
    for gradient in gradients:
        with where.left_to_operators():
            expected = split_by(torch_ops, compressor, gradient.clone(), theirs)
        mine = gradient.to(where.device, copy=True)
        sent = split_by(torch_ops, compressor, mine, ours)
        assert sent is mine or not gradient.is_contiguous()
        whole = compressor.config.rule.selects and gradient.numel() <= SIZE  # one block, no kernels
        if where.device.type == "cpu" and not whole:
            assert_same(sent, gradient)  # the host did not wait
        where.finish()
        assert_same(sent, expected)
        assert_same(ours.rest, theirs.rest)
        assert_same(ours.velocity, theirs.velocity)
        assert ours.step == theirs.step


def integers(shape, dtype, steps: int = 4) -> list[torch.Tensor]:
    """So small that norms are exact, in whatever order squares are added, and many are equal."""
    random = np.random.default_rng(0)
    return [torch.tensor(random.integers(-2, 3, shape)).to(dtype) for _ in range(steps)]


RULES = {
    "topk": block_topk(0.3, SIZE),
    "random": block_random(0.3, 1, SIZE),
    "threshold": block_threshold(9.5, SIZE),
    "elements": topk_threshold(1.5),
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["feedback", "momentum", "forgetful"])
def test_choice_and_bits_are_those_of_the_host(where, dtype, rule, kind):
    compressor = RULES[rule].with_error_feedback(kind != "forgetful")
    if kind == "momentum":
        compressor = compressor.with_momentum_correction(0.5)
    for elements in (1, 31, 32, 33, 9 * SIZE + 5, 20 * SIZE):
        check(where, compressor, integers(elements, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["feedback", "momentum", "forgetful"])
def test_what_rounding_takes_is_kept(where, dtype, kind):
    """The blocks' norms differ by more than rounding."""
    random = torch.Generator().manual_seed(1)
    sizes = 2.0 ** torch.randperm(12, generator=random).repeat_interleave(SIZE)
    gradients = [(torch.randn(12 * SIZE, generator=random) * sizes).to(dtype) for _ in range(3)]
    compressor = block_topk(0.2, SIZE).with_error_feedback(kind != "forgetful")
    if kind == "momentum":
        compressor = compressor.with_momentum_correction(0.9)
    check(where, compressor, gradients)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES)
def test_nan_and_infinity(where, dtype, rule):
    gradients = integers(10 * SIZE + 3, dtype)
    for gradient in gradients[:2]:
        bad = [0, 2 * SIZE + 1, 5 * SIZE - 1, 10 * SIZE + 2]
        gradient[bad] = torch.tensor([np.nan, np.inf, -np.inf, np.nan], dtype=dtype)
    check(where, RULES[rule], gradients)


def test_gradients_of_other_shapes_and_strides(where):
    check(where, RULES["topk"], [g.view(25, 8).t() for g in integers(200, torch.float32)])
    check(where, RULES["topk"], integers((3, 5, 7), torch.float32))
    check(where, RULES["threshold"], integers((), torch.float16))


def test_what_was_sent_is_counted(where):
    counters.reset()
    tensor = torch.ones(10 * SIZE + 1, device=where.device)
    split_by(torch_ops, RULES["topk"], tensor, ParameterState("p"))
    where.finish()
    assert counters.stats()["kept_elements"] == 3 * SIZE
    counters.reset()
    assert counters.stats()["kept_elements"] == 0


def test_a_state_of_another_configuration_is_left_to_operators(where):
    for compressor, state in [
        (RULES["topk"], ParameterState("p", 1, velocity=torch.ones(200, device=where.device))),
        (RULES["topk"], ParameterState("p", 1, rest=torch.ones(200, device=where.device).double())),
    ]:
        sent = split_by(torch_ops, compressor, torch.ones(200, device=where.device), state)
        assert sent.count_nonzero() == 2 * SIZE  # at once


# --- how the kernels are had --------------------------------------------------------------------


@pytest.fixture
def a_gpu(monkeypatch, double, tmp_path):
    """PyTorch's functions for GPUs, as far as loading needs them; returns what is said."""
    monkeypatch.setitem(sys.modules, "cupy", double)
    monkeypatch.setattr(kernels, "cubin", cubin)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setenv("OMNIHVD_KERNEL_CACHE", str(tmp_path))
    said: list[str] = []
    monkeypatch.setattr(log, "warn_once_per_job", said.append)
    caches = torch_cuda._loaded, log.warn_once, kernels.build._loaded
    for cache in caches:
        cache.cache_clear()
    yield said
    for cache in caches:
        cache.cache_clear()


DEVICE = torch.device("cuda", 0)


def test_kernels_are_compiled_once_for_both_halves(a_gpu, tmp_path):
    for dtype in DTYPES:
        made = torch_cuda._loaded(DEVICE, dtype, SIZE)
        assert (made.dtype, made.block_size) == (str(dtype).partition(".")[2], SIZE)
    files = sorted(file.name for file in tmp_path.rglob("*.cubin"))
    assert files == ["sparsify_float16_32.cubin", "sparsify_float32_32.cubin"]
    assert kernel_cache.complete("sm_90", SIZE, ["float16", "float32"], "sparsify")
    assert not kernel_cache.complete("sm_90", SIZE, ["float16"])
    assert a_gpu == []


def test_without_cupy_operators_do_it_and_it_is_said_once(a_gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(kernels, "cubin", kernels.build.cubin)
    for dtype in DTYPES:
        assert torch_cuda._loaded(DEVICE, dtype, SIZE) is None
    (said,) = a_gpu
    assert said.startswith("PyTorch's operators") and "pip install 'omnihvd[cuda]'" in said


def test_blocks_of_another_size_are_left_to_operators(a_gpu):
    assert torch_cuda._loaded(DEVICE, torch.float32, 48) is None
    (said,) = a_gpu
    assert "block_size is 48" in said


def test_tensors_of_the_host_and_doubles_ask_for_no_kernels(a_gpu):
    assert torch_cuda.sparsifier(torch.ones(1), SIZE) is None
    assert torch_cuda.sparsifier(torch.ones(1, dtype=torch.float64), SIZE) is None
    assert a_gpu == []
