"""Horovod's executors on Ray: sums are taken, and whoever dies is noticed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from drivers import check_training, run_driver

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.timeout(130),
]


@pytest.fixture(scope="module")
def results() -> Iterator[Any]:
    """One cluster for all, as starting it takes longer than the jobs."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short, for sockets' names
        env = {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        yield run_driver("ray_driver.py", timeout=120, **env)


def test_training(results: Any) -> None:
    check_training(results["training"], 3)
    assert len({result["host"] for result in results["training"]}) == 3


def test_a_worker_dies(results: Any) -> None:
    said = results["a_worker_dies"]["said"]
    assert len(said) == 3 and results["a_worker_dies"]["seconds"] < 20
    for words in said[:2]:
        assert re.search(r"HorovodInternalError: .*lost the connection to rank 2", words)
    assert "actor died" in said[2]


def test_elastic(results: Any) -> None:
    assert len(results["elastic"]) == 2
    for sizes, stats in results["elastic"]:
        assert sizes == [3, 3, 2, 2, 2, 2]
        # The third step's sum failed on the ranks that remained, and was made again.
        assert stats["calls"] == 7 and stats["failures"] == 1
