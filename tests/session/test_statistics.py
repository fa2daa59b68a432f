"""Statistics: intervals, shares, and that every name is explained."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from groups import all_well, blocks_of, in_threads

import omnihvd
from omnihvd import cli, statistics
from omnihvd.engine import session

WAYS = {name: {"calls": 0, "bytes": 0, "seconds": 0.0} for name in ("stream", "union", "original")}
ROWS = {"gradients": 0, "own_bytes": 0, "gathered_bytes": 0, "union_bytes": 0, "dense_bytes": 0}


def totals(**changed: Any) -> dict[str, Any]:
    nested = {"ways": WAYS, "sparse": ROWS, "codecs": {}, "passed": {}, "compression": {}}
    return {**{name: 0 for name in session.stats() if name not in nested}, **nested, **changed}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The engine's counts, to be changed by the test."""
    now = totals()
    monkeypatch.setattr(statistics, "_totals", lambda: dict(now))
    return now


def stream(calls: int, size: int) -> dict[str, Any]:
    return {**WAYS, "stream": {"calls": calls, "bytes": size, "seconds": 0.5}}


def leaves(figures: dict[str, Any]) -> list[float]:
    nested = [leaves(v) if isinstance(v, dict) else [v] for v in figures.values()]
    return [value for values in nested for value in values]


