"""benchmarks/nccl_gpu.py: what it makes of the samples, and a run of it where there is no GPU."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
pytest.importorskip("torch")
import nccl_gpu
import nccl_gpu_rank

from omnihvd.bench.patterns import BLOCK, Point

POINT = Point(1000 * BLOCK, 0.25, "identical")


def answer(
    samples: list[float], calls: float, way: str = "union", summed: float = 0.3, **fields: float
) -> dict[str, Any]:
    """summed: the share of the tensor that NCCL sums."""
    return {
        "point": {**asdict(POINT), **fields},
        "samples": samples,
        "counters": [{"calls": calls, "ring_bytes": 1e6, "library_bytes": 1e6 * summed}] * 2,
        "ways": [way] if calls else [],
    }


def test_the_figures_are_those_of_all_rounds():
    results: dict[Any, Any] = {}
    for samples in ([0.003, 0.001], [0.002, 0.009, 0.002]):
        nccl_gpu.add(results, 2, "union", answer(samples, 1))
    nccl_gpu.add(results, 2, "nccl", answer([0.004], 0))
    ours, nccls = (nccl_gpu.figures(result, None) for result in results.values())
    assert (ours["median_s"], ours["min_s"], ours["max_s"]) == (0.002, 0.001, 0.009)
    row = nccl_gpu.table([ours, nccls]).splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "2", "1.024", "0.25", "union", "union", "0.300", "2.0 (1.0 to 9.0)", "4.0 (4.0 to 4.0)",
        "2.00", "", "",
    ]  # fmt: skip


def test_what_sums_cost_products_on_another_stream():
    results: dict[Any, Any] = {}
    for extra in (0.001, 0.003):
        gemm = {"alone": [0.010], "beside": [0.010 + extra], "sum_beside": [0.005]}
        nccl_gpu.add(results, 2, "union", {**answer([0.004], 1), "gemm": gemm})
    (ours,) = (nccl_gpu.figures(result, None) for result in results.values())
    assert ours["lost_overlap"] == pytest.approx(0.5)


def test_what_was_not_summed_as_meant_is_no_result():
    for way, calls in (("union", 0.5), ("union", 0), ("nccl", 1)):
        with pytest.raises(nccl_gpu.BenchError, match="calls for each sum"):
            nccl_gpu.add({}, 2, way, answer([0.1], calls))


@pytest.mark.parametrize(
    "taken, said",
    [
        (answer([0.1], 1, way="original"), r"density 0\.25: sums by \['original'\], where"),
        (answer([0.1], 1, way="union", density=1.0, summed=1), r"\['union'\], where \['original'"),
        (answer([0.1], 1, summed=0.5), "NCCL summed 0.50 of the tensor, and the union is 0.25"),
    ],
)
def test_sums_before_the_plan_has_followed_are_no_result(taken, said):
    with pytest.raises(nccl_gpu.BenchError, match=said):
        nccl_gpu.add({}, 2, "union", taken)


def test_auto_may_leave_sums_to_nccl_and_dense_ones_are_nccl_s():
    nccl_gpu.add({}, 2, "auto", answer([0.1], 1, way="original", summed=1))
    nccl_gpu.add({}, 2, "auto", answer([0.1], 1, way="union"))
    nccl_gpu.add({}, 2, "union", answer([0.1], 1, way="original", density=1.0, summed=1))


def test_the_samples_begin_when_the_plan_has_followed():
    source = (Path(nccl_gpu.__file__).parents[1] / "omnihvd/csrc/nccl").joinpath
    behind = re.search(r"kBehind = (\d+)", source("union_plans.h").read_text())
    united = re.search(r"kUnited = (\d+)", source("gpu_choice.cc").read_text())
    assert int(behind[1]) + 2 * int(united[1]) <= nccl_gpu_rank.WARM_UP_OF_UNIONS


def test_the_wire_bound_of_the_loopback_device_which_all_ranks_share(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    rate = nccl_gpu.rate("1gbit")
    results: dict[Any, Any] = {}
    nccl_gpu.add(results, 2, "nccl", answer([0.001], 0))
    (result,), whole = results.values(), 1000 * BLOCK * 4
    assert nccl_gpu.figures(result, rate)["wire_bound_s"] == pytest.approx(2 * whole / 125e6)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert nccl_gpu.figures(result, rate)["wire_bound_s"] == pytest.approx(whole / 125e6)
    with pytest.raises(argparse.ArgumentTypeError):
        nccl_gpu.rate("fast")


# Ranks on CPUs, on Gloo, in the places of ranks on GPUs.
STAND_IN = """
import sys, time
sys.path[:0] = [{benchmarks!r}]
import nccl_gpu_rank, torch, torch.distributed as dist
nccl_gpu_rank.WARM_UP, nccl_gpu_rank.WARM_UP_OF_UNIONS = {{}}, 10

