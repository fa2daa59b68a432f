"""Somebody who sits between two ranks reads, repeats, changes and drops messages: what he makes is
refused and counted, and has no effect; what he drops is noticed. No sum is ever wrong."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import _engine_tests
import numpy as np
import pytest
from _engine_tests.transport import Transport
from groups import Meeting, all_well, blocks_of, in_threads, session, settings, sum_of
from test_strangers import (
    CONTRIBUTION,
    ENCRYPTED,
    HEADER,
    RESULT,
    TOKEN,
    address_of,
    texts,
)

from omnihvd.engine import EngineError

COUNT = 300_000
SECRET = "the secret of a test"
Deed = Callable[[list[bytes]], list[bytes]]  # messages that have come -> what is passed on


class Between(Meeting):
    """The meeting of two ranks, in which each hears an address of ours as the other's."""

    def __init__(self, deed: Deed) -> None:
        super().__init__(2)
        self.deed = deed
        self.seen: list[bytes] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ours: dict[int, tuple[bytes, bytes]] = {}  # rank: its address, and ours for it

    def allgather(self, rank: int) -> Callable[[bytes], list[bytes]]:
        gather = super().allgather(rank)

        def heard(mine: bytes) -> list[bytes]:
            said = gather(mine)
            if rank == 0 and not self._ours:
                for other in range(2):
                    self._stand_in_for(other, address_of(self, other))
            gather(b"")
            theirs, ours = self._ours[1 - rank]
            return [part.replace(theirs, ours) for part in said]

        return heard

    def _stand_in_for(self, rank: int, address: bytes) -> None:
        end = Transport.memory()
        while len(end.address()) < len(address):  # which holds a number
            end = Transport.memory()
        assert len(end.address()) == len(address)
        self._ours[rank] = address, end.address()
        thread = threading.Thread(target=self._pass_on, args=(end, address), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _pass_on(self, end: Any, address: bytes) -> None:
        peer = end.connect(address)
        while not self._stop.is_set():
            if not end.progress():
                end.wait(20)
            come = end.take_messages()
            self.seen += come
            for message in self.deed(come) if come else ():
                end.send(peer, [message], 0)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)


@pytest.fixture(autouse=True)
def addresses_of_one_length() -> Iterator[None]:
    kept = Transport.memory()
    while len(kept.address()) < len(b"omnihvd memory 100"):
        kept = Transport.memory()
    yield


def several_sums(rank: int, group: Any) -> None:
    for count, density in ((COUNT, 1), (COUNT, 0.1), (1000, 1)):
        x = blocks_of(rank, count, density)
        group.allreduce(x, x)
        np.testing.assert_array_equal(x, sum_of(2, count, density))


def sums_through(deed: Deed, **values: Any) -> tuple[list[Any], int, Between]:
    """The ranks' outcomes, and how many messages were refused."""
    between = Between(deed)
    refused = session.stats()["messages_refused"]
    results = in_threads(2, several_sums, meeting=between, **values)
    between.end()
    return results, session.stats()["messages_refused"] - refused, between


def repeats(come: list[bytes]) -> list[bytes]:
    return [message for message in come for _ in range(2)]


def repeats_later(come: list[bytes]) -> list[bytes]:
    return come + come[::-1]


def runs_ahead(come: list[bytes]) -> list[bytes]:
    return come[::-1] + come


def cuts(come: list[bytes]) -> list[bytes]:
    return [part for m in come for part in (m[:-1], m[:64], m[:63], m + b"\0", m)]


def with_changes(message: bytes, places: Iterable[int]) -> list[bytes]:
    """A copy with one bit changed at each of the places, then the message itself."""
    copies = [bytearray(message) for _ in places]
    for copy, at in zip(copies, places):
        copy[at] ^= 1
    return [*map(bytes, copies), message]


def changes_headers(come: list[bytes]) -> list[bytes]:
    return [part for m in come for part in with_changes(m, range(4, 64, 3))]


