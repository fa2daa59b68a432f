"""Numbers of a group's description that are too large for their field: refused, not cut."""

from __future__ import annotations

import struct

import _engine_tests
import pytest
from groups import settings
from test_strangers import texts

from omnihvd.engine import EngineError


@pytest.mark.parametrize("workers", [2**32 + 1, 2**64 - 2**32 + 1])
def test_a_group_of_too_many_workers_is_refused(workers: int) -> None:
    rounds = []

    def allgather(mine: bytes) -> list[bytes]:
        rounds.append(mine)
        if len(rounds) != 2:
            return [mine]
        info = texts(texts(mine)[2])[0]  # rank 0's decision: the group's number, then its workers
        assert struct.unpack_from("<Q", info, 8) == (1,)
        return [mine.replace(info, info[:8] + struct.pack("<Q", workers) + info[16:])]

    with pytest.raises(EngineError, match="a number is too large for its field"):
        _engine_tests.session.engine(settings(), "memory").join(0, 1, allgather)
    assert len(rounds) == 2
