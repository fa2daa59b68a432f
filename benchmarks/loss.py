"""Sums over a network that loses frames: UDP beside UCX over TCP, on hosts with shaped links.

    sudo python benchmarks/loss.py [--hosts 4] [--rate 1gbit] [--megabytes 100]

Each host drops a share of the frames that it receives (iptables' `statistic`), one by one. Links
pass no joined segments (gso_max_segs 1), so a frame is a packet with every transport. The engine
sums float32 tensors with a random share of non-zero blocks, and each sum is verified in closed
form. A sample is the slowest rank's time. Transports take turns at each point:

  udp         OMNIHVD_TRANSPORT=udp
  tcp bbr     UCX over TCP with BBR as congestion control (this kernel's default)
  tcp cubic   the same with CUBIC, which most Linux hosts have; where this machine does not allow it
              in network namespaces (net.ipv4.tcp_allowed_congestion_control), tcp reno

`joined`: the same without loss, with joined segments, as networks are without this benchmark.
`share`: what one TCP stream and one flow of the UDP transport, between the same two hosts and at
the same time, carry; seven times. Writes results/loss.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.lab import Host, Lab  # noqa: E402

RESULTS = Path(__file__).parent / "results"
LOSSES = (0.0, 0.0001, 0.001, 0.01)
DENSITIES = (1.0, 0.1, 0.01)
RUNS = {1.0: 2, 0.1: 5, 0.01: 11}  # of each point, besides a first
BLOCK = 256
SHARE_S, SHARES = 6.0, 7
MESSAGE, WINDOW = 57344, 64  # bytes; messages under way


def tensor(rank: int, count: int, density: float) -> np.ndarray:
    blocks = -(-count // BLOCK)
    keep = np.random.default_rng(rank).permutation(blocks) < round(density * blocks)
    values = (np.arange(count, dtype=np.float32) % 1009) + rank + 1
    return np.where(np.repeat(keep, BLOCK)[:count], values, 0).astype(np.float32)


def rank_main(rank: int, ranks: int, count: int) -> None:
    """Runs on each rank: exchanges over its pipes, then sums on command."""
    from omnihvd.engine import session

    def allgather(mine: bytes) -> list[bytes]:
        print(mine.hex(), flush=True)
        return [bytes.fromhex(word) for word in input().split(",")]

    group = session.Engine(session.settings_from_environment()).join(rank, ranks, allgather)
    made: dict[float, tuple[np.ndarray, np.ndarray]] = {}
    for line in sys.stdin:
        density = float(line)
        if density not in made:
            made.clear()
            parts = (tensor(r, count, density) for r in range(ranks))
            made[density] = (tensor(rank, count, density), sum(parts, np.zeros(count, np.float32)))
        given, expected = made[density]
        buffer = given.copy()
        print("ready", flush=True)
        input()
        start = time.perf_counter()
        group.allreduce(buffer, buffer)
        seconds = time.perf_counter() - start
        if not np.array_equal(buffer, expected):
            raise SystemExit(f"a wrong sum on rank {rank}")
        counts = session.stats()["datagrams"]
        print(json.dumps([seconds, counts["sent"], counts["again"]]), flush=True)


def share_main(seconds: float) -> None:
    """One end of a flow: tells its address, hears the other's and when to begin, says what came."""
    from omnihvd.engine import transport

    end = transport.LinkEnd(MESSAGE)
    print(end.address().hex(), flush=True)
    peer = end.connect(bytes.fromhex(input()))
    sends = input() == "send"
    begun, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        while sends and begun < end.sent + WINDOW:
            end.send(peer)
            begun += 1
        end.step(timeout_ms=20)
    print(end.received * MESSAGE / seconds, flush=True)
    sys.stdin.read()  # the other end shall not see this one go


