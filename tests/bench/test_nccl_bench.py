"""benchmarks/nccl_gpu.py: what it makes of the samples, and a run of it where there is no GPU."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
pytest.importorskip("torch")
import nccl_gpu

from omnihvd.bench.patterns import BLOCK, Point

POINT = Point(1000 * BLOCK, 0.25, "identical")


def answer(samples: list[float], calls: float) -> dict[str, Any]:
    return {
        "point": asdict(POINT),
        "samples": samples,
        "counters": [{"calls": calls}] * 2,
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
        "2", "1.024", "0.25", "union", "2.0 (1.0 to 9.0)", "4.0 (4.0 to 4.0)", "2.00", "",
        "",
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

class CpuRank(nccl_gpu_rank.Rank):
    def __init__(self, timeout_s):
        self.device = torch.device("cpu")
        dist.init_process_group("gloo")
        self.beside = dist.group.WORLD
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def about(self):
        return {{"device": "no GPU", "nccl": "0"}}

    def all_reduce(self, tensor, op):
        dist.all_reduce(tensor)
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


def test_a_run_on_stand_ins(tmp_path, monkeypatch, capsys):
    dtype, op = "bfloat16", "avg"
    script, output = tmp_path / "rank.py", tmp_path / "results.json"
    script.write_text(STAND_IN.format(benchmarks=str(Path(nccl_gpu.__file__).parent)))
    monkeypatch.setattr(nccl_gpu, "RANK_SCRIPT", script)
    monkeypatch.setattr(nccl_gpu.torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(nccl_gpu.WAYS, "union", {"OMNIHVD_WAY": "union", "OMNIHVD_MIN_BYTES": "0"})
    words = "--ranks 2 --bytes 1e5 --densities 0.5 --rounds 1 --samples 2 --gemm 32"
    words += f" --ways union nccl --dtype {dtype} --op {op}"
    command = ["nccl_gpu.py", *words.split(), "--json", str(output)]
    monkeypatch.setattr(sys, "argv", command)
    assert nccl_gpu.main() == 0, capsys.readouterr().err
    assert f"{op} of {dtype}" in capsys.readouterr().out
    union, nccl = json.loads(output.read_text())["results"]
    assert (union["backend"], nccl["backend"]) == ("union", "nccl")
    for result in (union, nccl):
        assert result["point"]["count"] == 50_000 and len(result["rounds"][0]) == 2
        assert len(result["gemm"]["beside"]) == 2 and "lost_overlap" in result
