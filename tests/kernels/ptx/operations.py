"""PTX instructions on values. These are raw bits in uint64, of several threads;
predicates are bools. KeyError or ValueError: it is not known here."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from .text import WIDTHS

_NUMPY = {"u": "u", "s": "i", "f": "f", "b": "u"}


def unsigned(bits: np.ndarray, width: int) -> np.ndarray:
    return bits if width == 8 else bits & np.uint64((1 << 8 * width) - 1)


def typed(bits: np.ndarray, kind: str) -> np.ndarray:
    """As numbers of a type: "s32", "f64", ..."""
    width = WIDTHS[kind]
    return unsigned(bits, width).astype(f"u{width}").view(f"{_NUMPY[kind[0]]}{width}")


def widened(values: np.ndarray, kind: str) -> np.ndarray:
    """A register's content: signed numbers keep their sign, whatever its width is."""
    width = WIDTHS[kind]
    if kind[0] == "s":
        return values.astype(f"u{width}").view(f"i{width}").astype(np.int64).view(np.uint64)
    return values.view(f"u{width}").astype(np.uint64)


def result(parts: tuple[str, ...], *values: np.ndarray) -> np.ndarray:
    what, kind = parts[0], parts[-1]
    if what in _CONVERTING:
        return _CONVERTING[what](parts, *values)
    if kind == "pred":
        return _PREDICATES[what](*values)
    numbers = [typed(value, kind) for value in values]
    return widened(np.ascontiguousarray(_SAME_TYPE[what](*numbers)), kind)


# --- of one type

