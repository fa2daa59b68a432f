"""The kernels as NVIDIA's compiler makes them, executed by an interpreter of PTX (ptx/): the tests
of the emulated source, at small sizes, on the same memory."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest
import test_emulated as emulated
import test_emulated_codecs as codecs
import test_emulated_sparsify as sparsify
from kernel_emulation import Kernels, Memory, SparsifyKernels
from kernel_reference import Case
from ptx import machine, text

from omnihvd.kernels import build

pytest.importorskip("cupy", reason="CuPy is not installed")

ARCH = "compute_75"  # the oldest that NVRTC 13 knows
FORMATS = {4: "I", 8: "Q"}


def compile_ptx(dtype: str, block_size: int, source: str) -> str:
    """The text that a driver compiles itself, for ARCH and all later ones."""
    flags = (f"-arch={ARCH}",)
    made = build._compiled(dtype, block_size, flags, source, lambda nvrtc, p: nvrtc.getPTX(p))
    return made.decode() if isinstance(made, bytes) else str(made)


class Launches:
    """In place of the emulation's library: functions that run kernels' PTX, by the same names."""

    def __init__(self, emulation, dtype: str, block_size: int, source: str) -> None:
        self._emulation, self._name = emulation, emulation._name
        self.entries = text.parse(compile_ptx(dtype, block_size, source))

    def __getattr__(self, name: str):
        if not name.startswith("run_"):
            return getattr(self._emulation, name)
        entry = self.entries[name[4:]]
        like = getattr(self._emulation, name)

        def launch(*given: object) -> None:
            *arguments, ctas, order = given
            packed = bytearray(entry.parameter_bytes)
            for kind, value, (at, size) in zip(like.argtypes, arguments, entry.parameters.values()):
                packed[at : at + size] = _bytes(kind, value, size)
            machine.run(entry, bytes(packed), ctas, order)

        launch.argtypes = like.argtypes
        return launch


def _bytes(kind: type, value, size: int) -> bytes:
    if size not in FORMATS:  # a structure, by value
        return ctypes.string_at(value, size)
    if kind in (ctypes.c_float, ctypes.c_double):
        return struct.pack({4: "f", 8: "d"}[size], value)
    if isinstance(value, ctypes.c_void_p):
        value = value.value
    return struct.pack(FORMATS[size], int(value or 0))


@pytest.fixture(scope="module")
def kernels(folder):
    made: dict[tuple[str, int], Kernels] = {}

    def of(dtype: str, block_size: int) -> Kernels:
        if (dtype, block_size) not in made:
            module = made[dtype, block_size] = Kernels(dtype, block_size, folder)
            module._lib = Launches(module._lib, dtype, block_size, "kernels.cu")
        return made[dtype, block_size]

    return of


@pytest.fixture(scope="module")
def sparsify_kernels(folder):
    made: dict[tuple[str, int], SparsifyKernels] = {}

    def of(dtype: str, block_size: int) -> SparsifyKernels:
        if (dtype, block_size) not in made:
            module = made[dtype, block_size] = SparsifyKernels(dtype, block_size, folder)
            module._lib = Launches(module._lib, dtype, block_size, "sparsify.cu")
        return made[dtype, block_size]

    return of


@pytest.mark.parametrize("dtype, block_size", [("float32", 256), ("bfloat16", 32)])
@pytest.mark.parametrize("pack", [False, True])
def test_compact_and_scatter(kernels, dtype, block_size, pack):
    for seed, (blocks, filled) in enumerate([(0.5, 0.2), (1.0, 1.0)]):
        size = emulated.elements_of(dtype, 9) + 13
        case = Case(dtype, block_size, size, blocks, filled, seed)
        emulated.round_trip(kernels, case, pack, misaligned=seed)


@pytest.mark.parametrize("order", [0, 1, 5])
def test_whichever_warps_run_ahead(kernels, order):
    case = Case("float32", 256, emulated.elements_of("float32", 50) + 3, 0.5, 0.4, order)
    emulated.round_trip(kernels, case)


def test_what_zeros_are(kernels):
    emulated.test_clears_negative_zeros(kernels, "float32", 256)


@pytest.mark.parametrize(
    "dtype, block_size, words_per_chunk, misaligned, ctas",
    [("float32", 256, 2, 0, 4), ("bfloat16", 32, 5, 1, 1)],
)
def test_union(kernels, dtype, block_size, words_per_chunk, misaligned, ctas):
    emulated.test_union(kernels, dtype, block_size, words_per_chunk, misaligned, ctas)


@pytest.mark.parametrize("end", ["answered", "failed", "alone", "nothing to ask"])
def test_rest(kernels, end):
    emulated.test_rest(kernels, end)


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("name", codecs.CODECS)
def test_codecs(kernels, name, sums):
    values = codecs.values_of(9 * 256 + 7, 256, sums)
    codecs.check(codecs.Coder(kernels("float32", 256), name, sums), values, 6, order=sums)


@pytest.mark.parametrize("kind", ["ties", "infinite"])
def test_choose(sparsify_kernels, kind):
    module, norms = sparsify_kernels("float32", 32), sparsify.norms_of(kind, 4097)
    keep = sparsify.choose(module, norms, 2049, seed=3, misaligned=1)
    assert np.array_equal(keep, sparsify.first_largest(norms, 2049))


@pytest.mark.parametrize("dtype, block_size", [("float32", 32), ("bfloat16", 256)])
@pytest.mark.parametrize("parts", ["keep", "rest velocity"])
def test_error_feedback(sparsify_kernels, dtype, block_size, parts):
    module = sparsify_kernels(dtype, block_size)
    for seed, elements in enumerate([31, 7 * block_size + 5]):
        step = sparsify.step_of(dtype, block_size, elements, 3 * seed, parts)
        sparsify.check(module, step, misaligned=seed, ctas=2, seed=seed)


def test_single_elements(sparsify_kernels):
    sparsify.test_single_elements_in_one_pass(sparsify_kernels, "float32", "rest velocity")


# --- the interpreter itself ---------------------------------------------------------------------

SHELL = """
.version 9.0
.target sm_75
.address_size 64

