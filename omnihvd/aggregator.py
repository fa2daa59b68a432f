"""A dedicated aggregator: a process on a host of its own that sums for jobs that know its secret.

`omnihvd aggregator --bind HOST:PORT` listens for the first ranks of new groups. Both sides prove
that they know the secret (csrc/engine/rendezvous.h); the blocks then go between the engine's
transports.

`--udp HOST:PORT`, `--xdp INTERFACE` and `--af-xdp INTERFACE` sum for workers of `omnihvd.inline`
instead: at a socket, in the kernel's receive path, or past it (docs/in-network.md).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import hmac
import os
import resource
import secrets
import signal
import socket
import struct
import time
from collections.abc import Coroutine
from typing import Any

from omnihvd import engine
from omnihvd.inline import aggregator as inline
from omnihvd.log import logger

HELLO = b"omnihvd-join "  # then the protocol, a line feed and a nonce
NONCE_BYTES = PROOF_BYTES = 32
STRANGERS = 64  # unauthenticated connections
STRANGER_PATIENCE_S = 3.0
WARNINGS = 20  # a minute, about peers
MOST_DESCRIPTORS = 1 << 20
NONE_LEFT = "the aggregator has no file descriptors left; raise their number there (ulimit -n)"
LONGEST = 1 << 26  # bytes of a message from an authenticated peer
LONGEST_STRANGER = 1024
SAME = "OMNIHVD_SECRET must be the same everywhere"


class Refused(Exception):
    """A refused peer; the message is the only thing that it gets."""


class Looked(Exception):
    """The peer sent nothing, as a port check does."""


class Aggregator:
    """Answers the rendezvous of any number of groups; the engine's threads do the sums.

    A peer must authenticate within 3 s. At most 64 connections wait for that. A further one closes
    the oldest, so that strangers cannot use up the descriptors.
    """

    def __init__(self, settings: Any) -> None:
        self.secret: str = settings.secret
        self.host = engine.session.AggregatorHost(settings)
        self._strangers: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._reserve = socket.socket()
        self._warned, self._minute = 0, 0.0

    def serve(self, host: str, port: int) -> tuple[str, int]:
        """Begins to listen. Returns the address; OSError when none is available."""
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listeners, problem = [], OSError(f"{host} has no address")
        for family, *_, at in found:
            try:
                listeners.append(socket.create_server(at, family=family, backlog=STRANGERS))
            except OSError as why:
                if why.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                problem = why  # as IPv6 where there is none
        if not listeners:
            raise problem
        for listener in listeners:
            listener.setblocking(False)
            self._start(self._accept(listener))
        bound: tuple[str, int] = listeners[0].getsockname()[:2]
        return bound

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                reader, writer = await asyncio.open_connection(sock=connection)
            except OSError as why:
                if why.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away(listener)
                    await asyncio.sleep(0.05)
                continue  # else a peer that is gone already
            self._strangers[writer] = None
            if len(self._strangers) > STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.transport.abort()
            self._start(self._talk(reader, writer))

    def _turn_away(self, listener: socket.socket) -> None:
        """Accepts the next peer on the reserved descriptor, and tells it why it is refused."""
        self._warn(NONE_LEFT)
        self._reserve.close()
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            connection.setblocking(False)
            connection.send(_framed(b"no" + NONE_LEFT.encode()))
        with contextlib.suppress(OSError):
            self._reserve = socket.socket()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = "{}:{}".format(*(writer.get_extra_info("peername") or ("somebody", 0))[:2])
        try:
            limit = engine.session.time_limits()["rendezvous"]
            nonces = await asyncio.wait_for(self._prove(reader, writer), STRANGER_PATIENCE_S)
            self._strangers.pop(writer, None)
            await asyncio.wait_for(self._admit(reader, writer, nonces), limit)
            logger.info("admitted a group of %s", peer)
        except (Refused, engine.EngineError, ValueError) as why:
            self._warn(f"refused {peer}: {why}")
            writer.write(_framed(b"no" + str(why).encode()))
        except Looked:
            logger.debug("%s looked whether the port answers", peer)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            self._warn(f"{peer} went away in the middle of a rendezvous, or was too slow")
        finally:
            self._strangers.pop(writer, None)
            writer.close()

    def _warn(self, message: str) -> None:
        """Warns, at a limited rate: peers that flood the port must not flood the log."""
        now = time.monotonic()
        if now - self._minute > 60:
            self._warned, self._minute = 0, now
        self._warned += 1
        if self._warned <= WARNINGS:
            logger.warning("%s", message)
        if self._warned == WARNINGS:
            logger.warning("more warnings about peers are left out for a minute")

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Authenticates both sides. Returns both nonces."""
        try:
            hello = await _receive(reader, LONGEST_STRANGER)
        except asyncio.IncompleteReadError as gone:
            if gone.partial:
                raise
            raise Looked from gone
        protocol, _, theirs = hello[len(HELLO) :].partition(b"\n")
        if not hello.startswith(HELLO) or not protocol.isdigit():
            raise Refused("this is not omnihvd's protocol")
        if int(protocol) != engine.session.protocol or len(theirs) != NONCE_BYTES:
            raise Refused(
                f"another version of omnihvd: the job speaks protocol {int(protocol)}, this "
                f"aggregator {engine.session.protocol}; install the same on all hosts"
            )
        ours = secrets.token_bytes(NONCE_BYTES)
        self._say(writer, b"aggregator", theirs, ours)
        nonces = theirs + ours
        try:
            self._proven(await _receive(reader, LONGEST_STRANGER), b"worker", nonces)
        except (asyncio.IncompleteReadError, ConnectionError) as gone:
            # A peer with another secret leaves when it sees our proof.
            raise Refused(f"wrong secret, most likely: it left at our proof; {SAME}") from gone
        return nonces

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nonces: bytes
    ) -> None:
        addresses = b"".join(struct.pack("<Q", len(a)) + a for a in self.host.addresses())
        self._say(writer, b"addresses", nonces, addresses)
        description = self._proven(await _receive(reader, LONGEST), b"group", nonces)
        await asyncio.get_running_loop().run_in_executor(
            None, self.host.admit, description, self.secret
        )
        self._say(writer, b"ready", nonces, b"")
        await writer.drain()

    def _proof(self, *parts: bytes) -> bytes:
        return hmac.digest(self.secret.encode(), b"".join(parts), "sha256")

    def _say(self, writer: asyncio.StreamWriter, who: bytes, nonces: bytes, content: bytes) -> None:
        writer.write(_framed(b"ok" + self._proof(who, nonces, content) + content))

    def _proven(self, message: bytes, who: bytes, nonces: bytes) -> bytes:
        proof, content = message[:PROOF_BYTES], message[PROOF_BYTES:]
        if not hmac.compare_digest(proof, self._proof(who, nonces, content)):
            raise Refused(f"wrong secret: the secrets differ; {SAME}")
        return content


