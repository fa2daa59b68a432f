"""Elastic jobs under horovodrun: ranks and aggregators come and go, and the sums stay right."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from aggregators import SECRET, addresses, servers
from launch import STREAM, Job, launch

HERE = Path(__file__).parent / "on_ranks"
A, B, C = "localhost", "127.0.0.1", socket.gethostname()  # this machine, to Horovod three hosts


def run(folder: Path, hosts: Sequence[str], *command: object, **env: str) -> Job:
    """A script of on_ranks/ and what follows the folder, on the hosts at first."""
    (folder / "hosts").write_text("".join(f"{host}:1\n" for host in hosts))
    discover = folder / "discover"
    discover.write_text(f"#!/bin/sh\ncat {folder}/hosts\n")
    discover.chmod(0o700)
    return launch(
        [HERE / str(command[0]), folder, *map(str, command[1:])],
        len(hosts),
        launcher="horovodrun",
        options=[
            *("--min-np", "1", "--max-np", "3", "--host-discovery-script", str(discover)),
            *("--network-interface", "lo"),
        ],
        env={**STREAM, "OMNIHVD_LOG": "info", **env},
        timeout=100,
    )


def said(folder: Path, what: str) -> list[list[str]]:
    """Host, process, phase, ... of each line that begins with this word."""
    lines = [line.split() for line in (folder / "log").read_text().splitlines()]
    return [words[1:] for words in lines if words[0] == what]


def test_ranks_come_and_go(tmp_path: Path) -> None:
    phases = [f"3:kill={B}", f"2:hosts={A}:1", f"1:hosts={A}:1,{C}:1", "2"]
    job = run(tmp_path, [A, B, C], "steps.py", *phases)
    assert sorted((host, phase) for host, _, phase, _ in said(tmp_path, "begins")) == sorted(
        [(A, "0"), (B, "0"), (C, "0"), (A, "1"), (C, "1"), (A, "2"), (A, "3"), (C, "3")]
    ), job.output
    assert len({process for host, process, *_ in said(tmp_path, "begins") if host == A}) == 1
    fails = said(tmp_path, "fails")
    assert sorted(host for host, *_ in fails) == sorted([A, C])
    assert all(float(seconds) < 10 for _, _, _, seconds, *_ in fails)
    assert all("lost the connection to rank" in " ".join(words) for words in fails)
    assert {host for host, *_ in said(tmp_path, "ends")} == {A, C}
    assert "joined a group of 3 ranks" in job.output and "joined a group of 2 ranks" in job.output


def test_training_goes_on(tmp_path: Path) -> None:
    job = run(tmp_path, [A, B], "optimizer.py", C, B)
    begins = [(host, int(step), int(size)) for host, step, size in said(tmp_path, "begins")]
    together = [(host, 4, 3) for host in (A, B, C)]
    at_last = [(host, 8, 2) for host in (A, C)]
    assert sorted(begins) == sorted([(A, 0, 2), (B, 0, 2), *together, *at_last]), job.output
    assert sorted(host for (host,) in said(tmp_path, "kept")) == sorted([A, B, A, C])
    sizes = [2] * 4 + [3] * 4 + [2] * 4
    assert sorted(said(tmp_path, "ends")) == sorted(
        [[host, *str(sizes).split()] for host in (A, C)]
    )


def test_aggregators_die_one_after_the_other(tmp_path: Path) -> None:
    with servers(2) as started:
        phases = [f"2:run=kill -9 {server.process.pid}" for server in started]
        env = {"OMNIHVD_AGGREGATORS": ",".join(addresses(started)), "OMNIHVD_SECRET": SECRET}
        job = run(tmp_path, [A, B], "steps.py", *phases, "2", **env)
    begins = said(tmp_path, "begins")
    assert len(begins) == 6 and len({process for _, process, *_ in begins}) == 2, job.output
    assert all(float(seconds) < 10 for _, _, _, seconds, *_ in said(tmp_path, "fails"))
    for server in started:
        assert f"left out: aggregator {server.address}: " in job.output
    assert "no dedicated aggregator is left: the ranks aggregate themselves" in job.output
    assert "joined a group of 2 ranks and 2 colocated aggregators" in job.output
    assert len(said(tmp_path, "ends")) == 2
