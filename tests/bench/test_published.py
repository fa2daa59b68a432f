"""SparCML and Parallax as peers: their sums, in closed form, and the bytes that they send."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from launch import ENVIRONMENT
from processes import run_beside

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks import papers
from benchmarks.bench import published
from benchmarks.bench.lab import LabError
from benchmarks.tables import papers as tables

CHECK = Path(__file__).parent / "on_ranks" / "published.py"


@pytest.mark.parametrize("ranks", [1, 5])
@pytest.mark.timeout(70)
def test_sums_of_all_algorithms(ranks: int) -> None:
    pytest.importorskip("mpi4py")
    mpirun = ["mpirun", "--oversubscribe", "-mca", "mpi_yield_when_idle", "1", "-np", str(ranks)]
    env = {**os.environ, **ENVIRONMENT, **published.environment()}
    run_beside([[*mpirun, sys.executable, str(CHECK)]], [env], timeout=60)


@pytest.mark.parametrize("width", [1, 4])
def test_a_list_is_given_where_it_is_shorter(width: int) -> None:
    x = np.zeros(15, np.float32)
    x[[0, 5]] = 1, 2
    numbers, values = published.as_list(x, width)
    assert numbers is not None and numbers.dtype == np.uint32
    assert numbers.tolist() == ([0, 5] if width == 1 else [0, 1])
    assert values.shape == (2, width) and values.sum() == 3
    x[:8] = 1  # half of all elements: 8 numbers and 8 values
    numbers, values = published.as_list(x, 1)
    assert numbers is None and values.shape == (15, 1)


def test_without_sources_a_message_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(published, "SOURCES", tmp_path / "none")
    published._built.cache_clear()
    with pytest.raises(LabError, match=r"sparcml.*need a checkout of omnihvd.*benchmarks/peers"):
        published.environment()


def test_switchml_is_compared_with_sums_that_have_its_hosts() -> None:
    """Aggregators with hosts of their own have twice the links of colocated ones."""
    times = {"omnihvd": 1.0, "omnihvd-dedicated": 4.0, "switchml": 12.0, "parallax": 12.0}
    found = {backend: {"median_s": time} for backend, time in times.items()}
    assert tables.ratio(found, "switchml") == 3 and tables.ratio(found, "parallax") == 12


def test_what_sends_all_is_measured_once_and_stands_at_each_share(tmp_path: Path) -> None:
    results = [
        {"backend": backend, "point": {"density": point.density}, "median_s": point.density}
        for backend in (*papers.OURS, *papers.PEERS)
        for point in papers.points_of(backend)
    ]
    found = papers.by_density(results)
    assert list(found) == list(papers.DENSITIES)
    for density, there in found.items():
        assert set(there) == {*papers.OURS, *papers.PEERS}
        assert {there[b]["median_s"] for b in there if b != "switchml"} == {density}
        assert there["switchml"]["median_s"] == 1.0
    some = [r for r in results if r["point"]["density"] == 0.1]
    assert list(papers.by_density(some)) == [0.1] and "switchml" not in papers.by_density(some)[0.1]
    pytest.importorskip("matplotlib")
    papers.plot({"parts": {"10gbit": {"results": some}}}, tmp_path / "some.png")
    papers.plot(
        {"parts": {rate: {"results": results} for rate in papers.RATES}}, tmp_path / "a.png"
    )
    assert (tmp_path / "some.png").exists() and (tmp_path / "a.png").exists()