def changes_content(come: list[bytes]) -> list[bytes]:
    return [part for m in come for part in with_changes(m, range(64, len(m), 1 + len(m) // 7))]


def forges(come: list[bytes]) -> list[bytes]:
    """Results of 666.0 under a header that was read on the wire, in their place in the order."""
    made = []
    for message in come:
        if HEADER.unpack_from(message)[2] == RESULT:
            evil = struct.pack("<f", 666.0) * ((len(message) - 128) // 4)
            made.append(message[: len(message) - len(evil)] + evil)
        made.append(message)
    return made


PROTECTION = {"token": TOKEN, "encrypted": ENCRYPTED}
DEEDS: dict[Deed, int] = {  # and the weakest protection against it
    repeats: 0,
    repeats_later: 0,
    runs_ahead: 0,
    cuts: 0,
    changes_headers: 1,
    changes_content: 1,
    forges: 1,
}


@pytest.mark.parametrize(
    "deed, name", [(deed, name) for deed, least in DEEDS.items() for name in [*PROTECTION][least:]]
)
def test_what_he_makes_is_refused(deed: Deed, name: str) -> None:
    results, refused, _ = sums_through(deed, **PROTECTION[name])
    all_well(results)
    assert refused > 5


@pytest.mark.parametrize("name", ["token", "encrypted"])
def test_what_he_drops_is_noticed(name: str) -> None:
    passed = 0

    def drops_one(come: list[bytes]) -> list[bytes]:
        nonlocal passed
        passed += len(come)
        return come[1:] if passed - len(come) < 10 <= passed else come

    results, _, _ = sums_through(drops_one, **PROTECTION[name])
    failures = [result for result in results if result is not None]
    assert failures and all(isinstance(failure, EngineError) for failure in failures)
    assert any("lost or damaged" in str(failure) for failure in failures), failures


def passes_on(come: list[bytes]) -> list[bytes]:
    return come


@pytest.mark.parametrize("name", PROTECTION)
def test_only_what_is_encrypted_cannot_be_read(name: str) -> None:
    results, refused, between = sums_through(passes_on, **PROTECTION[name])
    all_well(results)
    assert refused == 0
    known = blocks_of(0, COUNT, 1)[256 * 10 : 256 * 10 + 20].tobytes()
    assert any(known in message for message in between.seen) == (name != "encrypted")


@pytest.mark.parametrize("secret", ["", SECRET])
def test_a_secret_keeps_the_key_out_of_the_exchange(secret: str) -> None:
    meeting = Meeting(2)
    all_well(in_threads(2, several_sums, meeting=meeting, secret=secret))
    key = texts(texts(meeting.rounds[1][0])[2])[1]
    assert len(key) == (0 if secret else 32)


def join(rank: int, meeting: Meeting, said: list[str], values: dict[str, Any]) -> None:
    try:
        _engine_tests.session.engine(settings(**values), "memory").join(
            rank, meeting.size, meeting.allgather(rank)
        )
    except EngineError as why:
        said[rank] = str(why)


def joined(*of_ranks: dict[str, Any]) -> list[str]:
    """Each rank's error, with these settings. Empty: it is in the group."""
    meeting, said = Meeting(len(of_ranks)), [""] * len(of_ranks)
    threads = [
        threading.Thread(target=join, args=(rank, meeting, said, values))
        for rank, values in enumerate(of_ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return said


def test_different_secrets_are_named() -> None:
    said = joined(*({"secret": f"{SECRET} {rank // 2}"} for rank in range(3)))
    assert all("OMNIHVD_SECRET of rank 2" in why and "rank 0" in why for why in said), said


def test_a_rank_without_the_secret_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert joined({"secret": SECRET}, {}) == ["", ""]
    (warning,) = capfd.readouterr().err.splitlines()
    assert "rank 1 (" in warning and "has no OMNIHVD_SECRET" in warning and "-x" in warning


@pytest.mark.parametrize("who", [0, 1])
def test_what_is_encrypted_needs_a_secret_on_all_ranks(who: int) -> None:
    values: list[dict[str, Any]] = [{"secret": SECRET}, {}]
    values[who]["encrypt"] = True
    for why in joined(*values):
        assert "OMNIHVD_ENCRYPT=1 needs a secret, and rank 1 (" in why


@pytest.mark.parametrize("who", [0, 1])
def test_one_rank_that_encrypts_is_enough(who: int) -> None:
    between = Between(passes_on)

    def run(rank: int) -> None:
        values = settings(secret=SECRET, encrypt=rank == who)
        engine = _engine_tests.session.engine(values, "memory")
        several_sums(rank, engine.join(rank, 2, between.allgather(rank)))

    with ThreadPoolExecutor() as pool:
        list(pool.map(run, range(2)))
    between.end()
    known = blocks_of(0, COUNT, 1)[256 * 10 : 256 * 10 + 20].tobytes()
    assert between.seen and not any(known in message for message in between.seen)


def test_a_shape_that_the_settings_do_not_give_is_refused() -> None:
    """It would take memory for all of its slots."""

    def enlarges(come: list[bytes]) -> list[bytes]:
        made = []
        for message in come:
            if HEADER.unpack_from(message)[2:4] == (CONTRIBUTION, 1):  # with a shape
                slots = HEADER.size + 20
                message = message[:slots] + struct.pack("<I", 1 << 20) + message[slots + 4 :]
            made.append(message)
        return made

    results, _, _ = sums_through(enlarges)
    refusals = (
        "a shape that this group's settings do not give",
        "the ranks disagree",
    )  # who is first
    assert any(refusal in str(why) for why in results for refusal in refusals), results
