"""Jobs in real processes under faults (benchmarks/campaign), and whether their oracle can fail."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import pytest

from benchmarks.campaign import __main__ as command
from benchmarks.campaign import job, place
from benchmarks.campaign.elastic import plan_elastic
from benchmarks.campaign.job import Record, Result, Running
from benchmarks.campaign.launched import plan_launched
from benchmarks.campaign.oracle import judge
from benchmarks.campaign.plan import FATAL, Fault, Job, Sum, plan

ROOT = Path(__file__).parents[2]
# Engines and communicators, with kills, stops, forks, few descriptors, and aggregators of both
# kinds that are killed.
SEEDS = (13, 15, 91, 102, 163)
PLANTED = 149  # two ranks; one leaves the other in a sum
WITH_AGGREGATOR = 380  # two ranks and a dedicated one


def campaign(*words: object, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.campaign", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_jobs_under_faults(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    done = campaign("--json", file, "--seeds", *SEEDS)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text())
    assert result["counts"]["jobs"] == len(SEEDS) and not result["failures"]
    # A fault waits for so many results. How many more sums end before it is a race.
    before = [min(f.after for f in plan(seed).faults if f.kind in FATAL) for seed in SEEDS]
    assert result["counts"]["fault kill"] >= 2
    assert result["counts"]["sums right"] >= sum(before) > 20
    done = campaign("--json", file, "--jobs", "1")  # goes on where it was
    assert done.returncode == 0, done.stdout + done.stderr
    again = json.loads(file.read_text())
    assert again["counts"]["jobs"] == len(SEEDS) + 1 and again["next_seed"] == SEEDS[-1] + 2


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        ("wrong", "elements are wrong, at first element 0: "),
        ("mute", "names nobody: it failed"),
        ("segment", "left behind: /dev/shm/omnihvd-planted"),
        ("hang", "rank 1: does not end; its stacks are below"),
        pytest.param("process", "left behind: process ", marks=pytest.mark.slow),
    ],
)
def test_a_planted_fault_is_found(plant: str, said: str) -> None:
    if plant == "segment" and place.refused():
        pytest.skip("needs root and iptables, for a /dev/shm of its own")
    done = campaign("--plant", plant, "--seeds", PLANTED, "--limit", 3)
    assert done.returncode == 1 and said in done.stdout, done.stdout + done.stderr
    assert f"replay: python -m benchmarks.campaign --seeds {PLANTED}\n" in done.stdout
    if plant == "hang":
        assert 'library.py", line' in done.stdout or 'rank.py", line' in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_random_jobs_for_minutes() -> None:
    done = campaign("--first-seed", 100_000, "--seconds", 150, timeout=350)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_jobs_under_launchers(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    words = ("--launchers", "--json", file, "--processes", 1, "--first-seed", 12, "--jobs", 12)
    done = campaign(*words, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(file.read_text())["counts"]
    assert counts["jobs of mpirun"] > 2 and counts["jobs of horovodrun"] > 2
    assert counts["fault kill"] > 2 and counts["sums right"] > 100


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_elastic_jobs_under_faults(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    words = ("--elastic", "--json", file, "--first-seed", 4, "--jobs", 4, "--limit", 120)
    done = campaign(*words, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(file.read_text())["counts"]
    assert counts["fault kill"] >= 4 and counts["sums failed"] >= 4
    assert counts["sums right"] > 4 * 100


def test_a_seed_plans_one_job() -> None:
    assert plan_launched(7, True) == plan_launched(7, True) != plan_launched(8, True)
    assert plan(7) == plan(7) and plan(7) != plan(8)
    assert plan_elastic(7, True) == plan_elastic(7, True) != plan_elastic(8, True)
    kinds = {fault.kind for seed in range(500) for fault in plan(seed).faults}
    assert kinds >= {"kill", "stop", "stop-long", "suspend", "fork", "files", "memory", "full"}
    assert "link" in kinds
    assert {plan(seed).late > 0 for seed in range(500)} == {True, False}


@pytest.mark.parametrize("planned", [plan, plan_launched, plan_elastic])
def test_a_seed_plans_the_same_job_without_namespaces(planned: Callable[[int, bool], Job]) -> None:
    left_out = set()
    for seed in range(500):
        full, alone = planned(seed, True), planned(seed, False)
        left_out |= {f.kind for f in full.faults if f not in alone.faults}
        kept = [f for f in full.faults if f.kind not in ("full", "small-shm", "link")]
        assert alone.faults == kept and not alone.loss and alone.memory_bytes == 64 << 20
        milder = {"loss": 0, "late": 0, "memory_bytes": 64 << 20}
        assert dataclasses.replace(full, faults=kept, **milder) == alone
    assert "small-shm" in left_out or "full" in left_out


@pytest.mark.parametrize("command_is_there", [True, False])
def test_where_namespaces_are_refused_none_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_is_there: bool
) -> None:
    if command_is_there:
        (tmp_path / "unshare").write_text("#!/bin/sh\necho 'Operation not permitted' >&2\nexit 1\n")
        (tmp_path / "unshare").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert place.refused()


SUMS = [Sum("allreduce", 1000, "float32", 1, True)]
JOB = Job(0, "engine", "ab", [(0, 1)], [SUMS], {}, [], False)
RIGHT = [Result(0, rank, 0, "right", "", 1.0, 0.1) for rank in range(2)]
AMONG = "among ranks 1, 0, counted from 0: "
KILL = (2.0, Fault("kill", 1, 0, 0))
RESET = "rank 0 (a) lost the connection to rank {} (b): Connection reset by remote peer"


def of_rank_1(kind: str) -> list[tuple[float, Fault]]:
    return [(2.0, Fault(kind, 1, 0, 0))]


def failed(text: str, begun: float = 1.9, seconds: float = 0.2, number: int = 0) -> list[Result]:
    return [Result(0, 0, number, "failed", text, begun, seconds)]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (Record(JOB, RIGHT, [], {0: 0, 1: 0}), ""),
        (Record(JOB, failed("rank 1 (b) has left"), [KILL], {0: 0, 1: 9}), ""),
        (Record(JOB, failed("rank 1 (b) has left"), [], {0: 0, 1: 0}), "failed without a fault"),
        (Record(JOB, failed("rank 0 (a) has left"), [KILL], {0: 0, 1: 9}), "names nobody"),
        (Record(JOB, failed(f"{AMONG}rank 0 (b) has left"), [KILL], {0: 0, 1: 9}), ""),
        (Record(JOB, failed(f"{AMONG}rank 1 (a) has left"), [KILL], {0: 0, 1: 9}), "names nobody"),
        (Record(JOB, failed("rank 1 (b)", seconds=20), [KILL], {0: 0, 1: 9}), "failed only 19."),
        (Record(JOB, RIGHT, [], {0: 0, 1: 11}), "rank 1 ended by signal SIGSEGV"),
        (Record(JOB, RIGHT, of_rank_1("kill"), {0: 0, 1: 9}), ""),
        (Record(JOB, RIGHT, of_rank_1("kill"), {0: 0, 1: 11}), "rank 1 ended by signal SIGSEGV"),
        (Record(JOB, RIGHT, of_rank_1("kill"), {0: 0, 1: 139}), "rank 1 ended by signal SIGSEGV"),
        (Record(JOB, RIGHT, of_rank_1("exit"), {0: 0, 1: 15}), ""),
        (Record(JOB, RIGHT, of_rank_1("exit"), {0: 0, 1: 6}), "rank 1 ended by signal SIGABRT"),
        (Record(JOB, RIGHT, of_rank_1("memory"), {0: 0, 1: 134}), ""),
        (Record(JOB, RIGHT, of_rank_1("memory"), {0: 0, 1: 256}), ""),
        (Record(JOB, RIGHT, of_rank_1("memory"), {0: 0, 1: 7}), "rank 1 ended by signal SIGBUS"),
        (Record(JOB, RIGHT, of_rank_1("memory"), {1: 11}, logs={1: "UCX: Out of memory"}), ""),
        (
            Record(JOB, RIGHT, of_rank_1("files"), {1: 11}, logs={1: "UCX: Out of memory"}),
            "rank 1 ended by signal SIGSEGV",
        ),
        (Record(JOB, RIGHT, of_rank_1("files"), {0: 0, 1: 256}), ""),
        (Record(JOB, RIGHT, of_rank_1("files"), {0: 0, 1: 11}), "rank 1 ended by signal SIGSEGV"),
        (Record(JOB, RIGHT, of_rank_1("leave"), {0: 0, 1: 256}), "rank 1 ended by status 256"),
        (Record(JOB, failed(RESET.format(1)), [KILL], {0: 0, 1: 9}), ""),
        (Record(JOB, failed(RESET.format(7)), [KILL], {0: 0, 1: 9}), "names nobody"),
        (Record(JOB, failed("gloo: Connection reset by peer"), [KILL], {0: 0, 1: 9}), ""),
        (
            Record(JOB, [Result(0, 0, 1, "failed again", RESET.format(1), 3.0, 5)], [KILL]),
            "fails again only after 5.0 s",
        ),
        (Record(JOB, RIGHT, [], {-1: 256}), "the launcher ended with status 256"),
        (Record(JOB, RIGHT, [KILL], {-1: 256}, over=9.0), ""),
        (Record(JOB, RIGHT, [KILL], {-1: 256}, over=40.0), "the launcher ends only 38.0 s after"),
        (Record(JOB, RIGHT[:1], [], {0: 0, 1: 0}), "rank 1: says nothing of some sums"),
        (Record(JOB, RIGHT, [], {0: 0, 1: 0}, left=["/dev/shm/x"]), "left behind: /dev/shm/x"),
        (
            Record(JOB, [*RIGHT, *failed("rank 1 (b)", number=1000)], [KILL], {}, again=[0, 2]),
            "failed without a fault",
        ),
    ],
)
def test_the_oracle(record: Record, said: str) -> None:
    found = judge(record)
    assert bool(found) == bool(said) and said in "\n".join(found), found


@pytest.fixture
def quick_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run no ranks, and all is right."""
    monkeypatch.setattr(command, "run_job", lambda *_: Record(JOB, RIGHT, [], {0: 0, 1: 0}))
    # Pytest's own stays on, with its own file.
    monkeypatch.setattr(command.faulthandler, "enable", lambda: None)


