"""Ranks that call different collectives."""

from __future__ import annotations

from jobs import run


def test_detail_names_both_calls() -> None:
    env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "OMNIHVD_WAY": "auto"}
    for ended in run("mismatches.py", 2, env=env):
        assert "all well" in ended.output