_PREDICATES: dict[str, Callable] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
    "mov": lambda a: a != 0,
}  # fmt: skip


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return a / b
    if (b == 0).any():
        raise ValueError("divided by zero")
    return a // b  # of unsigned ones


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Rounded once; of float64."""
    if a.dtype != np.float64:
        raise ValueError("fma of float32")
    rough = a * b + c
    whole = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & np.isfinite(rough)
    for i in np.flatnonzero(whole):
        exact = Fraction(a[i]) * Fraction(b[i]) + Fraction(c[i])
        if exact:
            rough[i] = float(exact)
    return rough


def _least(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.fmin(a, b)


def _most(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.fmax(a, b)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a - b * _quotient(a, b)


_SAME_TYPE: dict[str, Callable] = {
    "add": np.add, "sub": np.subtract, "div": _quotient, "rem": _remainder, "sqrt": np.sqrt,
    "min": _least, "max": _most, "neg": np.negative, "fma": _fma,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "mov": lambda a: a,
}  # fmt: skip


# --- of several


def _mul(parts: tuple[str, ...], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    kind = parts[-1]
    if kind[0] == "f":
        return widened(typed(a, kind) * typed(b, kind), kind)
    if parts[1] == "wide":
        if kind not in ("u16", "u32"):
            raise ValueError(f"a wide product of {kind}")
        return typed(a, kind).astype(np.uint64) * typed(b, kind).astype(np.uint64)
    if parts[1] != "lo":
        raise ValueError(f"a product's {parts[1]} half")
    return widened(typed(a, kind) * typed(b, kind), kind)


def _mad(parts: tuple[str, ...], a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return widened(typed(_mul(parts, a, b) + c, parts[-1]), parts[-1])


def _shift(parts: tuple[str, ...], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By more than there are bits: all go."""
    kind = parts[-1]
    bits, by = 8 * WIDTHS[kind], typed(b, "u32").astype(np.int64)
    values = typed(a, kind).astype(np.int64) if kind[0] == "s" else unsigned(a, bits // 8)
    held = np.minimum(by, bits - 1)
    if parts[0] == "shl":
        shifted = unsigned(values << held.astype(np.uint64), bits // 8)
    else:
        shifted = values >> held.astype(values.dtype)
        if kind[0] == "s":
            return shifted.view(np.uint64)
    return np.where(by < bits, shifted, np.uint64(0))


_COMPARE: dict[str, Callable] = {
    "eq": np.equal, "ne": lambda a, b: (a < b) | (a > b), "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def _setp(parts: tuple[str, ...], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    _, compare, kind = parts
    x, y = typed(a, kind), typed(b, kind)
    if kind[0] == "f" and compare.endswith("u"):  # or one is NaN
        return _COMPARE[compare[:-1]](x, y) | np.isnan(x) | np.isnan(y)
    return _COMPARE[compare](x, y)


def _selp(parts: tuple[str, ...], a: np.ndarray, b: np.ndarray, p: np.ndarray) -> np.ndarray:
    return np.where(p, a, b)


def _cvt(parts: tuple[str, ...], a: np.ndarray) -> np.ndarray:
    *how, to, of = parts[1:]
    values = typed(a, of)
    if to[0] != "f" and of[0] != "f":
        wide = values.astype(np.int64) if of[0] == "s" else values.astype(np.uint64)
        return widened(typed(wide.view(np.uint64), to), to)
    if to[0] == "f" and how in (["rn"], []):
        return widened(values.astype(f"f{WIDTHS[to]}"), to)
    if how == ["rzi"] and to == "s32":
        limits = np.iinfo(np.int32)
        whole = np.clip(np.trunc(values.astype(np.float64)), limits.min, limits.max)
        return widened(np.where(np.isnan(whole), 0, whole).astype(np.int32), to)
    raise ValueError(f"conversion {'.'.join(parts)}")


def _popc(parts: tuple[str, ...], a: np.ndarray) -> np.ndarray:
    width = WIDTHS[parts[-1]]
    octets = unsigned(a, width).view(np.uint8).reshape(-1, 8)
    return np.unpackbits(octets, axis=1).sum(1).astype(np.uint64)


def _bfi(
    parts: tuple[str, ...], a: np.ndarray, b: np.ndarray, at: np.ndarray, length: np.ndarray
) -> np.ndarray:
    bits = 8 * WIDTHS[parts[-1]]
    at, length = at & np.uint64(255), length & np.uint64(255)
    if (at + length > bits).any() or (length >= 64).any():
        raise ValueError("a field that does not fit")
    mask = ((np.uint64(1) << length) - np.uint64(1)) << at
    return unsigned(b & ~mask | a << at & mask, bits // 8)


def _prmt(parts: tuple[str, ...], a: np.ndarray, b: np.ndarray, select: np.ndarray) -> np.ndarray:
    both = unsigned(a, 4) | unsigned(b, 4) << np.uint64(32)
    made = np.zeros_like(both)
    for i in range(4):
        nibble = select >> np.uint64(4 * i) & np.uint64(15)
        if (nibble > 7).any():
            raise ValueError("prmt that copies signs")
        made |= (both >> nibble * np.uint64(8) & np.uint64(255)) << np.uint64(8 * i)
    return made


def _cvta(parts: tuple[str, ...], a: np.ndarray) -> np.ndarray:
    """Global addresses are generic ones."""
    if parts[1:] != ("to", "global", "u64"):
        raise ValueError(".".join(parts))
    return a


_CONVERTING: dict[str, Callable] = {
    "mul": _mul, "mad": _mad, "shl": _shift, "shr": _shift, "setp": _setp, "selp": _selp,
    "cvt": _cvt, "popc": _popc, "bfi": _bfi, "prmt": _prmt, "cvta": _cvta,
}  # fmt: skip


# --- between the lanes of a warp: of those that meet, all results


def _shfl(
    parts: tuple[str, ...], lanes: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    b, c = typed(b, "u32").astype(np.int64), typed(c, "u32").astype(np.int64)
    segment, clamp = c >> 8 & 31, c & 31
    b = b & 31
    most = (lanes & segment) | (clamp & ~segment)
    least = lanes & segment
    if parts[2] == "up":
        source = lanes - b
        inside = source >= most
    elif parts[2] == "bfly":
        source = lanes ^ b
        inside = source <= most
    elif parts[2] == "idx":
        source = least | (b & ~segment)
        inside = source <= most
    else:
        raise ValueError(".".join(parts))
    source = np.where(inside, source, lanes)
    place = {int(lane): i for i, lane in enumerate(lanes)}
    return a[[place[int(lane)] for lane in source]], inside  # KeyError: of one that is not there


def _vote(parts: tuple[str, ...], lanes: np.ndarray, p: np.ndarray) -> tuple[np.ndarray]:
    if parts[2] == "ballot":
        bits = sum(1 << int(lane) for lane in lanes[p])
        return (np.full(len(lanes), bits, np.uint64),)
    if parts[2] != "any":
        raise ValueError(".".join(parts))
    return (np.full(len(lanes), p.any()),)


def _match(parts: tuple[str, ...], lanes: np.ndarray, a: np.ndarray) -> tuple[np.ndarray]:
    if parts[1] != "any":
        raise ValueError(".".join(parts))
    values = unsigned(a, WIDTHS[parts[-1]])
    return (
        np.array([sum(1 << int(lane) for lane in lanes[values == v]) for v in values], np.uint64),
    )


EXCHANGES: dict[str, Callable] = {"shfl": _shfl, "vote": _vote, "match": _match}
