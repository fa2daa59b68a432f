"""Horovod's and torch.distributed's sums go through an in-network aggregator."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from aggregators import SECRET, Server
from launch import ENVIRONMENT, launch
from processes import Ended, free_port, run_beside

from omnihvd.engine import EngineError, session

HERE = Path(__file__).parent
SCRIPT = HERE / "on_ranks" / "sums.py"
FAILING = HERE / "on_ranks" / "failing.py"
RANKS = 3
SOON_S = 10  # loaded machines are slow


def settings_of(server: Server) -> dict[str, str]:
    return {"OMNIHVD_INLINE": server.address, "OMNIHVD_SECRET": SECRET, "OMNIHVD_WAY": "auto"}


def torch_job(
    server: Server,
    script: Path,
    *words: object,
    hosts: str = "a" * RANKS,
    check: bool = True,
    **env: str,
) -> list[Ended]:
    """A rank for each letter of hosts, which is the name of its host."""
    shared = {**os.environ, **ENVIRONMENT, **settings_of(server), **env}
    shared.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    shared["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), *filter(None, sys.path)])
    ranks = [
        {**shared, "RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "OMNIHVD_HOST_ID": host}
        for rank, host in enumerate(hosts)
    ]
    command = [sys.executable, script, *words]
    return run_beside([command] * len(hosts), ranks, timeout=60, check=check)


@pytest.mark.parametrize(
    "library", [pytest.param("mpirun", marks=pytest.mark.slow), "horovodrun --gloo", "torch"]
)
def test_sums_of_a_job(library: str) -> None:
    """Over MPI the aggregator lives on: jobs end otherwise there when a sum fails."""
    server = Server(option="--udp", more=["--jobs", "2"])
    try:
        pid = 0 if library == "mpirun" else server.process.pid
        if library == "torch":
            outputs = [ended.output for ended in torch_job(server, SCRIPT, "torch", pid)]
        else:
            command = [SCRIPT, "horovod", pid]
            outputs = launch(command, RANKS, launcher=library, env=settings_of(server)).ranks
    finally:
        server.process.kill()
    assert len(outputs) == RANKS
    for output in outputs:
        assert "all well" in output, output
        if pid:
            said = re.findall(r"failed within (\S+) s: ", output)
            assert said and float(said[0]) < 10, output
            assert re.search(
                rf"rank \d \(.*\): the aggregator at {server.address} has ended: start it",
                output,
            ), output
    if library == "torch":
        assert "a communicator stream, in spite of OMNIHVD_INLINE" in outputs[0]


def seconds_of(ended: Ended, says: str) -> float:
    """How long the sum took that failed on a rank, with an error that says this."""
    found = re.search(rf"^failed within (\S+) s: .*{says}", ended.output, re.M)
    assert found and "all well" in ended.output and ended.returncode == 0, ended.output
    return float(found[1])


def test_a_killed_rank_is_named_by_all_survivors() -> None:
    """Two hosts with two ranks each, all of them workers of the aggregator."""
    server = Server(option="--udp")
    try:
        first, killed, *last = torch_job(server, FAILING, "killed", hosts="aabb", check=False)
    finally:
        server.process.kill()
    assert killed.returncode == -9, killed.output
    assert all(seconds_of(ended, r"rank 1 \(a") < SOON_S for ended in (first, *last))


@pytest.mark.slow
def test_a_late_rank_is_named_after_the_timeout() -> None:
    server = Server(option="--udp")
    try:
        ranks = torch_job(server, FAILING, "late", OMNIHVD_TIMEOUT="1.5")
    finally:
        server.process.kill()
    for ended in (ranks[0], ranks[2]):
        seconds = seconds_of(ended, r"did not end within .*OMNIHVD_TIMEOUT.*waiting for rank 1 \(a")
        assert 1.4 < seconds < SOON_S, ended.output
    seconds_of(ranks[1], "rank 1")  # finds that the others have given up


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"OMNIHVD_INLINE": "10.0.0.1"}, "OMNIHVD_INLINE=10.0.0.1: .* IPv4 address:port"),
        (
            {"OMNIHVD_INLINE": "nowhere:1"},
            "no IPv4 address: in-network aggregation supports IPv4",
        ),
        ({"OMNIHVD_INLINE": "10.0.0.1:1"}, "OMNIHVD_INLINE needs OMNIHVD_SECRET"),
        (
            {"OMNIHVD_INLINE": "10.0.0.1:1", "OMNIHVD_SECRET": SECRET, "OMNIHVD_WAY": "union"},
            r"OMNIHVD_INLINE requires OMNIHVD_WAY=stream \(now: union\): unset one of them",
        ),
        (
            {
                "OMNIHVD_INLINE": "10.0.0.1:1",
                "OMNIHVD_SECRET": SECRET,
                "OMNIHVD_ARITHMETIC": "fpisa",
            },
            "OMNIHVD_INLINE sums integers: leave out OMNIHVD_ARITHMETIC=fpisa",
        ),
        (
            {
                "OMNIHVD_INLINE": "10.0.0.1:1",
                "OMNIHVD_SECRET": SECRET,
                "OMNIHVD_HIERARCHY": "on",
            },
            "each rank is a worker of the aggregator: leave out OMNIHVD_HIERARCHY=on",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], said: str
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match=said):
        session.settings_from_environment()


@pytest.mark.parametrize("library", ["horovodrun --gloo", "torch"])
def test_powers_of_two_go_through_the_aggregator_where_integers_are_asked_for(library: str) -> None:
    server = Server(option="--udp")
    script, env = HERE / "on_ranks" / "natural.py", {"OMNIHVD_ARITHMETIC": "integer"}
    try:
        if library == "torch":
            ranks = torch_job(server, script, "torch", "inline", hosts="ab", **env)
            outputs = [ended.output for ended in ranks]
        else:
            env = {**settings_of(server), **env}
            command = [script, "horovod", "inline"]
            outputs = launch(command, 2, launcher=library, env=env).ranks
    finally:
        server.process.kill()
    said = "OMNIHVD_ARITHMETIC=integer sums float32 as they are, and not what the codec qsgd4"
    for output in outputs:
        assert "all well" in output and said in output, output
