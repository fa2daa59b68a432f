"""Numbers that Keras' progress bar shows in a unit that is easy to read.

The bar writes `{value:.4f}`, and values below 0.001, zero too, as `{value:.4e}`. Before that Keras
multiplies, divides and averages the value, which would turn it into a plain float.
"""

from __future__ import annotations

from typing import Any


class Share(float):
    def __format__(self, spec: str) -> str:
        return self._text() if spec in (".4f", ".4e") else float.__format__(self, spec)

    def __mul__(self, other: Any) -> float:
        return type(self)(float(self) * other)

    def __truediv__(self, other: Any) -> float:
        return type(self)(float(self) / other)

    def mean(self, *_: Any, **__: Any) -> float:
        return self

    def _text(self) -> str:
        return f"{float(self):.2%}"


class Bytes(Share):
    def _text(self) -> str:
        return f"{float(self) / 1e6:,.3f} MB"


class Bandwidth(Share):
    def _text(self) -> str:
        return f"{float(self) / 1e6:,.3f} MB/s"


class Seconds(Share):
    def _text(self) -> str:
        return f"{float(self):.3f} s"


_UNITS = {
    "gradient_bytes": Bytes,
    "bytes_sent": Bytes,
    "library_bytes": Bytes,
    "ring_bytes": Bytes,
    "compression_bandwidth": Bandwidth,
    "compression_delay": Seconds,
    "compression_exposed": Seconds,
}


def shown(name: str, value: float) -> tuple[str, float]:
    return name, _UNITS.get(name, Share)(value)
