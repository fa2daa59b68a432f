"""The ports that docs/clusters.md tells to open in a firewall are all that are listened on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from aggregators import SECRET, Server, servers
from launch import STREAM, Job, launch

HERE = Path(__file__).parent / "on_ranks"
PORTS = range(29100, 29120)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("UCX_TCP_PORT_RANGE", f"{PORTS[0]}-{PORTS[-1]}")
    monkeypatch.setenv("UCX_TLS", "tcp")
    with servers(1) as (started,):
        yield started


def job(server: Server, *modules: str, check: bool = True) -> Job:
    env = {
        **STREAM,
        "OMNIHVD_AGGREGATORS": server.address,
        "OMNIHVD_SECRET": SECRET,
        "OMNIHVD_MIN_BYTES": "1024",
    }
    return launch([HERE / "ports.py", *modules], 2, env=env, check=check, timeout=40)


def test_ports(server: Server) -> None:
    for output in job(server, "omnihvd", "horovod.torch").ranks:
        ports = [int(word) for word in output.split("ports ")[1].splitlines()[0].split()]
        assert ports and set(ports) <= set(PORTS), output
    connections = psutil.Process(server.process.pid).net_connections(kind="tcp")
    own = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    assert own - set(PORTS) == {int(server.address.split(":")[1])}
    assert own & set(PORTS)


def test_another_ucx(server: Server) -> None:
    """Open MPI's wheel has a UCX of its own, which is the ranks' when it is loaded first."""
    ended = job(server, "horovod.torch", "omnihvd", check=False)
    if ended.returncode == 0:
        pytest.skip("this MPI brings no other UCX")
    assert "import omnihvd before horovod" in ended.output
