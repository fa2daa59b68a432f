"""The codec without loss: any bits arrive, sums are the same, and nonsense is refused."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from _engine_tests import codec, protocol
from cases import Case, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from network import STORAGE, Network

from omnihvd._engine import EngineError

FLOATS = ["float16", "bfloat16", "float32", "float64"]
# The share that is saved of a dense tensor of normal values.
SMALLER = {"float16": 0.1, "bfloat16": 0.27, "float32": 0.13, "float64": 0.08}
LOSSLESS = codec.Codec("lossless")


def normal(dtype: str, count: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(count) * 0.01
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(STORAGE[dtype])


@st.composite
def blocks(draw: st.DrawFn) -> np.ndarray:
    """Blocks of any bits: like gradients, with some of any kind, or just bits."""
    dtype = draw(st.sampled_from(FLOATS))
    n = draw(st.sampled_from([1, 8, 15, 16, 17, 32, 63, 64, 65, 100, 255, 256, 257, 1000, 4096]))
    seed = draw(st.integers(0, 1 << 30))
    values = normal(dtype, n, seed)
    bits = values.view(f"u{values.itemsize}")
    random = np.random.default_rng(seed)
    few = random.random(n) < draw(st.sampled_from([0, 0.02, 0.3, 1]))
    kind = draw(st.sampled_from(["any", "zero", "-0.0", "infinity", "NaN", "denormal"]))
    any_bits = np.frombuffer(random.bytes(values.nbytes), bits.dtype)
    sign = bits.dtype.type(1 << (8 * values.itemsize - 1))
    mantissa = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[dtype]
    low = bits.dtype.type((1 << mantissa) - 1)
    exponent = ~(sign | low)
    bits[few] = {
        "any": any_bits, "zero": any_bits * 0, "-0.0": any_bits * 0 | sign,
        "infinity": any_bits & sign | exponent, "NaN": any_bits | exponent,
        "denormal": any_bits & (sign | low),
    }[kind][few]  # fmt: skip
    return values


@given(block=blocks())
@settings(max_examples=300)
def test_any_bits_arrive_and_every_implementation_writes_the_same(block: np.ndarray) -> None:
    codes = {codec.encode_lossless(block, name) for name in codec.implementations()}
    assert len(codes) == 1
    [code] = codes
    if code is None:
        return
    assert len(code) <= block.nbytes * 15 // 16
    for name in codec.implementations():
        got = codec.decode_lossless(code, len(block), block.itemsize, name)
        assert got == block.tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_exponents_are_packed(dtype: str) -> None:
    block = normal(dtype, 256, 1)
    assert len(codec.encode_lossless(block)) < (1 - SMALLER[dtype]) * block.nbytes


def shortest(exponents: np.ndarray) -> int:
    """The length of the shortest code of a float32 block, by the format in lossless.h."""
    n, distances = len(exponents), exponents.max() - exponents
    far = [np.count_nonzero(distances >= 2**bits - 1) for bits in range(1, 8)]
    return 4 + 3 * n + min((n * bits + 7) // 8 + more for bits, more in enumerate(far, 1))


@pytest.mark.parametrize("n", [36, 100, 257, 1000])
def test_distances_have_the_bits_that_make_the_block_smallest(n: int) -> None:
    draw = np.random.default_rng(n)
    for spread in np.linspace(0.2, 12, 400):
        exponents = 120 - np.minimum(draw.exponential(spread, n), 119).astype(np.uint32)
        block = (exponents << 23 | draw.integers(0, 1 << 23, n, np.uint32)).view(np.float32)
        code, best = codec.encode_lossless(block), shortest(exponents)
        assert code is None if best > 4 * n * 15 // 16 else len(code) == best


def test_what_is_small_large_or_random_travels_as_it_is() -> None:
    assert codec.encode_lossless(np.ones(31, np.float32)) is None
    assert codec.encode_lossless(np.ones(32, np.float32)) is not None
    assert codec.encode_lossless(np.ones(4097, np.float32)) is None
    random = np.frombuffer(np.random.default_rng(1).bytes(1024), np.float32)
    assert codec.encode_lossless(random) is None


@given(block=blocks(), data=st.data())
@settings(max_examples=300)
def test_damaged_codes_are_refused_or_end_well(block: np.ndarray, data: st.DataObject) -> None:
    """Buffers are of the code's size: a sanitizer sees each byte beyond."""
    code = codec.encode_lossless(block)
    if code is None:
        return
    at = data.draw(st.integers(0, 3) | st.integers(0, len(code) - 1))
    damaged = bytearray(code)
    damaged[at] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(damaged), code[:at], code + b"\0"):
        results = {
            codec.decode_lossless(wrong, len(block), block.itemsize, name)
            for name in codec.implementations()
        }
        assert len(results) == 1
        assert len(wrong) == len(code) or results == {None}


