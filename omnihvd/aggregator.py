"""A dedicated aggregator: a process on a host of its own that sums for jobs that know its secret.

`omnihvd aggregator --bind HOST:PORT` listens for the first ranks of new groups. How both sides
prove that they know the secret is written down in csrc/session/rendezvous.h; what follows, the
blocks themselves, goes between the engine's transports.

`--udp HOST:PORT`, `--xdp INTERFACE` and `--af-xdp INTERFACE` sum for workers of `omnihvd.inline`
instead: at a socket, in the kernel's receive path, or past it (docs/in-network.md).
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import os
import secrets
import signal
import struct
from typing import Any

from omnihvd import engine
from omnihvd.inline import PORT
from omnihvd.inline.aggregator import Aggregator as InlineAggregator
from omnihvd.inline.aggregator import serve
from omnihvd.log import logger

HELLO = b"omnihvd-join "  # then the protocol, a line feed and a nonce
NONCE_BYTES = PROOF_BYTES = 32
PATIENCE_S = 20.0
LONGEST = 1 << 26  # bytes of a message from a peer that has proved itself
LONGEST_STRANGER = 1024
SAME = "OMNIHVD_SECRET must be the same everywhere"


class Refused(Exception):
    """The peer gets the reason, and nothing else."""


class Looked(Exception):
    """The peer said nothing, as who only looks whether the port answers."""


class Aggregator:
    """Answers the rendezvous of any number of groups; the engine's threads do the sums."""

    def __init__(self, settings: Any) -> None:
        self.secret: str = settings.secret
        self.host = engine.session.AggregatorHost(settings)

    async def serve(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._talk, host, port)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = "{}:{}".format(*writer.get_extra_info("peername")[:2])
        try:
            await asyncio.wait_for(self._admit(reader, writer), PATIENCE_S)
            logger.info("admitted a group of %s", peer)
        except (Refused, engine.EngineError, ValueError) as why:
            logger.warning("refused %s: %s", peer, why)
            _send(writer, b"no" + str(why).encode())
        except Looked:
            logger.debug("%s looked whether the port answers", peer)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            logger.warning("%s went away in the middle of a rendezvous", peer)
        finally:
            writer.close()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
            # Who has another secret leaves at the sight of our proof.
            raise Refused(f"wrong secret, most likely: it left at our proof; {SAME}") from gone
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
        _send(writer, b"ok" + self._proof(who, nonces, content) + content)

    def _proven(self, message: bytes, who: bytes, nonces: bytes) -> bytes:
        proof, content = message[:PROOF_BYTES], message[PROOF_BYTES:]
        if not hmac.compare_digest(proof, self._proof(who, nonces, content)):
            raise Refused(f"wrong secret: the secrets differ; {SAME}")
        return content


def _send(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(struct.pack("<I", len(message)) + message)


async def _receive(reader: asyncio.StreamReader, longest: int) -> bytes:
    (size,) = struct.unpack("<I", await reader.readexactly(4))
    if size > longest:
        raise Refused("this is not omnihvd's protocol")
    return await reader.readexactly(size)


async def _run(host: str, port: int, settings: Any) -> None:
    server = await Aggregator(settings).serve(host, port)
    bound = server.sockets[0].getsockname()
    print(f"omnihvd aggregator at {bound[0]}:{bound[1]}", flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    server.close()


def main(arguments: list[str]) -> int:
    """The command `omnihvd aggregator`. Returns the exit status."""
    usage = (
        "omnihvd aggregator --bind HOST:PORT\n"
        "       omnihvd aggregator (--udp HOST:PORT | --xdp NIC | --af-xdp NIC) [OPTIONS]"
    )
    parser = argparse.ArgumentParser(prog="omnihvd aggregator", usage=usage, description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--bind", metavar="HOST:PORT", help="port 0: any free one")
    where.add_argument("--udp", metavar="HOST:PORT", help="for workers of omnihvd.inline")
    where.add_argument("--xdp", metavar="NIC", help="the same, in the kernel's receive path")
    past = "the same, in user space past the kernel's UDP"
    where.add_argument("--af-xdp", metavar="NIC", help=past)
    inline = parser.add_argument_group("with all but --bind (docs/in-network.md)")
    inline.add_argument("--port", type=int, default=PORT, help="with --xdp, --af-xdp (%(default)s)")
    inline.add_argument("--group", default="", help="multicast address of results")
    inline.add_argument("--jobs", type=int, default=4, help="at most (default: %(default)s)")
    inline.add_argument("--slots", type=int, default=128, help="of a job (default: %(default)s)")
    args = parser.parse_args(arguments)
    # A job's settings name its aggregators; this process is one.
    os.environ.pop("OMNIHVD_AGGREGATORS", None)
    given = args.bind or args.udp or args.xdp or args.af_xdp
    try:
        settings = engine.session.settings_from_environment()
        if not settings.secret:
            parser.error("a secret is needed: set OMNIHVD_SECRET_FILE or OMNIHVD_SECRET")
        if args.bind:
            asyncio.run(_run(*_address(parser, "--bind", args.bind), settings))
        else:
            serve(_inline(parser, args, settings.secret))
    except (OSError, engine.EngineError) as why:
        parser.exit(1, f"omnihvd aggregator: {given}: {why}\n")
    return 0


def _address(parser: argparse.ArgumentParser, option: str, bind: str) -> tuple[str, int]:
    host, colon, port = bind.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        parser.error(f"{option} {bind}: not HOST:PORT, with a port from 0 to 65535")
    return host, int(port)


def _inline(
    parser: argparse.ArgumentParser, args: argparse.Namespace, secret: str
) -> InlineAggregator:
    for option, most in (("port", 65535), ("jobs", 1024), ("slots", 65535)):
        if not 1 <= getattr(args, option) <= most:
            parser.error(f"--{option} {getattr(args, option)}: not from 1 to {most}")
    common = {"group": args.group, "jobs": args.jobs, "slots": args.slots}
    if args.xdp or args.af_xdp:
        past = bool(args.af_xdp)
        where = args.xdp or args.af_xdp
        return InlineAggregator(secret, interface=where, af_xdp=past, port=args.port, **common)
    host, port = _address(parser, "--udp", args.udp)
    return InlineAggregator(secret, host=host, port=port, **common)
