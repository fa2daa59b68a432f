"""Sums through an aggregator in the data path (docs/in-network.md).

    with inline.Worker("10.0.0.1", 47800, rank=rank, ranks=4, session=number) as worker:
        worker.sum(values)

This is OmniReduce's Algorithm 1 (Fei et al., SIGCOMM 2021) over datagrams that may be lost: only
non-zero blocks of 256 elements travel. `omnihvd aggregator --udp` (a socket), `--xdp INTERFACE` (in
the kernel's receive path) and `--af-xdp INTERFACE` (in user space, past the kernel) are the other
end.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from omnihvd import engine

PORT = 47800
ARITHMETIC = ("integer", "float", "fpisa", "fpisa-a")  # in the order of packet.h
DTYPES = ("int32", "float32", "float16")


class Worker:
    """One worker of a job; all of them make the same sums in the same order, from one thread each.

    host, port: the aggregator's IPv4 address. session: a random number of 64 bits, the same on
    all workers of a job, and of no other job. secret: as the aggregator has it; by default
    OMNIHVD_SECRET's or OMNIHVD_SECRET_FILE's. Raises EngineError when the aggregator does not
    answer within `patience_s`, or refuses the job, whose workers are 32 at most.

    workers_patience_s: how long a sum waits for the other workers while no result brings it on, as
    when one has ended without leaving; 0: for ever.

    arithmetic, the same on all workers: what the aggregator adds. "integer": int32, into
    which floats are made. "float": float32, in the order in which they come, so that two runs may
    differ in the last bits; not in the kernel (`--xdp`). "fpisa", "fpisa-a": float32 in registers
    of integers (FPISA, NSDI 2022).
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
        self._client: Any = engine.inline_path.Client(
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
        """Sums over all workers, in place: C-contiguous, of the same size and dtype everywhere.

        int32, float32 or float16; where arithmetic is not "integer", float32 alone. int32 wrap
        around at 32 bits. Floats are summed, with "integer", as integers of a scale that all
        workers have in common, block by block (SwitchML, NSDI 2021, section 5): all have the same
        bits, whatever the order. With n workers, n 2^b < 2^31 and a block's largest magnitude M the
        error is at most n M 2^-b and the rounding of the result (docs/arithmetic.md). NaN and
        infinities are what floats make of them. dense: zero blocks travel, too, as SwitchML has it.
        Raises EngineError when the aggregator is gone, or gives no sign of life, and when another
        worker is not there within `workers_patience_s`, which it names; the job ends with that.
        """
        dtypes = DTYPES if self._arithmetic == "integer" else ("float32",)
        whole = values.flags.c_contiguous and values.flags.writeable
        if values.dtype.name not in dtypes or not whole:
            raise ValueError(f"sums are made of {', '.join(dtypes)}, C-contiguous and writeable")
        if self._client is None:
            raise ValueError("this worker has left its job")
        if self._arithmetic != "integer":
            values = values.view(np.int32)  # the aggregator knows what they are
        self._client.sum(values, dense)

    def stats(self) -> dict[str, int]:
        """Datagrams sent, sent again, with blocks; microseconds of the smoothed round trip."""
        return dict(self._client.stats())

    def close(self) -> None:
        """Leaves the job, which ends with its last worker."""
        self._client = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def random_session() -> int:
    """A session's number, for one worker to make and the others to be told."""
    return int.from_bytes(os.urandom(8), "little")