def test_as_many_far_ones_are_told_as_there_are() -> None:
    code = bytearray(codec.encode_lossless(normal("float32", 256, 1)))
    distances = 4 + 3 * 256
    assert codec.decode_lossless(bytes(code), 256, 4) is not None
    code[distances] = 0xFF
    assert codec.decode_lossless(bytes(code), 256, 4) is None


def run(case: Case, of: codec.Codec, inputs: list[np.ndarray]) -> Network:
    def network(_: object, *arguments: object, **other: object) -> Network:
        shape = protocol.Shape(
            count=case.count, dtype=case.dtype, block_size=case.block_size, slots=case.slots,
            aggregators=case.aggregators, window=case.window, stripe=case.stripe, codec=of,
        )  # fmt: skip
        return Network(shape, *arguments, **other)

    made = case.network(inputs, network)
    made.run()
    return made


@given(
    case=cases(dtype=st.sampled_from(FLOATS), ordered=st.just(True), fill=st.sampled_from([1, 0.5]))
)
@settings(max_examples=80)
def test_sums_are_the_same_bits_as_without(case: Case) -> None:
    inputs = []
    for rank, given_ in enumerate(case.inputs()):
        values = normal(case.dtype, case.count, case.seed + rank)
        values[given_ == 0] = 0
        inputs.append(values)
    if case.count:
        inputs[0][case.seed % case.count] = np.nan if case.dtype != "bfloat16" else 0xFFC1
    plain, coded = (run(case, of, inputs) for of in (codec.Codec(), LOSSLESS))
    for one, other in zip(plain.outputs, coded.outputs):
        assert one.tobytes() == other.tobytes()
    assert sum(coded.bytes_up.values()) <= sum(plain.bytes_up.values())
    assert max(coded.peak_accumulator_bytes) <= case.accumulator_bound()


@pytest.mark.parametrize("dtype", FLOATS)
def test_bytes(dtype: str) -> None:
    """Up and down, of dense tensors."""
    case = Case(
        workers=3, aggregators=1, dtype=dtype, count=100_000, block_size=256, slots=2, window=16,
        stripe=4, density=1, fill=1, skew="random", scan_ahead=64, start_slots=9, ordered=False,
        in_place=True, schedule="random", seed=1,
    )  # fmt: skip
    network = run(case, LOSSLESS, [normal(dtype, case.count, rank) for rank in range(3)])
    most = (1 - SMALLER[dtype]) * case.count * np.dtype(STORAGE[dtype]).itemsize * 1.01
    for rank in range(3):
        assert network.bytes_up[rank, 0] < most
        assert network.bytes_down[0, rank] < most


def frames(block: np.ndarray, code: bytes) -> tuple[bytes, protocol.Shape]:
    shape = protocol.Shape(count=len(block), dtype="float32", codec=LOSSLESS)
    return protocol.encode([protocol.Frame(blocks=[(0, code, False)])], shape, shape=shape), shape


@given(data=st.data())
@settings(max_examples=100)
def test_damaged_messages_are_refused_or_end_well(data: st.DataObject) -> None:
    block = normal("float32", 256, 1)
    code = codec.encode_lossless(block)
    sent, shape = frames(block, code)
    assert protocol.decode(sent, shape)["frames"][0].blocks == [(0, code, False)]
    message = bytearray(sent)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(64, 120) | st.integers(64, len(message) - 1))
        message[at] ^= data.draw(st.integers(1, 255))
    with suppress(EngineError):
        protocol.Aggregator(shape, 0, 1).on_message(bytes(message))
    with pytest.raises(EngineError, match=r"malformed"):
        protocol.decode(sent[:-1], shape)


def test_a_code_that_nothing_writes_is_refused() -> None:
    block = normal("float32", 256, 1)
    code = bytearray(codec.encode_lossless(block))
    code[4 + 3 * 256] = 0xFF
    sent, shape = frames(block, bytes(code))
    with pytest.raises(EngineError, match="coded block that nothing writes"):
        protocol.Aggregator(shape, 0, 1).on_message(sent)


def test_integers_cannot_be_coded() -> None:
    block = normal("float32", 256, 1)
    sent, shape = frames(block, codec.encode_lossless(block))
    data = bytearray(sent)
    data[64 + 8] = 6  # int32
    with pytest.raises(EngineError, match="impossible codec"):
        protocol.decode(bytes(data), shape)