.visible .entry t(
	.param .u64 t_param_0
)
.maxntid 64, 1, 1
{{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<9>;
	.shared .align 4 .b8 words[256];
	ld.param.u64 	%rd1, [t_param_0];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
{body}
	ret;
}}
"""
SWAP = """	mov.u64 	%rd4, words;
	add.s64 	%rd5, %rd4, %rd2;
	st.shared.u32 	[%rd5], %r1;
	{barrier}
	xor.b32 	%r2, %r1, 32;
	mul.wide.u32 	%rd6, %r2, 4;
	add.s64 	%rd7, %rd4, %rd6;
	ld.shared.u32 	%r3, [%rd7];
	st.global.u32 	[%rd3], %r3;"""


def interpreted(body: str, order: int = 0) -> np.ndarray:
    out = Memory(256)
    machine.run(text.parse(SHELL.format(body=body))["t"], struct.pack("Q", out.address), 1, order)
    out.check()
    return out.bytes.view(np.uint32)


@pytest.mark.parametrize("order", range(4))
def test_a_barrier_that_is_missed_shows(order):
    """Two warps that exchange words: whichever runs ahead."""
    expected = np.arange(64) ^ 32
    assert np.array_equal(interpreted(SWAP.format(barrier="bar.sync 	0;"), order), expected)
    if order:
        assert not np.array_equal(interpreted(SWAP.format(barrier=""), order), expected)


PARTED = """	setp.lt.u32 	%p1, %r1, 7;
	@%p1 bra 	$L;
	bar.warp.sync 	-1;
$L:"""
ERRORS = {
    "an unknown instruction": ("	lg2.approx.f32 	%r2, %r1;", "KeyError"),
    "half a word": ("	st.global.u32 	[%rd3+2], %r1;", "misaligned"),
    "nothing there": ("	ld.global.u32 	%r2, [%rd2];", "no address"),
    "lanes that end": (PARTED, "lanes wait for lanes"),
    "lanes elsewhere": (
        PARTED + "\n	bar.sync 	0;",
        "lanes wait for lanes",
    ),
}


@pytest.mark.parametrize("error", ERRORS)
def test_what_a_gpu_does_not_forgive_is_an_error(error):
    body, message = ERRORS[error]
    with pytest.raises(machine.Fault, match=message):
        interpreted(body)
