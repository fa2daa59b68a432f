"""Sparse tensors in dist.all_reduce."""

from __future__ import annotations

import pytest
from jobs import run


@pytest.mark.parametrize(("ranks", "way"), [(3, "stream"), (2, "auto")])
def test_sums(ranks: int, way: str) -> None:
    env = {"OMNIHVD_WAY": way, "OMNIHVD_MIN_BYTES": "1"}
    how = "lists" if way == "stream" else "matrix"
    for ended in run("sparse_rows.py", ranks, how, env=env):
        assert "all well" in ended.output
