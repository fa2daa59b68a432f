"""A job that is watched in all ways at once, whose sums are known; and the parts that show it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launch import ENVIRONMENT, launch
from processes import free_port

from omnihvd.bench.lab import Lab
from omnihvd.observe import metrics, steps, top, traces, watchable
from omnihvd.observe.other_hosts import OtherHost

JOB = Path(__file__).parent / "on_ranks/observed.py"
BYTES = 5000 * 64 * 4
Found = dict[str, Any]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Found]]:
    """Its folder, and what each rank found."""
    folder = tmp_path_factory.mktemp("watched")
    port = min(free_port(), 65000)
    env = {
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
        # What came back was 3 x 40 rows of 64 elements, in blocks of 256.
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
    assert traces.main([str(JOB), "-o", str(tmp_path / "no.json")]) == 1


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
        assert f'omnihvd_calls_total{{rank="{rank}"}} 12' in lines
        assert f'omnihvd_ways_calls_total{{rank="{rank}",way="stream"}} 12' in lines
        assert f'omnihvd_density{{rank="{rank}"}} {10 / 1250}' in lines
        assert lines.count("# TYPE omnihvd_ways_calls_total counter") == 1


def test_top_sees_all_ranks_of_the_host(job: tuple[Path, list[Found]]) -> None:
    for found in job[1]:
        assert found["seen"] == [0, 1, 2]
        row = dict(zip(top.HEADER, found["top"][1]))
        assert (row["job"], row["rank"], row["not zero"]) == ("observed.py", "1 of 3", "0.8%")
        assert row["waits for"].startswith("rank ") and row["of a ring"].endswith("%")


def test_top_shows_what_happened_since_the_last_look() -> None:
    def figures(now: float, calls: int, last: dict[str, int]) -> dict[str, Any]:
        way = {"calls": calls, "bytes": 10_000_000 * calls, "seconds": 0.0}
        counts = {"ways": {"stream": way}, "passed": {}}
        rows = {"dense_bytes": 0, "union_bytes": 0}
        names = ("bytes_sent", "library_bytes", "ring_bytes", "blocks", "nonzero_blocks")
        numbers = dict(zip(names, (calls, 0, 4 * calls, 10 * calls, calls)))
        process = {
            "host": "h0",
            "pid": 7,
            "rank": 0,
            "ranks": 2,
            "script": "train.py",
            "begun": 0.0,
            "now": now,
        }
        return {**process, "stats": {**counts, "sparse": rows, **numbers}, "last_ranks": last}

    before, now = figures(10.0, 100, {"1": 90, "0": 10}), figures(12.0, 120, {"1": 91, "0": 19})
    (row,) = top.rows({("h0", 7): now}, {("h0", 7): before})
    shown = dict(zip(top.HEADER, row))
    assert (shown["sums/s"], shown["MB/s summed"], shown["of a ring"]) == ("10.0", "100.0", "25.0%")
    assert (shown["not zero"], shown["waits for"]) == ("10.0%", "rank 0 (90%)")
    assert top.rows({7: before}, {7: before})[0][5:] == ["0.0", "0.0", "0.0"] + ["-"] * 4


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_top_sees_the_ranks_of_other_hosts() -> None:
    with Lab(2, rate=None) as lab:
        words = [sys.executable, str(JOB.with_name("on_hosts.py"))]
        env = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
        said = str(lab.mpirun(words, env=env, timeout=60, stdout=subprocess.PIPE).stdout)
    alone, all_ = said.split("all:")
    assert "0 of 2" in alone and "1 of 2" not in alone
    assert "ranks on other hosts, too: omnihvd top --all, or h1" in alone
    rows = [line.split()[:5] for line in all_.splitlines() if "on_hosts.py" in line]
    assert [row[1:] for row in rows] == [[r, "of", "2", f"h{r}"] for r in "01"]
    assert "gone: no host gone" in all_ and "other hosts, too" not in all_


SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
case $1 in mute) exec sleep 60;; esac
echo Welcome to $1; shift; exec sh -c "$*"
"""


def test_other_hosts_are_asked_while_somebody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an ssh that stays on this host, where this process, which has omnihvd, is to be seen."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    here, mute = OtherHost("here"), OtherHost("mute")
    for _ in range(2):
        here.ask()
        mute.ask()
        assert os.getpid() in [f["pid"] for f in here.answer(30)] and here.problem == ""
        assert mute.answer(0.1) == [] and mute.problem == "no answer yet"
    for other in (here, mute):
        other.close()
        assert other.ended


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_other_users_get_no_answer() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert watchable.may_ask(ours)
    with socket.socket(socket.AF_UNIX) as server:
        name = f"\0omnihvd-test-{os.getpid()}"
        server.bind(name)
        server.listen()
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as asking:
                asking.connect(name)
                asking.recv(1)
            os._exit(0)
        connection, _ = server.accept()
        with connection:
            assert not watchable.may_ask(connection)
        assert os.waitpid(child, 0)[1] == 0


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
        observe.logger.filters.clear()
    assert "OMNIHVD_METRICS is left out" in said[0] and "/nowhere" in said[1]
