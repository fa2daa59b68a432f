"""FSDP2 on CPUs, with gradients reduce-scattered: the same losses, and few bytes."""

from __future__ import annotations

import pytest
from jobs import run
from processes import free_port


@pytest.mark.parametrize(
    ("ranks", "replicas"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.slow)]
)
def test_an_embedding_is_trained_alike(ranks: int, replicas: int) -> None:
    env = {"LATER_PORT": str(free_port())}
    for ended in run("fsdp.py", ranks, replicas, env=env):
        assert "all well" in ended.output


def test_the_union_is_scattered_by_gloo() -> None:
    env = {"LATER_PORT": str(free_port()), "OMNIHVD_ENABLE": "0"}
    for ended in run("fsdp.py", 2, 1, "unions", env=env):
        assert "all well" in ended.output