class CpuRank(nccl_gpu_rank.Rank):
    sums = 0

    def __init__(self, timeout_s):
        self.device = torch.device("cpu")
        dist.init_process_group("gloo")
        self.beside = dist.group.WORLD
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.group = dist.group.WORLD

    def about(self):
        return {{"device": "no GPU", "nccl": "0"}}

    def all_reduce(self, tensor, op):
        if {fails!r} and self.sums == 16:  # of the second point
            raise RuntimeError("stopped at a sum")
        self.sums += 1
        dist.all_reduce(tensor, group=self.group)
        if op == "avg":
            tensor /= self.size

    def barrier(self):
        dist.barrier()

    def seconds_of(self, *works):
        seconds = []
        for work in works:
            begin = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begin)
        return seconds

nccl_gpu_rank.main(CpuRank)
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Runs nccl_gpu.py with more arguments on the stand-ins; returns its status and results."""

    def run(words: str, fails: bool = False) -> tuple[int, list[dict[str, Any]]]:
        script, output = tmp_path / "rank.py", tmp_path / "results.json"
        folder = str(Path(nccl_gpu.__file__).parent)
        script.write_text(STAND_IN.format(benchmarks=folder, fails=fails))
        monkeypatch.setattr(nccl_gpu, "RANK_SCRIPT", script)
        monkeypatch.setattr(nccl_gpu.torch.cuda, "is_available", lambda: True)
        union = {"OMNIHVD_WAY": "union", "OMNIHVD_MIN_BYTES": "0"}
        monkeypatch.setitem(nccl_gpu.WAYS, "union", union)
        words += f" --ranks 2 --bytes 1e5 --rounds 1 --samples 2 --gemm 32 --json {output}"
        monkeypatch.setattr(sys, "argv", ["nccl_gpu.py", *words.split()])
        status = nccl_gpu.main()
        return status, json.loads(output.read_text())["results"]

    return run


@pytest.mark.timeout(300)
def test_a_run_on_stand_ins(bench, capsys):
    status, results = bench("--densities 0.2 --ways union nccl --dtype bfloat16 --op avg")
    assert status == 0, capsys.readouterr().err
    assert "avg of bfloat16" in capsys.readouterr().out
    nccl, union = results
    assert (union["backend"], nccl["backend"]) == ("union", "nccl")
    for result in (union, nccl):
        assert result["point"]["count"] == 50_000 and len(result["rounds"][0]) == 2
        assert len(result["gemm"]["beside"]) == 2 and "lost_overlap" in result


@pytest.mark.timeout(300)
def test_a_run_that_ends_early_leaves_the_points_that_it_measured(bench, capsys):
    status, results = bench("--densities 0.2 0.1 --ways union", fails=True)
    assert status == 1
    (first,) = results
    assert first["point"]["density"] == 0.2 and first["median_s"] > 0
    said = capsys.readouterr()
    assert "2  0.1  0.2  union" in said.out and "0.1  0.1" not in said.out
    assert "stopped at a sum" in said.err