@pytest.mark.usefixtures("quick_jobs")
def test_an_interrupt_keeps_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, take, taken = tmp_path / "counts.json", command.take, []

    def interrupted(*of: Any) -> Any:
        taken.append(take(*of))
        if len(taken) == 2:
            raise KeyboardInterrupt
        return taken[-1]

    monkeypatch.setattr(command, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command.main(["--json", str(file), "--seeds", "13", "15", "--processes", "1"])
    saved = json.loads(file.read_text())
    assert saved["counts"]["jobs"] == 1 and 0 < saved["took_s"] < 60


@pytest.mark.usefixtures("quick_jobs")
def test_a_replay_does_not_move_the_seed_back(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    file.write_text(json.dumps({"next_seed": 1000, "took_s": 50}))
    assert command.main(["--json", str(file), "--seeds", "13"]) == 0
    saved = json.loads(file.read_text())
    assert saved["next_seed"] == 1000 and saved["counts"]["jobs"] == 1
    assert 50 < saved["took_s"] < 110


def test_a_rank_stands_still_until_its_last_stop_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[Callable[[], None]] = []

    class Timer:
        def __init__(self, seconds: float, call: Callable[[Any], None], of: tuple[Any]) -> None:
            timers.append(lambda: call(*of))

        def start(self) -> None: ...

    monkeypatch.setattr(job.threading, "Timer", Timer)
    running, sent = Running(JOB, tmp_path, False), []
    monkeypatch.setattr(running, "signal", lambda *what: sent.append(what))
    running.stop([0, 1], 5.0)
    running.stop([1], 0.001)
    del sent[:]
    timers[1]()  # the short one of rank 1
    assert sent == []
    timers[0]()
    assert sent == [(0, signal.SIGCONT), (1, signal.SIGCONT)]


@pytest.mark.parametrize("gets_there", [True, False])
def test_a_rank_reports_the_faults_that_it_makes(gets_there: bool) -> None:
    sums = [Sum("allreduce", 1000, "float32", 1, True)] * 3
    faults = [Fault("fork", 0, 1, 0), Fault("leave", 1, 2, 0)]
    env = {} if gets_there else {"UCX_TLS": "none-such"}  # no group is made
    record, wrong = command.take(
        *command.start(Job(0, "engine", "aa", [(0, 1)], [sums], env, faults, False), False, 30)
    )
    assert record
    if gets_there:
        assert not wrong, wrong
        assert sorted(fault.kind for _, fault in record.faults) == ["fork", "leave"]
        first = min(r.begun for r in record.results if r.verdict == "right")
        assert all(when > first for when, _ in record.faults)
    else:
        assert not record.faults and "failed without a fault" in wrong[0]


def processes(parent: int | None = None, group: int | None = None) -> dict[int, int]:
    """The group of each that has not ended."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, of, its_group = file.read_text().rsplit(")", 1)[1].split()[:3]
            if state not in "ZX" and parent in (None, int(of)) and group in (None, int(its_group)):
                found[int(file.parent.name)] = int(its_group)
    return found


def wait_for(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + 30
    while not (found := what()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


@pytest.mark.parametrize(
    "seed", [PLANTED, WITH_AGGREGATOR], ids=["ranks alone", "with an aggregator"]
)
def test_an_interrupted_campaign_leaves_no_process(seed: int) -> None:
    words = [sys.executable, "-m", "benchmarks.campaign", "--plant", "hang", "--limit", "60"]
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    running = subprocess.Popen(
        [*words, "--seeds", str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell has what runs in its background ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    group = 0
    try:
        # The job's process leads a group; its ranks and its aggregator are in it.
        (job_process,) = wait_for(
            lambda: [p for p, g in processes(parent=running.pid).items() if p == g]
        )
        group, planned = job_process, plan(seed)
        most = 1 + planned.size + bool(planned.aggregator)
        # A rank's fork may be one more, and stays when that rank has left.
        assert wait_for(lambda: len(processes(group=group)) >= most)
        running.send_signal(signal.SIGINT)
        running.wait(timeout=30)
        assert wait_for(lambda: not processes(group=group)), processes(group=group)
    finally:
        running.kill()
        running.wait()
        if group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
