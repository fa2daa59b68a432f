"""The benchmark's own arithmetic, and one small run of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from launch import ENVIRONMENT
from processes import run_beside

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import map as the_map
import targets

from benchmarks.bench import command, duration, mpich, plots, report, settings, turns, worker
from benchmarks.bench.backends import Hosts
from benchmarks.bench.lab import LabError
from benchmarks.bench.meeting import Meeting
from benchmarks.bench.reducers import BACKENDS
from benchmarks.bench.session import BenchError
from omnihvd.bench.patterns import BLOCK, PATTERNS, Point, is_total, part, present_blocks, volume


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("count", [1, BLOCK - 1, BLOCK, BLOCK + 1, 1024 * BLOCK + 7])
def test_parts_and_their_sum(pattern: str, count: int) -> None:
    for density in (0.0, 0.3, 1.0):
        point = Point(count, density, pattern)
        parts = [part(point, rank, 3) for rank in range(3)]
        for rank, x in enumerate(parts):
            values = (np.arange(count) * 5 + rank * 17) % 29 + 1
            np.testing.assert_array_equal(x[x != 0], values[x != 0])
            if pattern != "elements":
                blocks = np.add.reduceat(x != 0, np.arange(0, count, BLOCK)) > 0
                np.testing.assert_array_equal(blocks, present_blocks(point, rank, 3))
        total = sum(parts)
        assert is_total(total, point, 3)
        total[-1] += 1
        assert not is_total(total, point, 3)


def test_the_limit_of_hosts_with_several_ranks() -> None:
    point, rate = Point(1000 * BLOCK, 0.1, "disjoint"), 1e6
    block = BLOCK * 4
    assert volume(point, 4) == volume(point, 4, 1)
    on_two = volume(point, 4, 2)
    assert (on_two.largest_part, on_two.union) == (200 * block, 400 * block)
    seconds = report.limit_seconds("omnihvd", point, 4, rate, 0, 2)
    assert seconds == pytest.approx((200 + 400) * block / 2 / rate)
    assert report.limit_seconds("gloo", point, 4, rate, 0, 2) == point.bytes / rate
    assert report.limit_seconds("gloo", point, 2, rate, 0.5, 2) == 0.5  # one host has no link


def test_ranks_must_fill_their_hosts() -> None:
    with pytest.raises(BenchError, match="3 ranks are no whole number of hosts with 2 each"):
        Hosts(3, "1gbit", per_host=2)


def test_samples_are_bounded() -> None:
    visit = worker.Visit(Point(1, 1), False, min_seconds=1.0, min_runs=3)
    assert not worker.is_enough([], visit)
    assert not worker.is_enough([0.5] * 2, visit)  # too few
    assert not worker.is_enough([0.1] * 3, visit)  # too short
    assert worker.is_enough([0.5] * 3, visit)
    assert worker.is_enough([0.0] * 1000, visit)
    bounded = replace(visit, max_seconds=2.0)
    assert worker.is_enough([2.5], bounded)
    assert not worker.is_enough([], replace(visit, max_seconds=0.0))  # one at least
    assert worker.is_enough([], worker.Visit(Point(1, 1), True))  # none are wanted
    assert worker.Visit.from_json(bounded.as_json()) == bounded


def test_omnihvd_is_warm_when_it_compares_ways_no_more() -> None:
    def counts(*ways: str) -> list[dict[str, int]]:
        return [{w: ways[: i + 1].count(w) for w in ("a", "b")} for i in range(len(ways))]

    assert not worker.is_warm(counts(*"a" * 15), 0)  # not all have been tried
    assert worker.is_warm(counts(*"a" * 15), 99)
    assert worker.is_warm(counts(*"a" * 16), 0)
    apart = counts(*"aabb", *("aaaaaaab" * 3))
    assert not any(worker.is_warm(apart[:n], 0) for n in range(1, len(apart) + 1))
    assert worker.is_warm(apart, 21)
    assert worker.is_warm([*apart, *({"a": 30 + i, "b": 5} for i in range(10))], 0)
    assert not worker.is_warm([{}] * 15, 0) and worker.is_warm([{}] * 16, 0)


@pytest.mark.parametrize("name", targets.BENCH)
def test_how_long_it_takes_is_foretold(name: str) -> None:
    """All samples of a committed run, which are most of its time."""
    args = command.parser().parse_args(targets.BENCH[name].split())
    found = targets.Run(name).results
    took = sum(sum(r["samples"]) for r in found)
    rate = None if args.local else args.rate
    foretold = sum(
        duration.sampling_s(r["backend"], Point(**r["point"]), r["ranks"], rate, args)
        for r in found
    )
    assert 0.5 < foretold / took < 2


def test_it_is_said_before_the_start_what_takes_long() -> None:
    words = ["--ranks", "2", "4", "--min-seconds", "27", "--densities", "1", "0.1"]
    args = command.parser().parse_args([*words, "--backends", "omnihvd", "gloo"])
    said = duration.told({b: command.points_of(b, args) for b in args.backends}, args)
    assert re.match(r"this takes about \d+ minutes: 6 points of at most 100 MB, 2 backends", said)
    assert "fewer --backends, fewer --densities" in said and "smaller --bytes" in said


def test_the_minutes_of_the_maps_parts() -> None:
    parts = json.loads((the_map.RESULTS / "map.json").read_text())["parts"]
    for one in the_map.PARTS:
        if isinstance(parts.get(one.name), dict):
            assert 0.5 < 60 * one.minutes / parts[one.name]["about"]["seconds"] < 2, one.name


def test_processor_time_is_that_of_all_threads_and_other_processes() -> None:
    program = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout and other.stdout.readline()
        assert worker.cpu_seconds([other.pid]) >= worker.cpu_seconds([]) + 0.35
        other.kill()
    before = worker.cpu_seconds([])

    def work() -> None:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert worker.cpu_seconds([]) - before >= 0.15


def test_ranks_meet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = probe.getsockname()
    said = {}

    def run(rank: int) -> None:
        meeting = Meeting(rank, 3, address, b"a key")
        meeting.barrier()
        begun = meeting.begin()
        assert begun <= time.monotonic()
        said[rank] = [begun, *(meeting.gather(factor * rank) for factor in (1, 10))]

    threads = [threading.Thread(target=run, args=[rank], daemon=True) for rank in (2, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert said == {rank: [said[0][0], [0, 1, 2], [0, 10, 20]] for rank in range(3)}


def test_mpich_lies_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(mpich.HOME, raising=False)
    with pytest.raises(LabError, match=r"needs MPICH_HOME.*pip install --prefix"):
        mpich.environment()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpiexec").touch()
    monkeypatch.setenv(mpich.HOME, str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/another")
    assert mpich.environment()["LD_LIBRARY_PATH"] == f"{tmp_path}/lib:/another"
    assert mpich.mpiexec(["true"], 3) == [f"{tmp_path}/bin/mpiexec", "-np", "3", "true"]


# --- plots --------------------------------------------------------------------------------------


def measured(backend: str, size: int, density: float, ranks: int = 4) -> dict[str, Any]:
    seconds = size * (1.0 if backend in report.DENSE else density)
    return {**result(backend, size, density, seconds), "ranks": ranks, "ranks_per_host": 1}


def test_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense scheme is a level line; tensors of different sizes never share a curve."""
    pytest.importorskip("matplotlib")
    levels, lines = [], []
    level, line = plots.level, plots.line
    monkeypatch.setattr(plots, "level", lambda *a: (levels.append(a[1:]), level(*a)))
    monkeypatch.setattr(plots, "line", lambda *a: (lines.append(a[1:]), line(*a)))

    ours = [measured("omnihvd", 4000, d) for d in (1.0, 0.1)]
    (path,) = plots.plot([*ours, measured("gloo", 4000, 1.0)], tmp_path, "a", "1gbit")
    assert path.name == "a-random.png" and path.exists()
    assert [(b, y) for b, y in levels] == [("gloo", 4e6), ("gloo", 1.0)]
    assert lines[0] == ("omnihvd", [0.1, 1.0], [pytest.approx(4e5), 4e6])

    lines.clear()
    sizes = [measured(b, s, 1.0) for b in ("omnihvd", "gloo") for s in (4000, 8000)]
    (path,) = plots.plot(sizes, tmp_path, "b", None)
    assert path.exists()
    assert lines == [(b, [4000, 8000], [4e6, 8e6]) for b in ("omnihvd", "gloo")]

    workers = [measured("omnihvd", 4000, 1.0, ranks) for ranks in (2, 8)]
    (path,) = plots.plot(workers, tmp_path, "c", "10gbit")
    assert path.name == "c-workers.png" and path.exists()


