"""Addresses that lead nowhere: each failure says why, and what may help."""

from __future__ import annotations

import resource
import socket
import struct
from collections.abc import Callable

import pytest
from _engine_tests.transport import Clock, Transport
from ends import End
from test_udp import MAGIC, fnv1a, port_of, with_port

from omnihvd.engine import EngineError

UCX = b"omnihvd ucx "


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def parts(body: bytes, form: str) -> list[bytes]:
    """The numbers (n) and texts (t) of an address."""
    found = []
    for kind in form:
        size = 8 if kind == "n" else 8 + struct.unpack_from("<Q", body)[0]
        found.append(body[:size])
        body = body[size:]
    return [*found, body]


def changed(address: bytes, magic: int, form: str, change: Callable[[list[bytes]], None]) -> bytes:
    """magic: its bytes."""
    fields = parts(address[magic + 8 :], form)
    change(fields)
    body = b"".join(fields)
    return address[:magic] + struct.pack("<Q", fnv1a(body)) + body


OWNER = "tnntt"  # host, process, its start, host's name, network


def test_another_ucx_is_named_with_what_to_do() -> None:
    address = End("ucx-any").transport.address()
    magic = address.index(b" ", len(UCX) - 1) + 2
    assert address.startswith(UCX)

    def of_another_host(fields: list[bytes]) -> None:
        fields[0], fields[6] = text(b"another host"), text(b"1.0")

    said = "it has UCX 1.0, and this process UCX .*, which do not understand each other: import"
    with pytest.raises(EngineError, match=said):
        End("ucx-any").transport.connect(changed(address, magic, OWNER + "nt", of_another_host))


def test_a_transport_that_does_not_reach_another_host_is_named() -> None:
    def of_another_host(fields: list[bytes]) -> None:
        fields[0] = text(b"another host")

    address = End("ucx-shm").transport.address()
    magic = address.index(b" ", len(UCX) - 1) + 2
    said = "UCX_TLS and UCX_NET_DEVICES, on all hosts, choose among what there is"
    with pytest.raises(EngineError, match=said):
        End("ucx-shm").transport.connect(changed(address, magic, OWNER + "nt", of_another_host))


def test_no_descriptor_for_a_socket() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
    try:
        with pytest.raises(EngineError, match="socket failed: "):
            Transport.udp()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_a_host_without_a_network_is_named() -> None:
    def without_places(fields: list[bytes]) -> None:
        fields[0] = text(b"another host")
        fields[-1] = struct.pack("<Q", 0)

    address = End("udp").transport.address()
    other = changed(address, len(MAGIC), OWNER + "ntn", without_places)
    said = "its host has no interface that is up and has an address of IPv4"
    with pytest.raises(EngineError, match=said):
        End("udp").transport.connect(other)


@pytest.mark.parametrize(
    ("listens", "said"),
    [
        (True, "within 15 s: do datagrams get through between the hosts (firewalls,"),
        (False, "nobody listens there any more: it has ended, or has closed its transport"),
    ],
)
def test_a_port_that_does_not_answer(listens: bool, said: str) -> None:
    clock, end, other = Clock(speed=1), End("udp"), End("udp")
    end.transport = Transport.udp("", 0, clock, False)
    with socket.socket(type=socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        if not listens:
            silent.close()
        end.transport.connect(with_port(other.transport.address(), port_of(other), port))
        for _ in range(400):
            clock.advance(50_000)
            end.progress()
    assert [said in why for _, why in end.failures] == [True], end.failures
