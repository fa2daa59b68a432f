"""Message rate and bandwidth of the UCX transport between two processes.

    python benchmarks/transport.py                # shared memory and TCP on this machine
    python benchmarks/transport.py --via veth     # TCP between two network namespaces (root)

One process streams messages, 16 of them in flight, to another, which drops them unread. Time runs
from the first send to the arrival of the receiver's answer to the last message, by the sender's
clock. polling: both processes spin on progress(); waiting: they sleep whenever there is nothing to
do. Slices: of equal size, beside each other in memory. GB/s are 10^9 bytes of messages, the median
of --repeats samples with the smallest and the largest; GB per CPU second is the best sample's bytes
over the processor time of both processes. --json keeps all samples. The payload fits in the
processor's cache: what memory costs is not in these figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "build" / "tests")]
from _engine_tests.transport import Transport  # noqa: E402

from benchmarks.bench.lab import Lab  # noqa: E402

WINDOW = 16
TLS = {"shm": "posix,sysv,cma,self", "tcp": "tcp,self", "veth": "tcp,self"}


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def take_message(transport: Transport, sleep: bool) -> bytes:
    while not (messages := transport.take_messages()):
        if not transport.progress() and sleep:
            transport.wait(1000)
        if failures := transport.take_failures():
            raise RuntimeError(failures[0][1])
    return messages[0]


def serve() -> None:
    """A process of the benchmark: commands and answers are JSON lines."""
    transport = Transport.ucx()
    print(json.dumps(transport.address().hex()), flush=True)
    peer = transport.connect(bytes.fromhex(json.loads(input())))
    for line in sys.stdin:
        job = json.loads(line)
        cpu, begin = cpu_seconds(), time.perf_counter()
        if job["role"] == "send":
            transport.stream(peer, job["size"], job["slices"], job["count"], WINDOW, job["sleep"])
            take_message(transport, job["sleep"])
        else:
            transport.absorb(job["count"], job["sleep"])
            transport.send(peer, [b"done"], 0)
            while not transport.take_sent():
                transport.progress()
        seconds = time.perf_counter() - begin
        print(json.dumps([seconds, cpu_seconds() - cpu, transport.describe()]), flush=True)


class Pair:
    """A sender and a receiver, each a process, connected to each other."""

    def __init__(self, prefixes: list[list[str]], tls: str) -> None:
        env = {"UCX_TLS": tls, **os.environ}
        command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
        self.processes = [
            subprocess.Popen(
                [*prefix, *command],
                env=env,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for prefix in prefixes
        ]
        addresses = [self.read(process) for process in self.processes]
        for process, address in zip(self.processes, reversed(addresses)):
            self.write(process, address)

    def write(self, process: subprocess.Popen[str], value: object) -> None:
        assert process.stdin
        process.stdin.write(json.dumps(value) + "\n")
        process.stdin.flush()

    def read(self, process: subprocess.Popen[str]) -> Any:
        assert process.stdout
        line = process.stdout.readline()
        if not line:
            raise SystemExit("a process of the benchmark ended early; its message is above")
        return json.loads(line)

    def run(self, size: int, slices: int, count: int, sleep: bool) -> dict[str, Any]:
        sender, receiver = self.processes
        job = {"size": size, "slices": slices, "count": count, "sleep": sleep}
        self.write(receiver, {**job, "role": "receive"})
        self.write(sender, {**job, "role": "send"})
        seconds, cpu, described = self.read(sender)
        _, receiver_cpu, _ = self.read(receiver)
        return {"seconds": seconds, "cpu": cpu + receiver_cpu, "transport": described}

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin
            process.stdin.close()
        for process in self.processes:
            process.wait(10)


@contextlib.contextmanager
def pair(via: str) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        prefixes: list[list[str]] = [[], []]
        if via == "veth":
            lab = stack.enter_context(Lab(2, rate=None))
            prefixes = [host.command([]) for host in lab.hosts]
        made = Pair(prefixes, TLS[via])
        stack.callback(made.close)
        yield made


def measure(via: str, shapes: list[tuple[int, int]], megabytes: int, repeats: int) -> list[Any]:
    results = []
    with pair(via) as processes:
        for size, slices in shapes:
            count = max(50, min(100_000, megabytes * 1_000_000 // size))
            job = {"size": size, "slices": slices, "count": count}
            for mode in ("polling", "waiting"):
                processes.run(size, slices, count // 10, mode == "waiting")  # warm
                samples = [
                    processes.run(size, slices, count, mode == "waiting") for _ in range(repeats)
                ]
                results.append({**job, "via": via, "mode": mode, "samples": samples})
                rates = [size * count / sample["seconds"] for sample in samples]
                rate = statistics.median(rates)
                per_cpu = max(size * count / sample["cpu"] for sample in samples)
                print(
                    f"{via:5} {mode:8} {size:8} {slices:6}   {rate / size:10.0f}   "
                    f"{rate / 1e9:6.2f} [{min(rates) / 1e9:5.2f}, {max(rates) / 1e9:5.2f}]   "
                    f"{per_cpu / 1e9:8.2f}",
                    flush=True,
                )
    return results


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--via", nargs="+", choices=TLS, default=["shm", "tcp"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[4096, 57344, 65536, 1 << 20])
    parser.add_argument("--slices", type=int, default=1, help="of each message")
    parser.add_argument("--megabytes", type=int, default=1024, help="moved per sample")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    print("via   mode        bytes slices   messages/s   GB/s   [  min,   max]   GB/CPU-s")
    shapes = [(size, args.slices) for size in args.sizes]
    results = [r for via in args.via for r in measure(via, shapes, args.megabytes, args.repeats)]
    if args.json:
        machine = {"cpus": os.cpu_count(), "kernel": platform.release()}
        report = {"machine": machine, "window": WINDOW, "results": results}
        args.json.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
