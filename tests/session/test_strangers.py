"""Messages of those who are not members: refused, counted, logged, and without effect."""

from __future__ import annotations

import random
import struct
from typing import Any

import _engine_tests
import numpy as np
import pytest
from groups import Meeting, all_well, blocks_of, in_threads, session, sum_of

HEADER = struct.Struct("<IHBBHHIQQQII16s")
MAGIC, VERSION = 0x4456484F, session.protocol
CONTRIBUTION, RESULT, ABORT, LEAVE = 1, 2, 3, 4
TOKEN: dict[str, Any] = {}
ENCRYPTED = {"encrypt": True, "secret": "the secret of a test"}


def texts(data: bytes) -> list[bytes]:
    """The length-prefixed parts of what ranks exchange while a group is made."""
    parts = []
    while data:
        (size,) = struct.unpack_from("<Q", data)
        parts.append(data[8 : 8 + size])
        data = data[8 + size :]
    return parts


def address_of(meeting: Meeting, rank: int) -> bytes:
    node = texts(texts(meeting.rounds[0][rank])[2])[0]
    return texts(node)[1]


def group_number(meeting: Meeting) -> int:
    info = texts(texts(meeting.rounds[1][0])[2])[0]
    return int(struct.unpack_from("<Q", info)[0])


def header(
    kind: int = CONTRIBUTION,
    group: int = 0,
    tag: bytes = b"",
    number: int = 0,
    version: int = VERSION,
    sender: int = 1,
    frames: int = 0,
) -> bytes:
    return HEADER.pack(MAGIC, version, kind, 0, 0, 0, sender, group, number, 1, frames, 0, tag)


def hostile_messages(group: int) -> list[bytes]:
    rng = random.Random(7)
    messages = [rng.randbytes(rng.choice([0, 1, 7, 63, 64, 65, 500, 70000])) for _ in range(200)]
    messages += [header(kind) for kind in range(6)]
    for kind in (CONTRIBUTION, RESULT, ABORT, LEAVE):
        for sender in (0, 1, 2, 3, 2**32 - 1):
            for number in (0, 1, 2**64 - 1):
                tag = rng.randbytes(16)
                messages.append(header(kind, group, tag, number, sender=sender))
    messages += [header(group=group, version=VERSION + 1)]
    messages += [header(ABORT, group, b"1", frames=11) + b"bow to me!!"]
    return messages


@pytest.mark.parametrize(
    "transport, tls, values",
    [("memory", "", TOKEN), ("ucx", "all", TOKEN), ("ucx", "tcp", ENCRYPTED)],
)
def test_strangers_are_refused(
    transport: str,
    tls: str,
    values: dict[str, Any],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UCX_TLS", tls)  # over shared memory nothing is encrypted
    meeting = Meeting(3)
    refused = session.stats()["messages_refused"]

    def work(rank: int, group: Any) -> None:
        if rank == 0:
            stranger = getattr(_engine_tests.transport.Transport, transport)()
            peer = stranger.connect(address_of(meeting, 1))
            for cookie, message in enumerate(hostile_messages(group_number(meeting))):
                stranger.send(peer, [message], cookie)
                stranger.progress()
            # Over TCP they may still be on their way; who waits for us fails after a while.
            while session.stats()["messages_refused"] - refused < len(hostile_messages(0)):
                stranger.progress()
                assert not stranger.take_failures()
        for count in (300_000, 1000):
            x = blocks_of(rank, count, 0.4)
            group.allreduce(x, x)
            np.testing.assert_array_equal(x, sum_of(3, count, 0.4))

    all_well(in_threads(3, work, transport, meeting=meeting, **values))
    messages = hostile_messages(0)
    assert session.stats()["messages_refused"] - refused == len(messages)
    assert "refused a message" in capfd.readouterr().err