def new_process(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a Python of its own, for a minute at most."""
    command, environment = [sys.executable, "-c", code], {**os.environ, **env}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    )


def test_a_new_process_has_counted_nothing() -> None:
    code = "import json; from omnihvd.engine import session; print(json.dumps(session.stats()))"
    found = leaves(json.loads(new_process(code).stdout))
    assert len(found) > 40 and set(found) == {0}


SUMMARIES = """
from omnihvd.engine import session

print(session.summary("MPI"))
session.set_log_rank(0)
session.Communicator(0, 1).meet(lambda mine: [mine])  # sets the level
session.count_pass("small", 2048)
session.count_pass("op", 1000)
session.count_pass("op", 1000)
session.count_pass("control", 77)
print(session.summary("MPI"))
session.stop("MPI")
session.stop("MPI")
"""


@pytest.mark.parametrize("level", ["warning", "info"])
def test_a_summary_has_what_was_left_alone(level: str) -> None:
    """A job without a sum of omnihvd's has a line at the level info, once."""
    said = new_process(SUMMARIES, OMNIHVD_LOG=level)
    summary = "sums taken: 0; left to MPI: 3, 100.0% of the bytes (2 op, 1 small)"
    assert said.stdout.splitlines() == ["sums taken: 0", summary]
    assert said.stderr.count(summary) == said.stderr.count("sums taken") == (level == "info")


def test_a_summary_of_empty_calls_has_no_share_of_nothing() -> None:
    code = (
        "from omnihvd.engine import session as s; s.count_pass('empty', 0); print(s.summary('MPI'))"
    )
    said = new_process(code).stdout
    assert said == "sums taken: 0; left to MPI: 1, 0.0% of the bytes (1 empty)\n"


def test_there_are_no_shares_of_nothing(counted: dict[str, Any]) -> None:
    figures = omnihvd.Statistics().read()
    shares = ("sent_of_ring", "density", "union_density", "passed_share")
    assert [figures[name] for name in shares] == [None] * 4


def test_shares(counted: dict[str, Any]) -> None:
    figures = omnihvd.Statistics()
    counted.update(
        ways=stream(2, 8000),
        ring_bytes=12000,
        bytes_sent=3000,
        blocks=80,
        nonzero_blocks=8,
        result_blocks=20,
        passed={"small": {"calls": 3, "bytes": 2000}, "control": {"calls": 999, "bytes": 9999}},
    )
    read = figures.read()
    assert (read["sent_of_ring"], read["density"], read["union_density"]) == (0.25, 0.1, 0.25)
    assert read["passed_share"] == 0.2  # of what were tensors
    assert read["ring_bytes"] == 12000


def test_sparse_gradients_count_with_all_their_rows(counted: dict[str, Any]) -> None:
    figures = omnihvd.Statistics()
    rows = {**ROWS, "gradients": 1, "union_bytes": 1000, "dense_bytes": 10_000}
    counted.update(
        ways=stream(1, 1000),
        sparse=rows,
        ring_bytes=1500,
        bytes_sent=600,
        blocks=25,
        nonzero_blocks=24,
        result_blocks=25,
    )
    read = figures.read()
    assert read["density"] == pytest.approx(0.096)  # not 0.96, where nothing could be skipped
    assert read["union_density"] == pytest.approx(0.1)
    assert read["ring_bytes"] == 15_000 and read["sent_of_ring"] == pytest.approx(0.04)


def test_intervals(counted: dict[str, Any]) -> None:
    one, other = omnihvd.Statistics(), omnihvd.Statistics()
    counted["calls"], counted["passed"] = 5, {"small": {"calls": 2, "bytes": 8}}
    assert one.read(reset=True)["calls"] == 5
    assert one.read()["calls"] == 0 and one.read()["passed"]["small"]["calls"] == 0
    counted["calls"], counted["passed"] = 6, {"op": {"calls": 1, "bytes": 4}, **counted["passed"]}
    assert one.read()["calls"] == one.read()["calls"] == 1  # reading changes nothing
    assert one.read()["passed"]["op"] == {"calls": 1, "bytes": 4}
    assert other.read()["calls"] == 6


def test_stats_can_be_reset(monkeypatch: pytest.MonkeyPatch, counted: dict[str, Any]) -> None:
    since_start = omnihvd.Statistics(since_start=True)
    monkeypatch.setattr(statistics, "_since_start", since_start)
    counted["calls"] = 7
    assert omnihvd.stats()["calls"] == omnihvd.stats(reset=True)["calls"] == 7
    assert omnihvd.stats()["calls"] == 0


def test_flat_figures_for_loggers(monkeypatch: pytest.MonkeyPatch, counted: dict[str, Any]) -> None:
    monkeypatch.setattr(statistics, "_since_logged", omnihvd.Statistics())
    counted["calls"], counted["ways"] = 3, stream(3, 100)
    flat = omnihvd.log_dict()
    assert flat["omnihvd/calls"] == flat["omnihvd/ways/stream/calls"] == 3
    assert "omnihvd/density" not in flat  # nothing was looked at
    assert all(isinstance(value, (int, float)) for value in flat.values())
    assert omnihvd.log_dict("x/")["x/calls"] == 0  # since the last time


def test_the_engine_counts_what_a_ring_would_send() -> None:
    figures, count = omnihvd.Statistics(), 30_000

    def work(rank: int, group: Any) -> None:
        x = blocks_of(rank, count, 0.1)
        group.allreduce(x, x)

    all_well(in_threads(3, work))
    read = figures.read()
    assert read["calls"] == 3 and read["bytes_in"] == 3 * 4 * count  # all ranks are here
    assert read["ring_bytes"] == 3 * (2 * 2 * 4 * count // 3)
    blocks = -(-count // 256)
    padded = [np.resize(blocks_of(rank, count, 0.1), blocks * 256) for rank in range(3)]
    nonzero = sum(int(x.reshape(blocks, 256).any(1).sum()) for x in padded)
    assert read["nonzero_blocks"] == nonzero and read["density"] == nonzero / (3 * blocks)
    assert 0 < read["sent_of_ring"] < 0.5


def test_the_engine_counts_what_it_copies() -> None:
    figures, count = omnihvd.Statistics(), 30_000

    def work(rank: int, group: Any) -> None:
        x = np.full(count, rank + 1, np.float32)
        group.allreduce(x, x)

    all_well(in_threads(3, work))
    read = figures.read()
    # Each block into its message; each sum to the two ranks that did not make it in place.
    assert read["bytes_copied"] == read["bytes_sent"] + 2 * 4 * count


def test_frames_share_messages() -> None:
    """Also first contributions, though each of them needs the shape. The reduce to rank 1 has one
    aggregator: rank 0 sends it 16 slots at once, and hears of their sums at once."""
    figures, summed, read = omnihvd.Statistics(), threading.Barrier(2), threading.Barrier(2)

    def work(rank: int, group: Any) -> dict[str, Any]:
        x = np.zeros(32 * 256, np.float32)
        group.reduce_scatter(x, np.empty(rank * len(x), np.float32), [0, len(x)])
        summed.wait(30)
        found = figures.read()
        read.wait(30)  # before anybody says good-bye, which is a message, too
        return found

    found = all_well(in_threads(2, work, message_bytes=1024, slots=16, streams=1))[0]
    assert (found["frames_sent"], found["messages_sent"]) == (32, 2)


def test_every_name_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stats"]) == 0
    explained = capsys.readouterr().out
    figures = omnihvd.stats()
    for name in [*figures, *figures["ways"], *figures["sparse"], *figures["ways"]["stream"]]:
        assert re.search(rf"\b{name}\b", explained), name


ONE_SUM = """
import ctypes, types
from omnihvd.engine import session

numbers = (ctypes.c_float * 256)()
alone = types.SimpleNamespace(allgather=lambda mine: [mine])
session.set_log_rank(0)
ranks = session.Communicator(0, 1)
ranks.meet(alone.allgather)
ranks.sum(ctypes.addressof(numbers), 256, "float32", alone)
session.count_pass("small", LEFT)
session.stop("MPI")
"""


@pytest.mark.parametrize(("left", "said"), [(53, ""), (54, "; left to MPI: 5.0%")])
def test_the_line_at_the_end_has_what_was_left_from_a_twentieth_on(left: int, said: str) -> None:
    env = {"OMNIHVD_WAY": "stream", "OMNIHVD_MIN_BYTES": "1"}
    line = new_process(ONE_SUM.replace("LEFT", str(left)), **env).stderr
    assert re.search(rf"sums taken: 1, of .* [\d.]+ s{re.escape(said)}$", line, re.M), line
