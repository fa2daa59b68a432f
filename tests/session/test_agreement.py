"""The ranks' exchange before their first sum, whatever library they belong to."""

from __future__ import annotations

import re

import pytest
from groups import greetings

from omnihvd.engine import EngineError, session
from omnihvd.version import __version__

VERSION, OTHER = (b"omnihvd-ranks-%d" % n for n in (session.protocol, session.protocol + 1))


def test_another_version_is_named():
    def allgather(mine: bytes) -> list[bytes]:
        assert mine.count(VERSION) == 1
        return [mine, mine.replace(VERSION, OTHER)]

    ours, theirs = (
        rf"{word.decode()} of omnihvd {re.escape(__version__)}" for word in (VERSION, OTHER)
    )
    said = rf"rank 1 uses another version of omnihvd than rank 0 \({theirs}, not {ours}\): install"
    with pytest.raises(EngineError, match=said):
        session.Communicator(0, 2).meet(allgather)


def test_releases_with_the_same_protocol_work_together():
    def allgather(mine: bytes) -> list[bytes]:
        other = "9" * len(__version__)
        assert mine.count(__version__.encode()) == 1
        return [mine, mine.replace(__version__.encode(), other.encode())]

    session.Communicator(0, 2).meet(allgather)


def test_rank_0_says_once_which_settings_differ(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = greetings(monkeypatch, "OMNIHVD_BLOCK_SIZE", "512", "128", "512")
    for rank, expected in [(1, 0), (0, 1), (2, 0), (0, 0)]:  # the last: another communicator
        session.Communicator(rank, 3).meet(lambda mine: said)
        lines = [line for line in capfd.readouterr().err.splitlines() if "BLOCK_SIZE" in line]
        assert len(lines) == expected
        for line in lines:
            assert "OMNIHVD_BLOCK_SIZE is 128 on rank 1 (" in line and "512 on rank 0 (" in line
