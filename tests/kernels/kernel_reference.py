"""The kernels' results, in NumPy, and tensors to try them on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FLOATS = {
    # dtype: bits, exponent's mask
    "float16": (np.uint16, 0x7C00),
    "bfloat16": (np.uint16, 0x7F80),
    "float32": (np.uint32, 0x7F800000),
    "float64": (np.uint64, 0x7FF0000000000000),
}
INTEGERS = {"int8": np.uint8, "uint8": np.uint8, "int32": np.uint32, "int64": np.uint64}
DTYPES = [*FLOATS, *INTEGERS]
BLOCK_SIZES = [32, 64, 128, 256, 512, 1024]
RECORD = np.dtype([("block", "<u8"), ("place", "<u8")])


def bits_of(dtype: str) -> np.dtype:
    """The unsigned type as wide as the dtype: tensors here are raw bits."""
    return np.dtype(FLOATS[dtype][0] if dtype in FLOATS else INTEGERS[dtype])


def negative_zero(dtype: str) -> int | None:
    return 1 << (bits_of(dtype).itemsize * 8 - 1) if dtype in FLOATS else None


def nonzero(values: np.ndarray, dtype: str) -> np.ndarray:
    zero = values == 0
    if dtype in FLOATS:
        zero |= values == negative_zero(dtype)
    return ~zero


@dataclass
class Case:
    """A tensor: its blocks are non-zero, and elements of these, with the given probabilities."""

    dtype: str
    block_size: int
    elements: int
    blocks: float
    filled: float = 1.0
    seed: int = 0

    def tensor(self) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        bits = bits_of(self.dtype)
        values = rng.integers(1, np.iinfo(bits).max, self.elements, dtype=bits, endpoint=True)
        specials = [1, np.iinfo(bits).max]  # of floats: the least denormal number, and a NaN
        if self.dtype in FLOATS:
            infinity = FLOATS[self.dtype][1]
            specials += [infinity, infinity | negative_zero(self.dtype), infinity + 1]
        special = rng.random(self.elements) < 0.05
        values[special] = rng.choice(np.array(specials, dtype=bits), int(special.sum()))
        blocks = -(-self.elements // self.block_size)
        keep = np.repeat(rng.random(blocks) < self.blocks, self.block_size)[: self.elements]
        keep &= rng.random(self.elements) < self.filled
        values[~keep] = 0
        if self.dtype in FLOATS:
            values[~keep & (rng.random(self.elements) < 0.2)] = negative_zero(self.dtype)
        return values


def payloads(tensor: np.ndarray, dtype: str, block_size: int, pack: bool) -> dict[int, bytes]:
    """The non-zero blocks, as they are sent."""
    result = {}
    present = nonzero(tensor, dtype)
    for block in np.unique(np.flatnonzero(present) // block_size):
        part = slice(block * block_size, (block + 1) * block_size)
        values, mask = tensor[part], present[part]
        packed = np.packbits(mask, bitorder="little").tobytes() + values[mask].tobytes()
        small = 4 * len(packed) <= 3 * values.nbytes
        result[int(block)] = packed if pack and small else values.tobytes()
    return result


def check_compacted(
    tensor: np.ndarray,
    case: Case,
    pack: bool,
    totals: np.ndarray,
    bitmap: np.ndarray,
    records: np.ndarray,
    data: np.ndarray,
) -> None:
    """Compares compact's output, in any order of its tiles, with the payloads."""
    expected = payloads(tensor, case.dtype, case.block_size, pack)
    assert totals[0] == len(expected)
    records = records[: int(totals[0])]
    blocks, offsets, lengths = records["block"], records["place"] >> 16, records["place"] & 0xFFFF
    assert sorted(blocks.tolist()) == sorted(expected)
    for block, offset, length in zip(blocks.tolist(), offsets.tolist(), lengths.tolist()):
        assert data[offset : offset + length].tobytes() == expected[block], f"block {block}"
    # The blocks of 8 KiB of the tensor, which may be sent together, lie together and ascend.
    order = np.argsort(offsets)
    tiles = blocks[order] * np.uint64(case.block_size * tensor.itemsize) // np.uint64(8192)
    # Nothing overlaps, nothing lies beyond the total, and nothing is left out: a block fills whole
    # 16 bytes, a tile whole 128.
    last_of_tile = np.append(np.diff(tiles) != 0, True)[: len(tiles)]
    unit = np.where(last_of_tile, 128, 16).astype(np.uint64)
    ends = (offsets[order] + lengths[order] + unit - np.uint64(1)) // unit * unit
    assert np.array_equal(np.append(offsets[order], totals[1]), np.append(np.uint64(0), ends))
    assert 1 + np.count_nonzero(np.diff(tiles)) == len(np.unique(tiles)) or not len(tiles)
    same_tile = np.diff(tiles) == 0
    assert (np.diff(blocks[order].astype(np.int64))[same_tile] > 0).all()

    bits = np.unpackbits(bitmap.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == sorted(expected)


def scattered(
    before: np.ndarray, tensor: np.ndarray, dtype: str, block_size: int, pack: bool
) -> np.ndarray:
    """`before` with the non-zero blocks of `tensor`; a packed one has lost its zeros' signs."""
    result = before.copy()
    for block, payload in payloads(tensor, dtype, block_size, pack).items():
        part = slice(block * block_size, (block + 1) * block_size)
        values = tensor[part].copy()
        if len(payload) < values.nbytes:
            values[~nonzero(values, dtype)] = 0
        result[part] = values
    return result
