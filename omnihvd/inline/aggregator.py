"""`omnihvd aggregator --udp HOST:PORT`, `--xdp INTERFACE`: an aggregator in the data path."""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Iterator
from types import ModuleType

from omnihvd import engine
from omnihvd.inline import PORT

GROUP = "239.255.77.1"  # of the addresses that stay in one organisation
MISSING = (
    "omnihvd was built without its XDP program ({why}): install clang and libbpf's headers "
    "(Debian: apt install clang libbpf-dev), and build omnihvd again; --udp HOST:PORT needs "
    "neither"
)


class Aggregator:
    """Sums for jobs that know the secret, until stop().

    interface: makes the sums in its receive path (XDP), which takes root; results go to the IPv4
    multicast address `group`. None: at a socket on `host`; without a group, results go to each
    worker. port 0: any free one. Raises EngineError.
    """

    def __init__(
        self,
        secret: str,
        *,
        interface: str | None = None,
        host: str = "",
        port: int = PORT,
        group: str = "",
        jobs: int = 4,
        slots: int = 128,
    ) -> None:
        self.plane = None
        given = {"port": port, "group": group, "jobs": jobs, "slots": slots}
        if interface is not None:
            given["group"] = group or GROUP
            xdp = xdp_module()
            host = xdp.interface_address(interface)
            program = str(engine.LIBRARIES / "aggregator.bpf.o")
            self.plane = xdp.Plane(object=program, interface=interface, host=host, **given)
        pointer = self.plane.pointer() if self.plane else 0
        path = engine.inline_path
        self.server = path.Server(secret=secret, host=host, plane=pointer, **given)  # type: ignore
        self.address = f"{host}:{self.server.port}"

    def run(self) -> None:
        self.server.run()

    def stop(self) -> None:
        self.server.stop()

    def counts(self) -> dict[str, int]:
        """What became of contributions: {"taken", "results", "answers", ...: number}."""
        return self.plane.counts() if self.plane else self.server.counts()


def xdp_module() -> ModuleType:
    """Raises EngineError: this build has none."""
    try:
        return importlib.import_module("omnihvd.inline._xdp")
    except ImportError as why:
        raise engine.EngineError(MISSING.format(why=why)) from why


@contextlib.contextmanager
def running(aggregator: Aggregator) -> Iterator[Aggregator]:
    """In a thread."""
    thread = threading.Thread(target=aggregator.run)
    thread.start()
    try:
        yield aggregator
    finally:
        aggregator.stop()
        thread.join()


def serve(aggregator: Aggregator) -> None:
    """Until SIGINT or SIGTERM; SIGUSR1 and the end say what became of contributions."""
    print(f"omnihvd aggregator at {aggregator.address}", flush=True)
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with running(aggregator):
        while True:
            number = signal.sigwait(signals)
            counts = aggregator.counts()
            print(", ".join(f"{name} {count}" for name, count in counts.items()), flush=True)
            if number != signal.SIGUSR1:
                return
