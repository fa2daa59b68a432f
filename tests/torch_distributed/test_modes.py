"""Sums in modes of the calling thread: inference, another default device."""

from __future__ import annotations

import pytest
from jobs import run


@pytest.mark.parametrize("ours", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_sums_are_made_in_each_mode(ours: bool) -> None:
    env = {"OMNIHVD_ENABLE": str(int(ours))}
    assert all("all well" in ended.output for ended in run("modes.py", 2, env=env))
