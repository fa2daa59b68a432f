"""Codecs under PyTorch's DistributedDataParallel."""

from __future__ import annotations

import pytest
from jobs import run


@pytest.mark.parametrize(("backend", "ranks"), [("omnihvd", 3), ("gloo", 2)])
def test_codecs(backend: str, ranks: int) -> None:
    for ended in run("ddp_codecs.py", ranks, backend):
        assert "all well" in ended.output
