"""How many engine threads there are, where nobody says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from _engine_tests import session, shared


@pytest.mark.parametrize(
    ("gigabits", "cores", "streams"),
    [
        *((0, 64, 1), (10, 64, 1), (25, 64, 2), (100, 64, 8), (400, 64, 8)),
        *((100, 0, 1), (100, 1, 1), (100, 2, 1), (100, 3, 1), (100, 4, 2), (100, 15, 7)),
    ],
)
def test_links_want_threads_and_threads_want_cores(gigabits: int, cores: int, streams: int) -> None:
    assert session.streams_for(gigabits * 1e9 / 8, cores) == streams


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("allowed", "limit", "online", "ranks", "cores"),
    [
        *((64, 0, 64, 1, 64), (64, 0, 64, 8, 8), (4, 0, 64, 8, 4), (0, 0, 64, 2, 32)),
        *((64, 4, 64, 1, 4), (64, 4, 64, 2, 2), (64, 1.5, 64, 2, 0), (2, 4, 64, 1, 2)),
    ],
)
def test_ranks_share_their_host(
    allowed: int, limit: float, online: int, ranks: int, cores: int
) -> None:
    assert session.cores_each(allowed, limit, online, ranks) == cores


def test_a_container_has_no_more_threads_than_its_quota_feeds(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/cpu.max", "400000 100000\n")
    cores = session.cores_each(64, shared.cpu_limit(str(tmp_path)), 64, 1)
    assert session.streams_for(100e9 / 8, cores) == 2


def test_the_fastest_link_that_is_up(tmp_path: Path) -> None:
    assert session.fastest_link(str(tmp_path)) == 0
    for device, state, speed in [
        ("lo", "unknown", ""),
        ("eth0", "up", "10000\n"),
        ("eth1", "up", "-1\n"),
        ("eth2", "down", "100000\n"),
    ]:
        write(tmp_path / "class/net" / device / "operstate", state + "\n")
        write(tmp_path / "class/net" / device / "speed", speed)
    assert session.fastest_link(str(tmp_path)) == 10e9 / 8
    for port, state in [("1", "4: ACTIVE\n"), ("2", "1: DOWN\n")]:
        folder = tmp_path / "class/infiniband/mlx5_0/ports" / port
        write(folder / "state", state)
        write(folder / "rate", f"{100 * int(port)} Gb/sec (4X EDR)\n")
    assert session.fastest_link(str(tmp_path)) == 100e9 / 8
