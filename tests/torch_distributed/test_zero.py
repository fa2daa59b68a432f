"""PyTorch's ZeroRedundancyOptimizer, with gradients allreduced by DDP: the same losses."""

from __future__ import annotations

import pytest
from jobs import run
from processes import free_port


@pytest.mark.parametrize("backend", [pytest.param("gloo", marks=pytest.mark.slow), "omnihvd"])
def test_an_embedding_is_trained_alike(backend: str) -> None:
    for ended in run("zero.py", 3, backend, env={"LATER_PORT": str(free_port())}):
        assert "all well" in ended.output