def share(lab: Lab, congestion: str) -> dict[str, float]:
    """Bytes/s of payload, of a TCP stream and of UDP beside it."""
    ends = []
    for host in lab.hosts[:2]:
        on_host(host, "sysctl", "-q", "-w", f"net.ipv4.tcp_congestion_control={congestion}")
        program = [sys.executable, str(Path(__file__).resolve()), "--share", str(SHARE_S)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMNIHVD_TRANSPORT": "udp"}
        pipe = subprocess.PIPE
        ends.append(
            subprocess.Popen(host.command(program), env=env, stdin=pipe, stdout=pipe, text=True)
        )
    addresses = [say(end) for end in ends]
    for end, address in zip(ends, reversed(addresses)):
        say(end, address, hear=False)
    for end, word in zip(ends, ("send", "receive")):
        say(end, word, hear=False)
    tcp = lab.raw_rate(0, 1, SHARE_S)
    udp = float(say(ends[1]))
    for end in ends:
        end.kill()
        end.wait()
    return {"tcp": tcp, "udp": udp, "of_both": udp / (tcp + udp)}


def say(process: subprocess.Popen[str], word: str = "", hear: bool = True) -> str:
    assert process.stdin and process.stdout
    if word:
        process.stdin.write(word + "\n")
        process.stdin.flush()
    return process.stdout.readline().strip() if hear else ""


class Ranks:
    """One on each host, with one transport."""

    def __init__(self, lab: Lab, transport: str, congestion: str, megabytes: int) -> None:
        env = {**os.environ, "OMNIHVD_TRANSPORT": transport, "OMNIHVD_WAY": "stream"}
        program = [sys.executable, str(Path(__file__).resolve()), "--rank"]
        size, count = len(lab.hosts), megabytes * 250_000
        self.processes = []
        for rank, host in enumerate(lab.hosts):
            setting = f"net.ipv4.tcp_congestion_control={congestion}"
            on_host(host, "sysctl", "-q", "-w", setting)
            self.processes.append(
                subprocess.Popen(
                    host.command([*program, *map(str, (rank, size, count))]),
                    env={**env, "PYTHONPATH": str(ROOT)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for _ in range(3):
            self.say(",".join(self.hear()))

    def hear(self) -> list[str]:
        lines = [process.stdout.readline().strip() for process in self.processes if process.stdout]
        if not all(lines):
            raise SystemExit("a rank has ended")
        return lines

    def say(self, line: str) -> None:
        for process in self.processes:
            assert process.stdin
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def sum(self, density: float) -> tuple[float, int, int]:
        """Seconds of the slowest rank; datagrams sent so far, and again."""
        self.say(str(density))
        self.hear()
        self.say("go")
        answers = [json.loads(line) for line in self.hear()]
        return max(a[0] for a in answers), sum(a[1] for a in answers), sum(a[2] for a in answers)


def on_host(host: Host, *argv: str) -> None:
    subprocess.run(host.command(argv), check=True, capture_output=True)


def by_loss(host: Host) -> str:
    """Congestion control that takes each loss for congestion, as far as it may be chosen here."""
    try:
        on_host(host, "sysctl", "-q", "-w", "net.ipv4.tcp_congestion_control=cubic")
    except subprocess.CalledProcessError:
        return "reno"
    return "cubic"


def set_loss(lab: Lab, loss: float) -> None:
    for host in lab.hosts:
        on_host(host, "iptables", "-t", "raw", "-F", "PREROUTING")
        if loss:
            rule = ["-t", "raw", "-A", "PREROUTING", "-i", "eth0", "-m", "statistic", "--mode"]
            on_host(host, "iptables", *rule, "random", "--probability", str(loss), "-j", "DROP")


def set_joined(lab: Lab, joined: bool) -> None:
    for host in lab.hosts:
        on_host(host, "ip", "link", "set", "eth0", "gso_max_segs", "65535" if joined else "1")


def measure(sets: dict[str, Ranks], density: float) -> dict[str, Any]:
    """By transport: seconds, their median, and the share of datagrams that were sent again."""
    sums: dict[str, list[tuple[float, int, int]]] = {name: [] for name in sets}
    for _ in range(1 + RUNS.get(density, 5)):
        for name, ranks in sets.items():
            sums[name].append(ranks.sum(density))
    found = {}
    for name, ((_, sent, again), *rest) in sums.items():
        seconds = [one[0] for one in rest]
        found[name] = {
            "seconds": seconds,
            "median": statistics.median(seconds),
            "again": (rest[-1][2] - again) / max(1, rest[-1][1] - sent),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--losses", type=float, nargs="+", default=LOSSES)
    parser.add_argument("--densities", type=float, nargs="+", default=DENSITIES)
    parser.add_argument("--only-share", action="store_true", help="of a link; the rest as it was")
    parser.add_argument("--json", type=Path, default=RESULTS / "loss.json")
    args = parser.parse_args()
    points: list[dict[str, Any]] = []
    results: dict[str, Any] = {
        "configuration": {**vars(args), "json": None},
        "kernel": os.uname().release,
        "cores": os.cpu_count(),
        "points": points,
    }
    if args.only_share:
        results = json.loads(args.json.read_text())
    with Lab(args.hosts, args.rate) as lab:
        controls = ("bbr", by_loss(lab.hosts[0]))
        results["share"] = {}
        for name in controls:
            found = results["share"][name] = [share(lab, name) for _ in range(SHARES)]
            text = ", ".join(f"{one['of_both']:.0%}" for one in found)
            print(f"UDP has {text} of a link beside TCP with {name}", flush=True)
        if not args.only_share:
            sets = {"udp": Ranks(lab, "udp", "bbr", args.megabytes)}
            for name in controls:
                sets[f"tcp {name}"] = Ranks(lab, "ucx", name, args.megabytes)
        for density in () if args.only_share else args.densities:
            for joined, loss in [(True, 0.0)] + [(False, loss) for loss in args.losses]:
                set_joined(lab, joined)
                set_loss(lab, loss)
                found = measure(sets, density)
                points.append({"density": density, "joined": joined, "loss": loss, **found})
                text = ", ".join(
                    f"{name} {1e3 * one['median']:.1f} ms ({one['again']:.2%} again)"
                    for name, one in found.items()
                )
                print(f"density {density}, {'joined, ' * joined}loss {loss}: {text}", flush=True)
    args.json.write_text(json.dumps({**results, **machine()}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(*map(int, sys.argv[2:]))
    elif sys.argv[1:2] == ["--share"]:
        share_main(float(sys.argv[2]))
    else:
        main()
