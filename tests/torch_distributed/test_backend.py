"""Process groups with omnihvd's allreduce, between real processes."""

from __future__ import annotations

import pytest
from jobs import run
from processes import free_port


@pytest.mark.parametrize(
    ("backend", "ranks", "way"),
    [
        ("omnihvd", 3, "stream"),
        ("cpu:omnihvd,cuda:gloo", 2, "auto"),
    ],
)
def test_all_that_a_group_does(backend: str, ranks: int, way: str) -> None:
    transport = "udp" if way == "stream" else "ucx"
    env = {"OMNIHVD_WAY": way, "OMNIHVD_TRANSPORT": transport, "LATER_PORT": str(free_port())}
    env["OMNIHVD_MIN_BYTES"] = "262144"  # test_small_sums.py has the small ones
    for ended in run("sums.py", ranks, backend, env=env):
        assert "all well" in ended.output
