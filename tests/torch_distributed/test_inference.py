"""Sums under torch.inference_mode()."""

from __future__ import annotations

import pytest
from jobs import run


@pytest.mark.parametrize("ours", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_sums_are_made_in_inference_mode(ours: bool) -> None:
    env = {"OMNIHVD_ENABLE": str(int(ours))}
    assert all("all well" in ended.output for ended in run("inference.py", 2, env=env))
