"""The ports that docs/clusters.md tells to open in a firewall are all that are listened on."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from aggregators import SECRET, Server
from launch import launch

HERE = Path(__file__).parent / "on_ranks"
PORTS = range(29100, 29120)


def test_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TCP_PORT_RANGE", f"{PORTS[0]}-{PORTS[-1]}")
    monkeypatch.setenv("UCX_TLS", "tcp")
    server = Server()
    env = {
        "OMNIHVD_AGGREGATORS": server.address,
        "OMNIHVD_SECRET": SECRET,
        "OMNIHVD_MIN_BYTES": "1024",
    }
    try:
        job = launch([HERE / "ports.py"], 2, env=env)
        connections = psutil.Process(server.process.pid).net_connections(kind="tcp")
    finally:
        server.end()
    for output in job.ranks:
        ports = [int(word) for word in output.split("ports ")[1].splitlines()[0].split()]
        assert ports and set(ports) <= set(PORTS), output
    own = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    assert own - set(PORTS) == {int(server.address.split(":")[1])}
    assert own & set(PORTS)
