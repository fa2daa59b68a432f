"""In-network aggregation: what is refused, and what a worker says of an aggregator's refusal."""

from __future__ import annotations

import re
import socket
import threading
from typing import Any

import numpy as np
import pytest
from _engine_tests import inline_parts as parts

from omnihvd import inline
from omnihvd.engine import EngineError
from omnihvd.inline import aggregator as serving

SECRET = "the secret of a test"
WELCOME, REFUSAL = 4, 5


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (3, "it does not know this job any more: it was restarted, or the hosts of all"),
        (4, "other workers of this job sum other numbers: give all workers the same"),
        (5, 'it does not add such numbers: on XDP use arithmetic="integer" or "fpisa", or start'),
        (9, "for a reason that this release does not know: install the same omnihvd on all"),
    ],
)
def test_why_a_job_was_refused(reason: int, said: str) -> None:
    session = 5
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(20)

        def refuse() -> None:
            _, worker = server.recvfrom(2048)
            answer = parts.signed_head(SECRET, session, REFUSAL, reason, 1, 2, 0, 0, 0)
            server.sendto(answer, worker)

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(EngineError, match=rf"rank 1: .*refuses this job: {said}"):
            inline.Worker(*server.getsockname(), rank=1, ranks=2, session=session, secret=SECRET)
        thread.join()


def test_an_aggregator_that_adds_no_codes() -> None:
    """As --xdp, where a job of OMNIHVD_INLINE sums under natural()."""
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(20)

        def welcome() -> None:
            _, worker = server.recvfrom(2048)
            server.sendto(parts.signed_head(SECRET, 5, WELCOME, 0, 1, 2, 16, 0, 0), worker)

        thread = threading.Thread(target=welcome)
        thread.start()
        of: dict[str, Any] = {"rank": 1, "ranks": 2, "session": 5, "secret": SECRET}
        one = inline.Worker(*server.getsockname(), arithmetic="natural", **of)
        thread.join()
        said = (
            "rank 1: the aggregator at .* adds no powers of two of natural(): start it with --udp "
            "or --af-xdp in place of --xdp, or leave out the codec, or OMNIHVD_ARITHMETIC"
        )
        with pytest.raises(EngineError, match=said.replace("()", r"\(\)")):
            one.sum(np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"jobs": 0}, "an aggregator takes 1 to 1024 jobs, of at least one slot"),
        ({"host": "here"}, "here is no IPv4 address: in-network aggregation supports IPv4 only"),
        ({"host": "192.0.2.1"}, "cannot open a socket of UDP: Cannot assign requested address"),
        ({"group": "10.0.0.1"}, "10.0.0.1 is no multicast address: those are 224.0.0.0 to"),
    ],
)
def test_an_aggregator_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(EngineError, match=re.escape(said)):
        serving.Aggregator(SECRET, **{"host": "127.0.0.1", "port": 0, **options})


def test_an_array_that_no_aggregator_takes() -> None:
    with serving.running(serving.Aggregator(SECRET, host="127.0.0.1", port=0)) as aggregator:
        port = int(aggregator.address.rpartition(":")[2])
        with inline.Worker("127.0.0.1", port, rank=0, ranks=1, session=1, secret=SECRET) as one:
            said = "an in-network aggregator takes no such array"
            with pytest.raises(ValueError, match=said):
                one._client.sum(np.zeros(8, np.float64), False)


def test_a_worker_without_slots() -> None:
    with pytest.raises(EngineError, match="a worker needs slots, and time-outs above 0"):
        parts.run_job(np.zeros((1, 2, 32), np.int32), 0, False, parts.Network(), 1)


def test_no_way_to_the_aggregator() -> None:
    with pytest.raises(EngineError, match="the aggregator cannot be reached: "):
        inline.Worker("255.255.255.255", 9, rank=0, ranks=1, session=1, secret=SECRET)
