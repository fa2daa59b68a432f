"""SparCML and Parallax as peers: their sums, in closed form, and the bytes that they send."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch import ENVIRONMENT
from processes import run_beside

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks import papers
from benchmarks.bench import published
from benchmarks.bench.lab import LabError
from benchmarks.tables import papers as tables
from benchmarks.tables import published_models

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


def part_of(commit: str, times: dict[str, float]) -> dict[str, Any]:
    """A part at one share, with a time for each backend."""
    results = [{"backend": b, "point": {"density": 0.1}, "median_s": s} for b, s in times.items()]
    return {"about": {"commit": commit}, "results": results}


def test_groups_of_peers_are_compared_with_the_times_beside_them(tmp_path: Path) -> None:
    """omnihvd's own time is the newest, and each peer's speed-up is of its own run."""
    first = part_of("a", {"omnihvd": 2.0, "omnihvd-dedicated": 4.0, "parallax": 8.0, "gloo": 9.0})
    second = part_of("b", {"omnihvd": 1.0, "omnihvd-dedicated": 4.0, "gloo": 6.0})
    both = papers.merged(papers.merged(None, first), second)
    (found,) = papers.by_density(both["results"]).values()
    assert {name: r["source"]["commit"] for name, r in found.items()} == {
        **dict.fromkeys([*papers.OURS, "gloo"], "b"),
        "parallax": "a",
    }
    assert found["omnihvd"]["median_s"] == 1
    assert papers.ratio(found, "parallax") == 4 and papers.ratio(found, "gloo") == 6
    pytest.importorskip("matplotlib")
    papers.plot({"parts": {"8": both}}, tmp_path / "workers.png")
    assert (tmp_path / "workers.png").exists()


def test_the_ranges_of_a_table_are_those_of_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part has cells for the peers that it has."""
    part = part_of("a", {"omnihvd": 2.0, "omnihvd-dedicated": 4.0, "parallax": 3.0})
    dense = {**part_of("a", {"omnihvd": 2.0, "omnihvd-dedicated": 4.0, "switchml": 6.0})}
    parts = {"papers.json": {"1gbit": part}, "papers_workers.json": {"2": dense}}
    monkeypatch.setattr(tables, "load", lambda name: {"parts": parts[name]})
    _, _, rates, workers = tables.ranges().splitlines()
    assert rates.split("|")[1:4] == [" 4 workers, 1 Gbit/s ", "  ", " 1.50 to 1.50 "]
    assert workers.split("|")[1:4] == [" 2 workers, 500 Mbit/s ", " 1.50 to 1.50 ", "  "]


def test_peers_at_single_elements_win_where_they_are_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A peer that sends all stands in each row, and a defeat is a speed-up below 1."""
    times = {
        ("omnihvd", 0.1): 0.2,
        ("omnihvd", 0.01): 0.2,
        ("omnihvd-dedicated", 0.1): 0.1,
        ("omnihvd-dedicated", 0.01): 0.1,
        ("switchml", 1.0): 0.3,
        ("parallax", 0.01): 0.05,
    }
    results = [
        {"backend": backend, "point": {"density": density}, "median_s": seconds}
        for (backend, density), seconds in times.items()
    ]
    monkeypatch.setattr(tables, "load", lambda name: {"results": results})
    rows = [row.strip("| ").split(" | ") for row in tables.elements().splitlines()]
    assert [cell[:8] for cell in rows[0][3:]] == ["SwitchML", "Parallax"]
    assert rows[2] == ["10%", "100", "200", "300 (3.00x)"]
    assert rows[3] == ["1%", "100", "200", "300 (3.00x)", "50 (0.50x)"]


def test_fused_blocks_are_compared_with_a_block_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [
        {"block": 32, "message_bytes": bytes_, "density": 0.1, "median_s": seconds}
        for bytes_, seconds in ((128, 0.3), (4096, 0.1))
    ]
    monkeypatch.setattr(tables, "load", lambda name: {"results": results})
    assert tables.fusion().splitlines()[2:] == [
        "| 32 | 1 block | 300 |",
        "| 32 | 32 blocks | 100 (3.0x) |",
    ]


def test_links_carry_the_values_of_each_scheme() -> None:
    """A rank has half of the blocks, and any rank three quarters."""
    point = {"count": 8 * 256, "density": 0.5, "pattern": "masks/a.npz"}
    result = {"ranks": 4, "point": point, "union_blocks": 6, "ring_s": 12.0, "seconds": 1.0}
    # The ring carries 1.5 S in 12 s, so S takes 8 s, P 4 s and U 6 s.
    assert published_models.links_s(result) == pytest.approx(
        {"ring": 12, "agsparse": 3 * 4, "parallax": 0.75 * (4 + 6), "switchml": 8}
    )


def test_steps_of_both_arithmetics_are_shown_where_both_were_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = {"integer": {"step_s": 0.2}, "switchml": {"step_s": 0.4}}
    links = {"1gbit": {"methods": {"integer": both["integer"]}}, "10gbit": {"methods": both}}
    monkeypatch.setattr(published_models, "results", lambda part: {"lstm": {part: links}})
    assert published_models.arithmetic().splitlines()[2:] == [
        "| lstm, 10 Gbit/s | 400 | 200 | 2.00 |"
    ]
