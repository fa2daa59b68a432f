"""Horovod's and torch.distributed's sums go through an aggregator in the data path."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from aggregators import SECRET, Server
from launch import ENVIRONMENT, launch
from processes import free_port, run_beside

from omnihvd.engine import EngineError, session

HERE = Path(__file__).parent
SCRIPT = HERE / "on_ranks" / "sums.py"
RANKS = 3


def settings_of(server: Server) -> dict[str, str]:
    return {"OMNIHVD_INLINE": server.address, "OMNIHVD_SECRET": SECRET, "OMNIHVD_WAY": "auto"}


def torch_job(server: Server, pid: int) -> list[str]:
    """What each rank wrote."""
    shared = {**os.environ, **ENVIRONMENT, **settings_of(server), "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(free_port())
    path = os.pathsep.join([str(HERE.parents[1]), *filter(None, sys.path)])
    ranks = [
        {**shared, "PYTHONPATH": path, "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
        for rank in range(RANKS)
    ]
    command = [sys.executable, SCRIPT, "torch", pid]
    return [ended.output for ended in run_beside([command] * RANKS, ranks, timeout=60)]


@pytest.mark.parametrize(
    "library", [pytest.param("mpirun", marks=pytest.mark.slow), "horovodrun --gloo", "torch"]
)
def test_sums_of_a_job(library: str) -> None:
    """Over MPI the aggregator lives on: jobs end otherwise there when a sum fails."""
    server = Server(option="--udp", more=["--jobs", "2"])
    try:
        pid = 0 if library == "mpirun" else server.process.pid
        if library == "torch":
            outputs = torch_job(server, pid)
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
                rf"rank \d \(.*\): the aggregator at {server.address} is not there any more", output
            ), output
    if library == "torch":
        assert "a communicator stream, in spite of OMNIHVD_INLINE" in outputs[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"OMNIHVD_INLINE": "10.0.0.1"}, "OMNIHVD_INLINE=10.0.0.1: .* IPv4 address:port"),
        ({"OMNIHVD_INLINE": "nowhere:1"}, "no IPv4 address"),
        ({"OMNIHVD_INLINE": "10.0.0.1:1"}, "OMNIHVD_INLINE needs OMNIHVD_SECRET"),
        (
            {"OMNIHVD_INLINE": "10.0.0.1:1", "OMNIHVD_SECRET": SECRET, "OMNIHVD_WAY": "union"},
            "OMNIHVD_INLINE is of sums through aggregators: set OMNIHVD_WAY=stream",
        ),
        (
            {
                "OMNIHVD_INLINE": "10.0.0.1:1",
                "OMNIHVD_SECRET": SECRET,
                "OMNIHVD_ARITHMETIC": "fpisa",
            },
            "sums by OMNIHVD_INLINE are of integers: leave out OMNIHVD_ARITHMETIC=fpisa",
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
