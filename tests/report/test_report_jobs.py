"""Reports of real jobs with known gradients; and what becomes of bad input."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launch import ENVIRONMENT, launch
from processes import free_port, run_beside

from omnihvd import cli
from omnihvd import report as report_
from omnihvd.report.predictions import best_of, time_text
from omnihvd.report.samples import Job

HERE = Path(__file__).parent / "on_ranks"
ROOT = Path(__file__).parents[2]
# The engine cannot be imported: a report does without.
NO_ENGINE = "import sys; sys.modules['omnihvd._engine'] = None; from omnihvd.cli import main; "


def report(folder: Path) -> dict[str, Any]:
    page = (folder / "report.html").read_text()
    assert "<svg" in page and " src=" not in page and "<link" not in page
    content: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return content


def advises_the_best(content: dict[str, Any]) -> bool:
    """For each rate the row that the tables mark, or to change nothing."""
    rates: dict[str, list[dict[str, Any]]] = {}
    for p in content["predictions"]:
        if p["ranks"] == content["advised_ranks"]:
            rates.setdefault(p["rate"], []).append(p)
    best = [next(p for p in rows if p["scheme"] == best_of(rows)) for rows in rates.values()]
    words = [f" {time_text(p['step_s'])} instead of" for p in best]
    return all(
        word in said or "as it is." in said or "would gain" in said
        for word, said in zip(words, content["advice"])
    )


def table_of(content: dict[str, Any], name: str) -> dict[str, Any]:
    return next(p for p in content["parameters"] if p["name"].endswith(name))


def python(*words: str, cwd: Path, engine: bool = True) -> subprocess.CompletedProcess[str]:
    run = ["-m", "omnihvd"] if engine else ["-c", NO_ENGINE + "sys.exit(main())"]
    env = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *run, *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=90)


def test_under_plain_horovod(tmp_path: Path) -> None:
    words = ["python", "-m", "omnihvd", "--report", tmp_path, "--rate", "1gbit", "--ranks", "3"]
    job = launch([*words, "--every", "1", HERE / "torch_rows.py", "horovod"], 3, timeout=90)
    assert "takes over" not in job.output and "sums taken" not in job.output
    content = report(tmp_path)
    assert content["ranks_seen"] == 3 and content["overlap"].startswith("measured between 3 ranks")
    table = table_of(content, "table.weight")
    assert table["element_density"] == pytest.approx(20 / 1000)
    assert table["zero_rows"] == pytest.approx(0.98)
    # Rank r has rows 10 r .. 10 r + 19; four rows make a block of 256.
    blocks = [{row // 4 for row in range(10 * r, 10 * r + 20)} for r in range(3)]
    mean = sum(map(len, blocks)) / 3
    assert table["density"]["256"] == pytest.approx(mean / 250)
    assert table["union"]["256"] == pytest.approx(len(set.union(*blocks)) / 250)
    assert table["union"]["64"] == pytest.approx(40 / 1000)
    assert table["rank_skew"] == 1  # of groups of 32: each rank has 20 rows
    assert table_of(content, "dense.weight")["union_over_mean"] == 1
    assert content["job"]["library"] == "Horovod" and content["timing"]["wait"] is not None
    sent = {p["scheme"]: p["sent"] for p in content["predictions"]}
    everything = 4 * (64_000 + 3 * 64 + 3)
    assert sent["ring"] == pytest.approx(4 / 3 * everything)
    dense = 4 / 3 * 4 * (3 * 64 + 3)
    assert sent["rows"] == pytest.approx(2 * 20 * 8 + 2 / 3 * (20 + 40) * 256 + dense)
    assert sent["rows"] - 320 < sent["omnireduce"] < 1.2 * sent["rows"]
    assert advises_the_best(content)
    assert content["advice"][0].startswith("on 3 hosts at 1 Gbit/s a step would take ")
    assert "On 3 hosts at 1 Gbit/s" in job.output  # on the terminal, too


def test_under_ddp_and_again_for_another_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = [sys.executable, "-m", "omnihvd", "--report", tmp_path / "out"]
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    env = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT), **job}
    words = [*python, HERE / "torch_rows.py", "ddp"]
    run_beside([words] * 2, [{**env, "RANK": rank} for rank in "01"], timeout=90)  # as torchrun
    content = report(tmp_path / "out")
    assert content["job"]["library"] == "DDP" and content["ranks_seen"] == 2
    assert table_of(content, "table.weight")["union"]["64"] == pytest.approx(30 / 1000)
    (buffer,) = content["buffers"]  # one bucket of DDP's
    assert len(buffer["parameters"]) == 3
    words = ["report", str(tmp_path / "out"), "--rate", "100mbit", "--ranks", "2", "1000"]
    assert cli.main(words) == 0
    assert "predicted for 2 hosts" in capsys.readouterr().out
    assert {p["ranks"] for p in report(tmp_path / "out")["predictions"]} == {2, 1000}
    (tmp_path / "out/rank-0001-of-0002.npz").unlink()
    assert cli.main(["report", str(tmp_path / "out")]) == 0
    assert "of 2 ranks 1 were seen" in capsys.readouterr().out.lower()
    assert cli.main(["report", str(tmp_path)]) == 1
    assert "no rank's samples are in" in capsys.readouterr().err


def test_one_process_without_the_engine(tmp_path: Path) -> None:
    words = ["--report", "out", "--every", "1", str(HERE / "torch_rows.py"), "alone", "sparse"]
    done = python(*words, cwd=tmp_path, engine=False)
    assert done.returncode == 0 and done.stdout.startswith("trained"), done.stderr
    content = report(tmp_path / "out")
    assert content["overlap"].startswith("estimated from batches of one process")
    table = table_of(content, "table.weight")
    assert table["sparse_tensor"] and table["zero_rows"] == pytest.approx(0.98)
    assert advises_the_best(content)
    assert table["union"]["64"] == pytest.approx(20 / 1000)  # all batches have the same rows


def test_tensorflow(tmp_path: Path) -> None:
    words = ["--report", "out", "--every", "2", str(HERE / "tensorflow_rows.py")]
    done = python(*words, cwd=tmp_path, engine=False)
    assert done.returncode == 0 and done.stdout == "trained\n", done.stderr
    content = report(tmp_path / "out")
    assert content["job"]["framework"] == "tensorflow" and content["steps_seen"] == [2, 4, 6, 8]
    table = table_of(content, "embeddings")
    assert table["sparse_tensor"] and table["shape"] == [500, 64]
    assert table["zero_rows"] == pytest.approx(0.96)
    assert content["total"]["density"]["32"] < 0.2


def test_tapes_of_one_step_and_variables_of_one_name(tmp_path: Path) -> None:
    words = ["--report", "out", "--every", "2", str(HERE / "tensorflow_tapes.py")]
    done = python(*words, cwd=tmp_path, engine=False)
    assert done.returncode == 0 and done.stdout == "trained\n", done.stderr
    content = report(tmp_path / "out")
    assert content["steps_seen"] == [2, 4, 6, 8]
    shapes = {p["name"]: p["shape"] for p in content["parameters"]}
    assert shapes == {"Variable": [300], "Variable#2": [40, 8]}


BAD = {
    "no sums": ("print('done')", [], "made no optimizer step"),
    "unwritable": ("print('done')", ["file/out"], "cannot be written to"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_message_and_does_no_harm(tmp_path: Path, case: str) -> None:
    script, folder, message = BAD[case]
    (tmp_path / "file").write_text("")
    (tmp_path / "train.py").write_text(script + "\nimport sys; sys.exit(7)")
    done = python("--report", *(folder or ["out"]), "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (7, "done\n"), done.stderr
    assert message in done.stderr and done.stderr.count("\n") == 1


def train(tmp_path: Path, steps: int, with_gradient: bool) -> None:
    import torch

    weight = torch.zeros(300, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    report_.start(tmp_path / "out", every=1)
    for _ in range(steps):
        optimizer.zero_grad()
        if with_gradient:
            weight.sum().backward()
        optimizer.step()
    report_.stop()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(report_.logger, "handle", lambda record: found.append(record.getMessage()))
    return found


def test_gradients_that_are_all_none(tmp_path: Path, said: list[str]) -> None:
    train(tmp_path, 9, with_gradient=False)
    assert said == ["no report: in 9 steps no parameter had a gradient (all were None)"]
    assert not list((tmp_path / "out").iterdir())


def test_a_full_disk_is_told_with_the_file_and_leaves_nothing(
    tmp_path: Path, said: list[str]
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        train(tmp_path, 9, with_gradient=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (line,) = said
    assert "no report:" in line and "rank-0000-of-0001.npz" in line
    assert not list((tmp_path / "out").iterdir())


def test_ranks_end_after_rank_0_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a launcher would end it in the midst of that, when they have failed."""
    events = []

    def write(seconds: float) -> None:
        events.append("waits")
        missing = "rank-0000-of-0002.npz" if len(events) == 1 else "report.html"
        (tmp_path / "out" / missing).write_text("")

    def job_of_process(job: Job) -> None:
        job.rank, job.ranks = 1, 2

    monkeypatch.setattr("omnihvd.report.samples.job_of_process", job_of_process)
    monkeypatch.setattr("omnihvd.report.time.sleep", write)
    train(tmp_path, 9, with_gradient=True)
    assert events == ["waits", "waits"]


