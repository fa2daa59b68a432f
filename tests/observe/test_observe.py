"""A job with known sums, watched in all ways at once; and the parts that show it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launch import STREAM, launch
from processes import free_port

from omnihvd import cli
from omnihvd.observe import metrics, steps, top, traces
from omnihvd.tools.whole_file import whole_file

JOB = Path(__file__).parent / "on_ranks/observed.py"
BYTES = 5000 * 64 * 4
Found = dict[str, Any]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Found]]:
    """Its folder, and what each rank found."""
    folder = tmp_path_factory.mktemp("watched")
    port = min(free_port(), 65000)
    env = {
        **STREAM,
        "OMNIHVD_TRACE": str(folder / "trace.json"),
        "OMNIHVD_STATS": str(folder / "steps.jsonl"),
        "OMNIHVD_METRICS": str(port),
        "HOROVOD_TIMELINE": str(folder / "timeline.json"),
        "BOARD": str(folder / "board"),
    }
    ranks = launch([JOB], 3, env=env, timeout=90).ranks
    lines = [next(line for line in r.splitlines() if line.startswith("FOUND ")) for r in ranks]
    return folder, [json.loads(line[6:]) for line in lines]


def test_each_rank_writes_what_its_engine_did(job: tuple[Path, list[Found]]) -> None:
    folder, _ = job
    for rank, name in enumerate(["trace.json", "trace.rank-1.json", "trace.rank-2.json"]):
        events = traces.read(folder / name)
        spans = [e for e in events if e["ph"] == "X"]
        assert all(e["pid"] == rank and e["dur"] >= 0 and e["ts"] > 0 for e in spans)
        sums = [e for e in spans if e["name"] == "stream"]
        assert [e["args"] for e in sums] == [{"bytes": BYTES}] * 12
        waits = [e for e in spans if e["name"] == "waiting"]
        assert waits and {e["args"]["for_rank"] for e in waits} <= {0, 1, 2}
        rounds = [e for e in spans if e["name"] == "round"]
        assert {e["args"]["aggregator"] for e in rounds} == {0, 1, 2}
        # The sums have 3 x 40 rows of 64 elements, in blocks of 256.
        assert sum(e["args"]["blocks"] for e in rounds) == 12 * 30


def test_horovods_timeline_has_it_inside(job: tuple[Path, list[Found]]) -> None:
    timeline = traces.read(job[0] / "timeline.json")
    spans = traces.activities(timeline)
    inside = [e for e in timeline if e.get("name") == "omnihvd: stream"]
    assert len(inside) == 12
    for e in inside:
        ends = [end for begin, end, pid in spans if pid == e["pid"] and begin <= e["ts"]]
        assert ends and e["ts"] + e["dur"] <= ends[-1]
    assert [e for e in timeline if e.get("name") == "round" and e["pid"] == traces.OURS]


def test_traces_of_ranks_become_one(job: tuple[Path, list[Found]], tmp_path: Path) -> None:
    folder, _ = job
    files = sorted(folder.glob("trace*.json"))
    assert traces.main([*map(str, files), "-o", str(tmp_path / "all.json")]) == 0
    events = traces.read(tmp_path / "all.json")
    assert {e["pid"] - traces.OURS for e in events} == {0, 1, 2}
    # All ranks are in a sum at the same time: on one clock their spans overlap.
    sums = [e for e in events if e["name"] == "stream"]
    last = [[e for e in sums if e["pid"] == traces.OURS + rank][-1] for rank in range(3)]
    assert max(e["ts"] for e in last) < min(e["ts"] + e["dur"] for e in last)
    assert cli.main(["trace", str(JOB), "-o", str(tmp_path / "no.json")]) == 1


def test_steps(job: tuple[Path, list[Found]]) -> None:
    for name in ("steps.jsonl", "steps.rank-2.jsonl"):
        lines = [json.loads(line) for line in (job[0] / name).read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, 13))
        for line in lines:
            (one,) = line["sums"]
            assert (one["way"], one["bytes"]) == ("stream", BYTES)
            assert one["density"] == 10 / 1250 and one["union_density"] == 30 / 1250
            assert 0 < one["seconds"] <= line["sum_seconds"] * 1.001 <= line["seconds"] + 0.001
            assert line["density"] == one["density"] and 0 < line["sent_of_ring"] < 0.1
        assert all(0 <= line["overlap"] <= 1 for line in lines[1:])


def test_scalars_for_tensorboard(
    job: tuple[Path, list[Found]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read as TensorBoard reads them."""
    pytest.importorskip("tensorboard")
    monkeypatch.syspath_prepend(JOB.parent)
    from board import EventAccumulator

    events = EventAccumulator(str(job[0] / "board"))
    events.Reload()

    def of(name: str) -> list[tuple[int, Any]]:
        return [(e.step, e.value) for e in events.Scalars(f"omnihvd/{name}")]

    density, written = of("density"), of("gradient_bytes")
    assert density == [(step, pytest.approx(10 / 1250)) for step in (5, 10)]
    assert written == [(5, BYTES), (10, BYTES)]
    assert all(0 < value < 60 for _, value in of("sum_seconds"))


