"""`omnihvd aggregator --udp HOST:PORT`, `--xdp` and `--af-xdp INTERFACE`: in the data path."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from omnihvd import engine
from omnihvd.inline import PORT, core

GROUP = "239.255.77.1"  # of the addresses that stay in one organisation
MISSING = (
    "omnihvd was built without its XDP program ({why}): install clang and libbpf's headers "
    "(Debian: apt install clang libbpf-dev), and build omnihvd again; --udp HOST:PORT needs "
    "neither"
)


class Aggregator:
    """Sums for jobs that know the secret, until stop().

    interface: takes contributions there, before the kernel's UDP sees them; needs root. It sums in
    the kernel's receive path (XDP) or, with af_xdp, in user space (AF_XDP), and sends results to
    the IPv4 multicast address `group`. interface None: a UDP socket on `host`; without a group,
    results go to each worker. port 0: any free port. EngineError when it cannot start.
    """

    def __init__(
        self,
        secret: str,
        *,
        interface: str | None = None,
        af_xdp: bool = False,
        host: str = "",
        port: int = PORT,
        group: str = "",
        jobs: int = 16,
        slots: int = 128,
    ) -> None:
        self.plane: Any = None
        self.interface: Any = None
        if interface is not None:
            group = group or GROUP
            xdp = xdp_module()
            host = xdp.interface_address(interface)
            given = {"interface": interface, "host": host, "port": port, "group": group}
            program = str(engine.LIBRARIES / ("redirect.bpf.o" if af_xdp else "aggregator.bpf.o"))
            if af_xdp:
                self.interface = xdp.Interface(object=program, **given)
            else:
                self.plane = xdp.Plane(object=program, jobs=jobs, slots=slots, **given)
        self.server = core().Server(
            secret=secret,
            host=host,
            port=port,
            group=group,
            jobs=jobs,
            slots=slots,
            plane=self.plane.pointer() if self.plane else 0,
            interface=self.interface.pointer() if self.interface else 0,
        )
        self.address = f"{host}:{self.server.port}"

    def run(self) -> None:
        self.server.run()

    def stop(self) -> None:
        self.server.stop()

    def counts(self) -> dict[str, int]:
        """Counts of contributions by outcome: {"taken", "results", "answers", ...: number}.

        AF_XDP adds "dropped": frames that found no room in its rings.
        """
        if self.plane:
            return self.plane.counts()
        dropped = {"dropped": self.interface.dropped()} if self.interface else {}
        return {**self.server.counts(), **dropped}


def xdp_module() -> ModuleType:
    """Raises EngineError: this build has none."""
    core()  # it uses that library
    try:
        return importlib.import_module("omnihvd.inline._xdp")
    except ImportError as why:
        raise engine.EngineError(MISSING.format(why=why)) from why


@contextlib.contextmanager
def running(
    aggregator: Aggregator, on_failure: Callable[[], object] = lambda: None
) -> Iterator[Aggregator]:
    """Runs it in a thread. A failure calls on_failure at once and is raised at the end."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            aggregator.run()
        except Exception as why:
            failures.append(why)
            on_failure()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield aggregator
    finally:
        aggregator.stop()
        thread.join()
    if failures:
        raise engine.EngineError(f"it can sum no longer: {failures[0]}") from failures[0]


def serve(aggregator: Aggregator) -> None:
    """Serves until SIGINT or SIGTERM; prints the counts at SIGUSR1 and at the end. EngineError when
    the aggregator fails: a process that no longer answers must end."""
    print(f"omnihvd aggregator at {aggregator.address}", flush=True)
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: asked.put(number))
    with running(aggregator, on_failure=lambda: asked.put(signal.SIGTERM)):
        while True:
            asked_for = asked.get()
            counts = aggregator.counts()
            print(", ".join(f"{name} {count}" for name, count in counts.items()), flush=True)
            if asked_for != signal.SIGUSR1:
                return


def add_options(parser: argparse.ArgumentParser, where: argparse._ActionsContainer) -> None:
    """Adds options of the command `omnihvd aggregator`. where: a group that allows one of them."""
    where.add_argument("--udp", metavar="HOST:PORT", help="for workers of omnihvd.inline")
    where.add_argument("--xdp", metavar="NIC", help="the same, in the kernel's receive path")
    past = "the same, in user space past the kernel's UDP"
    where.add_argument("--af-xdp", metavar="NIC", help=past)
    more = parser.add_argument_group("with all but --bind (docs/in-network.md)")
    more.add_argument("--port", type=int, default=PORT, help="with --xdp, --af-xdp (%(default)s)")
    more.add_argument("--group", default="", help="multicast address of results")
    more.add_argument("--jobs", type=int, default=16, help="at most (default: %(default)s)")
    more.add_argument("--slots", type=int, default=128, help="of a job (default: %(default)s)")


def asked_for(
    parser: argparse.ArgumentParser, args: argparse.Namespace, secret: str, host: str, port: int
) -> Aggregator:
    for option, most in (("port", 65535), ("jobs", 1024), ("slots", 65535)):
        if not 1 <= getattr(args, option) <= most:
            parser.error(f"--{option} {getattr(args, option)}: not from 1 to {most}")
    return Aggregator(
        secret,
        interface=args.xdp or args.af_xdp,
        af_xdp=bool(args.af_xdp),
        host=host,
        port=port,
        group=args.group,
        jobs=args.jobs,
        slots=args.slots,
    )
