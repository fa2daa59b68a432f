"""Figures of the documents are those of the committed results (benchmarks/results)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"


def load(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def results_of(name: str, backend: str, density: float) -> dict[str, Any]:
    """Of `omnihvd bench`: of one backend at one share of non-zero blocks."""
    found = [
        result
        for result in load(name)["results"]
        if (result["backend"], result["point"]["density"]) == (backend, density)
    ]
    assert len(found) == 1
    return found[0]


def ms(name: str, backend: str, density: float = 1.0) -> str:
    return f"{1000 * median(results_of(name, backend, density)['samples']):.0f}"


def over_limit(density: float, backend: str) -> float:
    result = results_of("hosts4-1gbit.json", backend, density)
    return round(median(result["samples"]) / result["limit_s"], 2)


def step_ms(launcher: str) -> str:
    return f"{1000 * load('launchers.json')['results'][launcher]['median_s']:.0f}"


def trained_ms(compression: str) -> str:
    return f"{1000 * load('training.json')['results'][compression]['median_s']:.0f}"


def says(document: str, *sentences: str) -> None:
    text = " ".join((ROOT / document).read_text().split())
    for sentence in sentences:
        assert sentence in text


def test_the_table_of_four_hosts() -> None:
    columns = ["omnihvd", "omnihvd-dedicated", "omnihvd-torch"]
    peers = [ms("hosts4-1gbit.json", peer) for peer in ("gloo", "horovod", "horovod-ring")]
    gathered = ["agsparse-of-dense", "agsparse"]
    for density in (1.0, 0.4, 0.1, 0.01, 0.001):
        cells = [ms("hosts4-1gbit.json", column, density) for column in columns] + peers
        cells += [ms("hosts4-1gbit.json", g, density) if density <= 0.1 else "" for g in gathered]
        row = " | ".join([f"| {100 * density:.4g}%", *cells]) + " |"
        assert row in (ROOT / "README.md").read_text()


def test_times_over_the_limit() -> None:
    columns = ("omnihvd", "omnihvd-torch")
    dense = [over_limit(d, c) for d in (1.0, 0.4, 0.1) for c in columns]
    one, tenth = ([over_limit(d, c) for c in columns] for d in (0.01, 0.001))
    says(
        "README.md",
        f"{min(dense)} to {max(dense)} times the limit",
        f"down to 10%, {one[0]:.1f} times at 1% and {tenth[0]:.1f} at 0.1%",
    )
    assert one[1] == pytest.approx(one[0], abs=0.1) and tenth[1] == pytest.approx(
        tenth[0], abs=0.11
    )


def test_one_host() -> None:
    mine = " / ".join(ms("host1.json", "omnihvd", d) for d in (1.0, 0.1, 0.01))
    horovod = min(ms("host1.json", "horovod"), ms("host1.json", "horovod-ring"))
    gloo = ms("host1.json", "gloo")
    says(
        "README.md", f"{mine} ms, against {horovod} with Horovod over Open MPI and {gloo} with Gloo"
    )


def test_launchers() -> None:
    ddp = ["DDP, omnihvd imported", "DDP, omnihvd's hook", "DDP, python -m omnihvd"]
    ddp_ms = [step_ms(name) for name in ddp]
    mpi, gloo = "Horovod, MPI", "Horovod, Gloo"
    says(
        "README.md",
        f"{step_ms(f'{mpi}, omnihvd')} ms with omnihvd under Horovod over MPI ({step_ms(mpi)} "
        f"without), {step_ms(f'{gloo}, omnihvd')} over Gloo ({step_ms(gloo)}), {min(ddp_ms)} to "
        f"{max(ddp_ms)} under DDP ({step_ms('DDP')}), {step_ms('Ray, omnihvd')} on Ray and "
        f"{step_ms('elastic, omnihvd, a rank killed')} in an elastic job",
    )
    says(
        "benchmarks/README.md",
        f"| Horovod on MPI | {step_ms(mpi)} | {step_ms(f'{mpi}, omnihvd')} |",
        f"| Horovod on Gloo | {step_ms(gloo)} | {step_ms(f'{gloo}, omnihvd')} |",
        f"| {step_ms('DDP')} | {', '.join(ddp_ms)} |",
    )


def test_training() -> None:
    says("README.md", f"{trained_ms('fp16')} ms, against {trained_ms('omnireduce')}.")


def test_codecs() -> None:
    name = "hosts4-codecs.json"
    says(
        "README.md",
        f"{ms(name, 'omnihvd-natural')} ms under Horovod, whose ring takes "
        f"{ms(name, 'horovod-ring')}, and {ms(name, 'omnihvd-torch-natural')} under "
        f"torch.distributed, where Gloo takes {ms(name, 'gloo')}",
    )


def test_sparse_gradients() -> None:
    ours, theirs = (load("sparse.json")["results"]["8"][n] for n in ("rows omnihvd", "allgather"))
    figures = [
        (f"{1000 * r['median_s']:.0f}", f"{r['memory_bytes'] / 1e6:.0f}") for r in (ours, theirs)
    ]
    says(
        "README.md",
        f"{figures[0][0]} ms a step and {figures[0][1]} MB of memory, against "
        f"{figures[1][0]} ms and {figures[1][1]} MB",
    )


@pytest.mark.parametrize("document", ["README.md", "benchmarks/README.md"])
def test_points_of_the_map(document: str) -> None:
    page = (RESULTS / "map.md").read_text()
    points = re.findall(r"^(\d+) of (\d+) points at 0.97", page, re.M)
    assert len(points) == 3
    (horovod, total), (torch, _), (best, _) = points
    text = " ".join((ROOT / document).read_text().split())
    if document == "README.md":
        assert f"of its {total} points" in text
        assert f"at {torch} under torch.distributed and at {horovod} under Horovod" in text
    else:
        for met in (horovod, best, torch):
            assert f"met at {met} of {total} points" in text


def test_costs_of_compressors() -> None:
    costs = {r["method"].split("(")[0]: r["seconds"] for r in load("evaluation/cost.json")}
    table = (ROOT / "docs/compression.md").read_text()
    said = re.findall(r"^\| `(\w+)\(.* \| (\d\.\d\d s)[^|]* \|$", table, re.M)
    assert len(said) >= 14
    for method, cost in said:
        assert cost == f"{costs[method]:.2f} s", method
