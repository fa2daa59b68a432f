"""What ranks tell each other before their first sum, whatever library they belong to."""

from __future__ import annotations

import pytest

from omnihvd.engine import EngineError, session

VERSION, OTHER = b"omnihvd-ranks-2", b"omnihvd-ranks-7"


def test_another_version_is_named():
    def allgather(mine: bytes) -> list[bytes]:
        assert mine.count(VERSION) == 1
        return [mine, mine.replace(VERSION, OTHER)]

    with pytest.raises(EngineError, match="rank 1 uses another version of omnihvd than rank 0 "):
        session.AgreedGroup(0, 2, 0).agree(allgather)