def test_figures_for_prometheus(job: tuple[Path, list[Found]]) -> None:
    for rank, found in enumerate(job[1]):
        lines = found["metrics"].splitlines()
        mine = f'script="observed.py",rank="{rank}"'
        assert f"omnihvd_calls_total{{{mine}}} 12" in lines
        assert f'omnihvd_ways_calls_total{{{mine},way="stream"}} 12' in lines
        assert f"omnihvd_density{{{mine}}} {10 / 1250}" in lines
        assert lines.count("# TYPE omnihvd_ways_calls_total counter") == 1
        help_ = "# HELP omnihvd_density share of the blocks that were not zero here: what has to"
        assert sum(line.startswith(help_) for line in lines) == 1
        names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
        assert names == {line.split()[2] for line in lines if line.startswith("# HELP")}


def test_top_sees_all_ranks_of_the_host(job: tuple[Path, list[Found]]) -> None:
    for found in job[1]:
        assert found["seen"] == [0, 1, 2]
        row = dict(zip(top.HEADER, found["top"][1]))
        assert (row["job"], row["rank"], row["not zero"]) == ("observed.py", "1 of 3", "0.8%")
        assert row["waits for"].startswith("rank ") and row["of a ring"].endswith("%")


def test_time_in_sums_that_overlap_counts_once() -> None:
    assert steps.covered([]) == 0
    assert steps.covered([(1.0, 2.0), (1.5, 3.0), (5.0, 6.0), (8.0, 7.0)]) == 3.0


def test_names_of_ranks_files() -> None:
    assert steps.for_rank(Path("a/b.jsonl"), 0) == Path("a/b.jsonl")
    assert steps.for_rank(Path("a/b.jsonl"), 3) == Path("a/b.rank-3.jsonl")


def test_what_cannot_be_had_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    from omnihvd import observe

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said: list[str] = []
        observe.logger.addFilter(lambda record: said.append(record.getMessage()) is not None)
        observe.guarded(lambda: metrics.serve(port), "OMNIHVD_METRICS")
        observe.guarded(lambda: steps.begin("/nowhere/x.jsonl"), "OMNIHVD_STATS")
        observe.guarded(lambda: traces.try_path("/nowhere/y.json"), "OMNIHVD_TRACE")
        observe.logger.filters.clear()
    assert "OMNIHVD_METRICS is left out: " in said[0] and "/nowhere/x" in said[1]
    assert "OMNIHVD_TRACE is left out" in said[2] and "/nowhere/y" in said[2]


def test_trying_a_traces_path_leaves_it_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    traces.try_path(str(path))
    assert not path.exists()
    path.write_text("older")
    traces.try_path(str(path))
    assert path.read_text() == "older"


def test_a_trace_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    code = "import omnihvd, torch; from omnihvd import engine; engine.session.write_trace()"
    env = {**os.environ, "OMNIHVD_TRACE": "/dev/full"}
    done = subprocess.run([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True)
    assert "could not be written to /dev/full: No space left on device" in done.stderr
    assert Path("/dev/full").exists()
    broken = tmp_path / "broken.json"
    broken.write_text("[{")
    words = [sys.executable, "-m", "omnihvd", "trace", str(broken), "-o", str(tmp_path / "all")]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
    assert done.stderr == f"omnihvd trace: {broken} is no trace of omnihvd's or Horovod's\n"


def test_a_rank_that_is_learnt_late_has_a_log_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a script starts its ranks itself: each opens its log before the ranks meet."""
    ranks = iter([0, 0, 0, 1])
    monkeypatch.setattr(steps, "process_rank", lambda: next(ranks))
    logs = [steps.StepLog(tmp_path / "steps.jsonl") for _ in range(2)]
    for log in logs:
        log.step_ended()
    for rank, name in enumerate(["steps.jsonl", "steps.rank-1.jsonl"]):
        (line,) = (tmp_path / name).read_text().splitlines()
        assert json.loads(line)["rank"] == rank


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    """A device, too: /dev/null would else become a file, where root writes to it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with whole_file(path) as file:
            file.write(b"all")
        assert path.is_fifo() and os.read(reader, 9) == b"all"
    finally:
        os.close(reader)


def test_metrics_ask_no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_: str = "") -> str:
        raise AssertionError("a name server is asked")

    monkeypatch.setattr(socket, "getfqdn", ask)
    server = metrics.serve("127.0.0.1:0")
    server.shutdown()
    server.server_close()
