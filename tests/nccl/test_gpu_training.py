"""The language model on ranks that share a GPU: with our allreduce it has the losses of NCCL's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launch import launch
from torch_job import PLAIN, ROOT, WRAPPER, run, why_not

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "GPU")]

EXAMPLES = ROOT / "examples"
OPTIONS = ("--device", "cuda", "--steps", "10", "--batch-size", "8", "--json")
UNION = {"OMNIHVD_GPU": "union"}
TOLERANCE = 1e-4  # relative: sums in another order differ in their last bits


def check(plain: dict[str, Any], ours: dict[str, Any], ranks: int) -> None:
    assert plain["ranks"] == ours["ranks"] == ranks
    assert plain["losses"][-1] < plain["losses"][0]
    assert ours["losses"] == pytest.approx(plain["losses"], rel=TOLERANCE)
    for stats in ours["stats"]:
        assert stats["calls"] >= 10 and stats["failures"] == 0, stats
        assert stats["nonzero_blocks"] < stats["blocks"] / 4, stats


@pytest.mark.timeout(300)
def test_ddp(tmp_path: Path) -> None:
    reports = []
    for words in ([], ["--omnireduce"]):
        report = tmp_path / f"report{len(words)}.json"
        run(EXAMPLES / "pytorch_ddp.py", 2, *OPTIONS, report, *words, env=UNION)
        reports.append(json.loads(report.read_text()))
    assert [report["backend"] for report in reports] == ["nccl", "nccl"]
    check(*reports, ranks=2)


@pytest.mark.timeout(140)
@pytest.mark.parametrize("what", ["ddp", "fsdp"])
def test_hooks(what: str) -> None:
    for rank in run("hooks.py", 2, what, "cuda", env=PLAIN):
        assert "all well" in rank.output, rank.output


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun --gloo"])
def test_horovod(tmp_path: Path, launcher: str, ranks: int) -> None:
    hvd = pytest.importorskip("horovod.torch")
    if not hvd.nccl_built():
        pytest.skip("Horovod was built without NCCL (build_horovod.py --gpu nccl)")
    reports = []
    for compression in ("none", "omnireduce"):
        report = tmp_path / f"{compression}.json"
        script = [EXAMPLES / "pytorch_language_model.py", "--compression", compression]
        command = [WRAPPER, *script, *OPTIONS, report]
        launch(command, ranks, launcher=launcher, env=UNION, timeout=120)
        reports.append(json.loads(report.read_text()))
    check(*reports, ranks=ranks)
