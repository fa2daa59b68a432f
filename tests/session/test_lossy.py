"""Sums over UDP while the network loses frames, with colocated and dedicated aggregators."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from test_namespaces import SECRET, Ranks, contained, end, rank_command

from benchmarks.bench.lab import Lab, LabError

pytestmark = [pytest.mark.root, pytest.mark.timeout(90)]

DROP = "-t raw -A PREROUTING -i eth0 -m statistic --mode random --probability 0.02 -j DROP"
HOSTS, SOON_S = 3, 10


@pytest.fixture
def lab() -> Iterator[Lab]:
    try:
        with Lab(HOSTS, rate=None) as lab:
            for host in lab.hosts:
                done = subprocess.run(
                    host.command(["iptables", *DROP.split()]), capture_output=True, text=True
                )
                if done.returncode:
                    pytest.skip(f"no loss to be had here: {done.stderr.strip()}")
            yield lab
    except (LabError, FileNotFoundError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("secret", ["", SECRET])
def test_sums_are_right_where_frames_are_lost(lab: Lab, secret: str) -> None:
    commands = [host.command(rank_command(rank, HOSTS)) for rank, host in enumerate(lab.hosts)]
    ranks = Ranks(commands, OMNIHVD_TRANSPORT="udp", OMNIHVD_SECRET=secret)
    try:
        assert ranks.seconds() < SOON_S
    finally:
        ranks.end()


def test_a_dedicated_aggregator_where_frames_are_lost(lab: Lab) -> None:
    *near, far = lab.hosts
    aggregator = [sys.executable, "-m", "omnihvd", "aggregator", "--bind", f"{far.address}:7000"]
    server = subprocess.Popen(
        contained(lab, far, [], aggregator),
        env={**os.environ, "OMNIHVD_SECRET": SECRET, "OMNIHVD_TRANSPORT": "udp"},
        stdout=subprocess.PIPE,
        text=True,
    )
    ranks = None
    try:
        assert server.stdout and ":7000" in server.stdout.readline()
        ranks = Ranks(
            [host.command(rank_command(rank, 2)) for rank, host in enumerate(near)],
            OMNIHVD_TRANSPORT="udp",
            OMNIHVD_SECRET=SECRET,
            OMNIHVD_AGGREGATORS=f"{far.address}:7000",
        )
        assert ranks.seconds() < SOON_S
    finally:
        end(server)
        if ranks:
            ranks.end()