def _framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


async def _receive(reader: asyncio.StreamReader, longest: int) -> bytes:
    (size,) = struct.unpack("<I", await reader.readexactly(4))
    if size > longest:
        raise Refused("this is not omnihvd's protocol")
    return await reader.readexactly(size)


async def _run(host: str, port: int, settings: Any) -> None:
    aggregator = Aggregator(settings)
    print("omnihvd aggregator at {}:{}".format(*aggregator.serve(host, port)), flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def _raise_limit() -> None:
    """Raises the soft limit of descriptors, usually 1024: each worker of a job needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(arguments: list[str]) -> int:
    """The command `omnihvd aggregator`. Returns the exit status."""
    usage = (
        "omnihvd aggregator --bind HOST:PORT\n"
        "       omnihvd aggregator (--udp HOST:PORT | --xdp NIC | --af-xdp NIC) [OPTIONS]"
    )
    parser = argparse.ArgumentParser(prog="omnihvd aggregator", usage=usage, description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--bind", metavar="HOST:PORT", help="port 0: any free one")
    inline.add_options(parser, where)
    args = parser.parse_args(arguments)
    # A job's settings name its aggregators; this process is one.
    os.environ.pop("OMNIHVD_AGGREGATORS", None)
    given = args.bind or args.udp or args.xdp or args.af_xdp
    try:
        settings = engine.session.settings_from_environment()
        if not settings.secret:
            parser.error("a secret is needed: set OMNIHVD_SECRET_FILE or OMNIHVD_SECRET")
        if args.bind:
            _raise_limit()
            asyncio.run(_run(*_address(parser, "--bind", args.bind), settings))
        else:
            address = _address(parser, "--udp", args.udp) if args.udp else ("", args.port)
            inline.serve(inline.asked_for(parser, args, settings.secret, *address))
    except (OSError, engine.EngineError) as why:
        parser.exit(1, f"omnihvd aggregator: {given}: {why}\n")
    return 0


def _address(parser: argparse.ArgumentParser, option: str, bind: str) -> tuple[str, int]:
    host, colon, port = bind.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        parser.error(f"{option} {bind}: not HOST:PORT, with a port from 0 to 65535")
    return host, int(port)
