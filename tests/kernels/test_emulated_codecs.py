"""encode and decode, emulated, against the engine's codecs: the same bytes, the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from _engine_tests import codec as engine
from kernel_emulation import Kernels, Memory, Scattered

from omnihvd.kernels.codes import HEADS_AT, codes_at, head_bytes, parcel_bytes

CODECS = [("natural", 0), ("qsgd", 2), ("qsgd", 4), ("qsgd", 8), ("terngrad", 0), ("sign", 0),
          ("one_bit", 0), ("int", 4), ("int", 8)]  # fmt: skip
SEED, WHO, FIRST = 77, 5, 1000


def values_of(elements: int, block_size: int, seed: int = 0) -> np.ndarray:
    """Blocks of nine kinds in turn. One kind cannot be coded."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(elements).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        for number, first in enumerate(range(0, elements, block_size)):
            block = values[first : first + block_size]
            kind = number % 9
            if kind == 1:
                block *= np.ldexp(1.0, rng.integers(-60, 30, len(block))).astype(np.float32)
            elif kind == 2:
                block[rng.random(len(block)) < 0.7] = rng.choice([0.0, -0.0])
            elif kind == 3:
                block[...] = rng.choice(np.array([1e-45, -3e-40, 1e-38, 0], np.float32), len(block))
            elif kind == 4:  # one that is clipped
                block[rng.integers(len(block))] = 1e6
            elif kind == 5:
                block *= np.float32(8e37 / np.abs(block).max())
            elif kind == 6:
                block[...] = rng.choice([-0.0, 0.0])
            elif kind == 7:
                block[rng.integers(len(block))] = rng.choice(
                    np.array([np.nan, np.inf, -np.inf, 3.4028235e38], np.float32)
                )
    return values


