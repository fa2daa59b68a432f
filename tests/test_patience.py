from __future__ import annotations

import pytest

from omnihvd import patience


def test_a_stop_of_this_process_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(patience.time, "monotonic", lambda: now)
    waits = patience.Patience(10)
    for _ in range(9):
        now += 1
        assert not waits.over()
    now += 3600
    assert not waits.over()
    now += 0.5
    assert not waits.over()
    now += 0.5
    assert waits.over()