def test_each_backend_looks_like_no_other() -> None:
    assert set(plots.STYLES) == set(BACKENDS)
    looks = [(s.color, s.marker, str(s.line)) for s in plots.STYLES.values()]
    assert len(set(looks)) == len({s.color for s in plots.STYLES.values()}) == len(looks)
    assert plots.hosts_text(8, 2, "10gbit") == "4 hosts, 2 ranks on each, links of 10 Gbit/s"
    assert plots.hosts_text(2, 2, None) == "2 ranks on one host"


# --- the map ------------------------------------------------------------------------------------


def result(backend: str, size: int, density: float, seconds: float) -> dict[str, Any]:
    point = Point(size // 4, density, memory="new" if size == the_map.LARGE else "kept")
    return {
        "backend": backend,
        "point": asdict(point),
        "setting": "ring" if backend in report.DENSE else "",
        "median_s": seconds,
        "first_ten_s": 2 * seconds,
        "cpu_s_per_gb": 1e9 * seconds / size,
    }


SMALL, LARGE = the_map.WORKS[0], (the_map.LARGE, "new")


def results() -> list[dict[str, Any]]:
    """Results of two sizes; Gloo is the better peer of the smaller, Horovod of the larger."""
    sizes = SMALL[0], LARGE[0]
    ours = [result("omnihvd", size, d, d) for size in sizes for d in the_map.DENSITIES]
    peers = [
        result("gloo", SMALL[0], 1.0, 0.5),
        result("horovod", SMALL[0], 1.0, 0.7),
        result("gloo", LARGE[0], 1.0, 3.0),
        result("horovod", LARGE[0], 1.0, 2.0),
    ]
    return ours + peers


def test_ratios_are_to_the_best_peer_whatever_the_density() -> None:
    best = the_map.BEST_OF_ALL
    ratio = the_map.ratios(results(), best)
    assert ratio[SMALL, 1.0] == 0.5 and ratio[SMALL, 0.1] == 5.0
    assert ratio[LARGE, 1.0] == 2.0 and ratio[LARGE, 0.01] == 200.0
    assert len(ratio) == 2 * len(the_map.DENSITIES)
    assert the_map.ratios(results(), the_map.UNDER_HOROVOD)[SMALL, 1.0] == 0.7
    assert the_map.ratios(results(), the_map.UNDER_TORCH) == {}
    assert the_map.ratios([r for r in results() if r["backend"] == "omnihvd"], best) == {}


def test_a_second_job_is_measured_where_sums_are_short() -> None:
    points = the_map.points_of(the_map.CONTROL, the_map.PARTS[0])
    assert [(p.bytes // 4, p.density) for p in points] == [
        (size // 4, 1.0) for size in the_map.SIZES if size <= the_map.SHORT
    ]
    again = [result("gloo", SMALL[0], 1.0, 0.5), result(the_map.CONTROL, SMALL[0], 1.0, 1.0)]
    assert the_map.ratios(again, the_map.JOBS_ALIKE) == {(SMALL, 1.0): 0.5}


def test_parts_are_chosen_by_pattern_and_by_what_is_missing() -> None:
    names = [part.name for part in the_map.PARTS]
    assert len(names) == len(set(names)) == 9
    assert sum(part.minutes for part in the_map.PARTS) <= 70
    chosen = the_map.chosen(["10gbit-*", "none-1x2"], {})
    assert [p.name for p in chosen] == ["none-1x2", "10gbit-2x1", "10gbit-4x1"]
    rest = the_map.chosen(None, dict.fromkeys(names[:8]))
    assert [part.name for part in rest] == names[8:]


def test_the_map_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    about = {"commit": "0123456789abcdef", "congestion_control": "cubic"}
    parts = {"10gbit-4x1": {"about": about, "results": results()}}
    the_map.write({"parts": parts}, tmp_path / "map.json")
    text = (tmp_path / "map.md").read_text()
    assert "9 of 10 points at 0.97 times" in text and "9 of 10 points at 0.9 times" in text
    assert "| horovod, ring | 2000.0 |" in text and "| horovod, ring | 4000.0 |" in text
    assert "at 0123456789, with TCP's cubic" in text and "100 MB, new memory" in text
    assert f"(4 ranks on {the_map.CORES} cores)" in text or the_map.CORES >= 4
    assert json.loads((tmp_path / "map.json").read_text())["parts"] == parts
    assert (tmp_path / "map.png").stat().st_size > 10_000
    the_map.write({"parts": {}}, tmp_path / "none.json")
    assert "nothing was measured" in (tmp_path / "none.md").read_text()


# --- turns --------------------------------------------------------------------------------------


class Ranks:
    """A session. Its sums take what its setting says."""

    def __init__(self, seconds: dict[bool, float], visits: list[str], name: str) -> None:
        self.seconds, self.visits, self.name = seconds, visits, name

    def visit(self, visit: worker.Visit) -> dict[str, Any]:
        self.visits.append(self.name)
        seconds = self.seconds[visit.is_first]
        samples = [seconds] * visit.min_runs
        point = {"point": asdict(visit.point)}
        return {**point, "sums": [9.0, *samples], "samples": samples, "cpu_s": 1, "counters": []}


class Network:
    """The ring is the faster of two close settings only in turns; one does not run at all."""

    count, per_host = 2, 1
    times: ClassVar = {
        "yielding": {True: 1.0, False: 1.0},
        "yielding, ring": {True: 1.2, False: 0.8},
        "polling": {True: 5.0, False: 0.1},
        "": {True: 0.5, False: 0.5},
    }

    def __init__(self) -> None:
        self.visits: list[str] = []
        self.ended: list[str] = []

    @contextlib.contextmanager
    def start(self, backend: str, setting: settings.Setting, timeout: float) -> Iterator[Ranks]:
        if setting.name not in self.times:
            raise BenchError(f"no {setting.name}")
        yield Ranks(self.times[setting.name], self.visits, f"{backend} {setting.name}".strip())
        self.ended.append(setting.name)


def test_peers_are_measured_at_their_best_in_turns() -> None:
    network, told = Network(), list[str]()
    points = {"omnihvd": [Point(8, 1.0), Point(8, 0.1)], "horovod": [Point(8, 1.0)]}
    plan = turns.Plan(min_runs=3, rounds=3)
    answers = turns.measure(network, points, plan, told.append)  # type: ignore[arg-type]
    ours, _, horovod = answers
    assert [a["backend"] for a in answers] == ["omnihvd", "omnihvd", "horovod"]
    assert horovod["setting"] == "yielding, ring" and horovod["samples"] == [0.8] * 3
    assert horovod["tried"] == {"yielding": 1.0, "polling": 5.0, "yielding, ring": 1.2}
    assert horovod["measured"] == {"yielding": 1.0, "yielding, ring": 0.8}
    assert horovod["sums"][:4] == [9.0, 1.2, 1.2, 1.2] and ours["samples"] == [0.5] * 3
    assert network.ended[0] == "polling"  # at once, as it is the best nowhere
    assert len(told) == 4 and "no yielding, Rabenseifner" in told[2]
    mine, theirs = ["omnihvd"] * 2, ["horovod yielding", "horovod yielding, ring"]
    assert network.visits[5:] == [*mine, *theirs, *theirs, *mine, *mine, *theirs]


def test_small_sums_are_measured_in_new_jobs() -> None:
    network = Network()
    points = {"omnihvd": [Point(8, 1.0), Point(8, 0.1), Point(turns.SMALL, 1.0)]}
    plan = turns.Plan(min_runs=3, small_runs=6, rounds=3, new_jobs=True)
    small, other, large = turns.measure(network, points, plan)  # type: ignore[arg-type]
    assert network.ended == [""] * 4  # three of these jobs for the small sums
    assert len(network.visits) == 3 + 3 * 4 + 3  # a new job sees each small point first
    assert small["starts"] == other["starts"] == [[9.0]] * 3 and "starts" not in large
    assert len(small["samples"]) == 6 and len(large["samples"]) == 3
    two_jobs = {**small, "sums": [1.0] * 10, "starts": [[2.0] * 10, [4.0] * 10], "read_s": 1}
    assert report.summarize(two_jobs, 2, None)["first_ten_s"] == 3


# --- a run --------------------------------------------------------------------------------------


def test_secrets_are_in_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHVD_SECRET", "not to be committed")
    monkeypatch.setenv("OMNIHVD_SLOTS", "4")
    settings = command.machine()["settings"]
    assert settings["OMNIHVD_SLOTS"] == "4" and "OMNIHVD_SECRET" not in settings


BARE_MPI = """
import numpy as np
from omnihvd.bench.patterns import Point, is_total, part
from benchmarks.bench.reducers import BACKENDS
for name, tensors in (("mpi", 3), ("mpi-scatter", 1)):
    backend, point = BACKENDS[name](), Point(1000, 0.5, tensors=tensors)
    rank = backend.mpi.COMM_WORLD.rank
    for _ in range(2):
        backend.prepare(part(point, rank, 3), point)
        backend.restore()
        backend.reduce()
        assert is_total(backend.result(), point, 3)
backend.close()
"""


@pytest.mark.timeout(70)
def test_bare_mpi() -> None:
    mpirun = ["mpirun", "--oversubscribe", "-np", "3", sys.executable, "-c", BARE_MPI]
    run_beside([mpirun], [{**os.environ, **ENVIRONMENT}], timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_a_small_run_of_reduce_scatters(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    options = "--local --ranks 3 --bytes 1e6 --densities 0.1 --min-seconds 0 --min-runs 3"
    command = [sys.executable, "-m", "benchmarks.bench", *options.split(), "--json", str(output)]
    command += ["--backends", "omnihvd-torch-scatter", "gloo-scatter"]
    run_beside([command], [os.environ], timeout=90)
    ours, gloo = json.loads(output.read_text())["results"]
    assert (ours["backend"], gloo["backend"]) == ("omnihvd-torch-scatter", "gloo-scatter")
    assert sum(c["calls"] for c in ours["counters"]) == 3


@pytest.mark.timeout(100)
def test_a_small_run(tmp_path: Path) -> None:
    pytest.importorskip("horovod.torch")
    output = tmp_path / "bench.json"
    options = "--local --ranks 2 --bytes 1e6 --densities 1 0.1 --min-seconds 0 --min-runs 3"
    options += " --memory new --tensors 3 --compute-ms 1"
    command = [sys.executable, "-m", "benchmarks.bench", *options.split()]
    command += ["--backends", "omnihvd", "gloo", "--json", str(output)]
    (run,) = run_beside([command], [os.environ], timeout=90)
    assert "omnihvd CPU s/GB" in run.output
    content = json.loads(output.read_text())
    assert "1 MB float32 in 3 tensors, new memory" in run.output
    assert "(whole)" in run.output or "(4 parts at once)" in run.output
    ours, sparse, gloo = content["results"]
    assert (ours["backend"], sparse["backend"], gloo["backend"]) == ("omnihvd", "omnihvd", "gloo")
    for r in content["results"]:
        assert len(r["samples"]) >= 3 and r["cpu_s_per_gb"] > 0 and r["ranks_per_host"] == 2
        assert r["congestion_control"] and r["first_ten_s"] > 0
    assert sum(c["calls"] for c in ours["counters"]) in (2, 4, 6)  # Horovod fuses what it finds
    assert set(gloo["tried"]) == {"whole", "4 parts at once"}
