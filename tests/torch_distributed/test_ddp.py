"""Gradients under PyTorch's DistributedDataParallel, dense and sparse."""

from __future__ import annotations

import pytest
from jobs import run


@pytest.mark.parametrize(
    ("how", "backend", "ranks"),
    [
        ("plain", "omnihvd", 3),
        ("hooks", "gloo", 2),
    ],
)
def test_gradients(how: str, backend: str, ranks: int) -> None:
    for ended in run("ddp.py", ranks, how, backend):
        assert "all well" in ended.output
