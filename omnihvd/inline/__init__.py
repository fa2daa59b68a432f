"""In-network aggregation: allreduces through an aggregator in the data plane (docs/in-network.md).

    with inline.Worker("10.0.0.1", 47800, rank=rank, ranks=4, session=number) as worker:
        worker.sum(values)

The protocol is OmniReduce's Algorithm 1 (Fei et al., SIGCOMM 2021) over datagrams that may be lost:
workers send only non-zero blocks of 256 elements. The peer is `omnihvd aggregator` with `--udp` (a
socket), `--xdp INTERFACE` (in the kernel's receive path) or `--af-xdp INTERFACE` (in user space,
past the kernel).
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

import numpy as np

from omnihvd import engine

PORT = 47800
ARITHMETIC = ("integer", "float", "fpisa", "fpisa-a", "natural")  # in the order of packet.h
DTYPES = ("int32", "float32", "float16")


def core() -> ModuleType:
    """The compiled part. EngineError: its library is missing, or of another build."""
    engine.load_part("innetwork")
    return importlib.import_module("omnihvd.inline._core")


class Worker:
    """One worker of a job.

    All workers make the same sums in the same order, each from one thread.

    host, port: the aggregator's IPv4 address. session: a random 64-bit number, the same on all
    workers of a job and different for each job. secret: the aggregator's; by default the one in
    OMNIHVD_SECRET or OMNIHVD_SECRET_FILE. A job has at most 32 workers. EngineError when the
    aggregator does not answer within `patience_s` seconds, or refuses the job.

    workers_patience_s: how many seconds a sum waits for other workers without progress, for
    example when one has ended without leaving; 0: for ever.

    arithmetic, the same on all workers: what the aggregator adds. "integer": int32; floats are
    converted to block floating point. "float": float32 in the order of arrival, so two runs may
    differ in the last bits; `--xdp` does not support it. "fpisa", "fpisa-a": float32 in integer
    registers (FPISA, NSDI 2022). "natural": as "integer", but floats travel to the aggregator as
    powers of two in 8 bits, at random without bias; `--xdp` does not support it.
    """

    def __init__(
        self,
        host: str,
        port: int = PORT,
        *,
        rank: int,
        ranks: int,
        session: int,
        secret: str | None = None,
        patience_s: float = 15.0,
        workers_patience_s: float = 600.0,
        arithmetic: str = "integer",
    ) -> None:
        if secret is None:
            secret = engine.session.settings_from_environment().secret
        if not secret:
            raise ValueError("a secret is needed: set OMNIHVD_SECRET_FILE or OMNIHVD_SECRET")
        if arithmetic not in ARITHMETIC:
            raise ValueError(f"arithmetic is one of {ARITHMETIC}, not {arithmetic!r}")
        self._arithmetic = arithmetic
        self._client: Any = core().Client(
            host=host,
            port=port,
            secret=secret,
            session=session,
            rank=rank,
            ranks=ranks,
            patience_s=patience_s,
            workers_patience_s=workers_patience_s,
            numbers=ARITHMETIC.index(arithmetic),
        )

    def sum(self, values: np.ndarray, dense: bool = False) -> None:
        """Sums `values` over all workers, in place.

        values: C-contiguous, with the same size and dtype on all workers. dtypes: int32, float32
        and float16 with arithmetic "integer", the floats with "natural", else float32 only. int32
        wraps around at 32 bits.

        "integer" sums floats in block floating point: all workers agree on one scale for each
        block (SwitchML, NSDI 2021, section 5). The result is bit-identical on all workers and in
        every order. With n workers, n 2^b < 2^31 and a block's largest magnitude M, the error is
        at most n M 2^-b plus the rounding of the result (docs/arithmetic.md). NaN and infinities
        give what floating-point addition gives.

        dense: send zero blocks, too, as SwitchML does.

        EngineError when the aggregator is gone or silent, or when another worker does not come
        within `workers_patience_s`; the message names that worker. Either error ends the job.
        """
        integers = self._arithmetic in ("integer", "natural")
        dtypes = DTYPES[self._arithmetic == "natural" :] if integers else ("float32",)
        whole = values.flags.c_contiguous and values.flags.writeable
        if values.dtype.name not in dtypes or not whole:
            raise ValueError(f"sums are made of {', '.join(dtypes)}, C-contiguous and writeable")
        if self._client is None:
            raise ValueError("this worker has left its job")
        if not integers:
            values = values.view(np.int32)  # the aggregator knows the real dtype
        self._client.sum(values, dense)

    def stats(self) -> dict[str, int]:
        """Counts of datagrams sent, sent again, and with blocks; smoothed round trip in us."""
        return dict(self._client.stats())

    def close(self) -> None:
        """Leaves the job. The job ends when its last worker leaves."""
        self._client = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def random_session() -> int:
    """A number for Worker's `session`. One worker draws it and sends it to the others."""
    return int.from_bytes(os.urandom(8), "little")