def test_a_failure_inside_ends_the_report_alone(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnihvd.report.torch_gradients.count", None)
    train(tmp_path, 9, with_gradient=True)
    (line,) = said
    assert line.startswith("the report ends here, since looking at gradients failed: TypeError")


def test_one_report_at_a_time(tmp_path: Path) -> None:
    report_.start(tmp_path / "a")
    with pytest.raises(RuntimeError, match="a report is under way"):
        report_.start(tmp_path / "b")
    report_.stop()
    assert report_.stop() is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["out"], "name a folder, and the script to run"),
        (["out", "--rate", "10gb", "train.py"], "'10gb' is not a rate"),
        (["out", "--ranks", "1", "train.py"], "a number of 2 or more"),
        (["out", "--rate", "fast", "train.py"], "'fast' is not a rate"),
        (["out", "--rate"], "--rate: expected at least one argument"),
        (["emb.py", "--steps", "20"], "emb.py is a file: name a folder, and the script to run"),
        (["out", "none.py"], "none.py is neither a file"),
    ],
)
def test_wrong_words(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("emb.py").write_text("")
    assert cli.main(["--report", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_each_parameter_has_a_width_of_its_own(tmp_path: Path) -> None:
    import torch

    half = torch.zeros(512, dtype=torch.bfloat16, requires_grad=True)
    whole = torch.zeros(512, requires_grad=True)
    optimizer = torch.optim.SGD([half, whole])
    report_.start(tmp_path, every=1)
    for _ in range(9):
        optimizer.zero_grad()
        (half.float().sum() + whole.sum()).backward()
        optimizer.step()
    report_.stop()
    content = json.loads((tmp_path / "report.json").read_text())
    assert sorted(p["bytes"] for p in content["parameters"]) == [1024, 2048]


def test_a_page_without_plots_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object) -> str:
        raise OSError("no cache directory")

    monkeypatch.setattr("omnihvd.report.plots.svg", nowhere)
    train(tmp_path, 9, with_gradient=True)
    page = (tmp_path / "out/report.html").read_text()
    assert "<svg" not in page and "no cache directory" in page