class Coder:
    """One codec in one direction, by kernels and by the engine."""

    def __init__(self, module: Kernels, name: tuple[str, int], sums: bool) -> None:
        self.module, self.sums = module, sums
        self.codec = engine.Codec(*name, seed=SEED)
        self.rule, self.bits = self.coding = self.codec.coding(sums)

    def encode(
        self,
        values: np.ndarray,
        parcel_blocks: int,
        misaligned: int = 0,
        ctas: int = 2,
        order: int = 0,
        rest: Memory | None = None,
    ) -> Memory:
        size = self.module.block_size
        parcels = -(-len(values) // size // parcel_blocks)
        made = Memory(parcels * parcel_bytes(self.coding, parcel_blocks, size))
        tensor = Scattered(values, misaligned)
        self.module.run(
            "encode", tensor.arguments[0], len(values), rest.address if rest else 0, *self.coding,
            SEED, WHO, FIRST, parcel_blocks, made.address, ctas, order,
        )  # fmt: skip
        made.check()
        if rest:
            rest.check()
        else:
            assert np.array_equal(tensor.values().view(np.uint32), values.view(np.uint32))
        return made

    def decode(
        self, parcels: Memory, elements: int, parcel_blocks: int, count: int = 1,
        misaligned: int = 0, ctas: int = 2, order: int = 0, seed: int = SEED,
    ) -> np.ndarray:  # fmt: skip
        out = Scattered(np.full(elements, 9, np.float32), misaligned)
        self.module.run(
            "decode", out.arguments[0], elements, *self.coding, seed, count,
            parcel_blocks, parcels.address, ctas, order,
        )  # fmt: skip
        return out.values()

    def expected(self, block: np.ndarray, number: int) -> tuple[bytes | None, np.ndarray]:
        """The engine's bytes, None where it cannot code the block, and what they are decoded to."""
        key = engine.block_key(SEED, WHO, FIRST + number)
        coded = self.codec.encode(block, key, sums=self.sums)
        if coded is None:
            return None, np.full(len(block), np.nan, np.float32)
        return coded, self.codec.decode(coded, len(block), sums=self.sums)

    def of_parcels(self, parcels: Memory, parcel_blocks: int, number: int, n: int) -> bytes:
        size = self.module.block_size
        head, codes = head_bytes(self.coding), size * self.bits // 8
        stride = parcel_bytes(self.coding, parcel_blocks, size)
        parcel = parcels.bytes[number // parcel_blocks * stride :]
        index = number % parcel_blocks
        first = codes_at(self.coding, parcel_blocks) + index * codes
        coded = parcel[first : first + (n * self.bits + 7) // 8]
        return parcel[HEADS_AT:][index * head :][:head].tobytes() + coded.tobytes()


def check(coder: Coder, values: np.ndarray, parcel_blocks: int, **how: int) -> None:
    size = coder.module.block_size
    parcels = coder.encode(values, parcel_blocks, **how)
    decoded = coder.decode(parcels, len(values), parcel_blocks, **how)
    coded = 0
    for number, first in enumerate(range(0, len(values), size)):
        block = values[first : first + size]
        expected, result = coder.expected(block, number)
        if expected is not None:
            got = coder.of_parcels(parcels, parcel_blocks, number, len(block))
            assert got == expected, f"block {number}"
            coded += 1
        got = decoded[first : first + size]
        same = np.isnan(got) if expected is None else got.view(np.uint32) == result.view(np.uint32)
        assert same.all(), f"block {number}"
    assert coded > len(values) // size // 2


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("block_size", [32, 256])
def test_the_engine_s_bits(kernels, block_size, name, sums):
    values = values_of(19 * block_size + 7, block_size, block_size)
    check(Coder(kernels("float32", block_size), name, sums), values, 6, order=block_size + sums)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("block_size, elements", [(32, 1), (32, 32), (256, 9 * 256 + 255)])
def test_other_blocks_and_places(kernels, block_size, elements, name):
    values = values_of(elements, block_size)
    check(
        Coder(kernels("float32", block_size), name, False), values, 4, misaligned=3, ctas=1, order=2
    )


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_adds_in_the_order_of_ranks(kernels, name, ranks):
    """A rank's own range. Every other rank has sent it a parcel of that."""
    block_size, own = 32, 9
    coder = Coder(kernels("float32", block_size), name, False)
    n = own * block_size - 5  # the tensor ends in this range
    sent = [values_of(n, block_size, rank) / np.float32(10.0**rank) for rank in range(ranks)]
    made = [coder.encode(values, own).bytes for values in sent]
    parcels = Memory(sum(map(len, made)))
    parcels.bytes[:] = np.concatenate(made)
    got = coder.decode(parcels, n, own, ranks)
    expected = np.zeros(n, np.float32)
    with np.errstate(invalid="ignore"):
        for rank, values in enumerate(sent):
            for number, first in enumerate(range(0, n, block_size)):
                part = slice(first, first + block_size)
                decoded = coder.expected(values[part], number)[1]
                expected[part] = decoded if rank == 0 else expected[part] + decoded
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan) and nan.any() and not nan.all()
    assert np.array_equal(got.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


@pytest.mark.parametrize("name", CODECS)
def test_what_another_codec_or_step_has_made_is_nan(kernels, name):
    """As long as what was expected: a rank that does something else is not added in silence."""
    values = np.ones(32 * 9, np.float32)
    coder = Coder(kernels("float32", 32), name, False)
    made = coder.encode(values, 5)
    assert np.isnan(coder.decode(made, len(values), 5, seed=SEED + 1)).all()
    other = Coder(kernels("float32", 32), ("qsgd" if name == ("int", 4) else "int", 4), False)
    longer = Memory(2 * len(made.bytes) + 2000)
    longer.bytes[: len(made.bytes)] = made.bytes
    assert np.isnan(other.decode(longer, 5 * 32, 5)).all()
    assert np.isnan(coder.decode(made, 4 * 32, 4)).all()
    assert not np.isnan(coder.decode(made, len(values), 5)).any()


@pytest.mark.parametrize("name", CODECS)
def test_compilers_that_fuse_products_change_nothing(name, tmp_path_factory):
    """As CUDA's does by itself."""
    flags = ("-mfma", "-ffp-contract=fast")
    module = Kernels("float32", 1024, tmp_path_factory.getbasetemp(), flags)
    check(Coder(module, name, False), values_of(9 * 1024 + 1, 1024), 30)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("elements", [1, 40, 9 * 32 + 5])
def test_error_feedback_in_the_same_pass(kernels, name, elements):
    """The rest is added before, and what is left of the sum afterwards."""
    coder = Coder(kernels("float32", 32), name, False)
    values, before = values_of(elements, 32), values_of(elements, 32, 1) / np.float32(3)
    with np.errstate(invalid="ignore", over="ignore"):
        total = values + before
        plain = coder.encode(total, 5)
        left = total - coder.decode(plain, elements, 5)
    rest = Memory(before.nbytes, 4)
    rest.bytes[:] = before.view(np.uint8)
    assert np.array_equal(coder.encode(values, 5, misaligned=1, rest=rest).bytes, plain.bytes)
    expected = np.where(np.isfinite(left), left, np.float32(0))
    assert np.array_equal(rest.bytes.view(np.uint32), expected.view(np.uint32))
