"""Aggregators on XDP and AF_XDP sum between hosts, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdp_planes import HOST, PORT, WHY_NOT

from benchmarks.bench.lab import Lab, LabError
from omnihvd import engine

ROOT = Path(__file__).parents[2]
SECRET = "the secret of a test"
AF_XDP = 44


def no_af_xdp() -> str:
    try:
        socket.socket(AF_XDP, socket.SOCK_RAW).close()
    except OSError as why:
        return f"no AF_XDP here: {why}"
    return ""


pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
WHY_NO_AF_XDP = no_af_xdp()
PAST = pytest.param("--af-xdp", marks=pytest.mark.skipif(bool(WHY_NO_AF_XDP), reason=WHY_NO_AF_XDP))

# Sums are whole numbers below 2^24: exact in all arithmetics, in any order.
WORKER = """
import json, sys
import numpy as np
from omnihvd import inline
rank, ranks, session, host, arithmetic = *map(int, sys.argv[1:4]), *sys.argv[4:6]
dtype = np.int32 if arithmetic == "integer" else np.float32
def values(rank, count):
    blocks = np.arange(count) // 256
    keep = (blocks % 3 == rank % 3) | (blocks % 7 == 0)
    return np.where(keep, np.arange(count) % 4093 * (rank + 1) + 1, 0).astype(dtype)
of = {"rank": rank, "ranks": ranks, "session": session, "arithmetic": arithmetic}
with inline.Worker(host, **of) as worker:
    for count in (1, 0, 256, 300_001):
        for dense in (False, True):
            mine = values(rank, count)
            worker.sum(mine, dense)
            assert np.array_equal(mine, sum(values(r, count) for r in range(ranks))), count
    print(json.dumps(worker.stats()))
"""

ALONE = """
import sys
import numpy as np
from omnihvd import inline
of = {"rank": 0, "ranks": int(sys.argv[3]), "session": 5, "arithmetic": sys.argv[2]}
with inline.Worker(sys.argv[1], **of, patience_s=0.5, workers_patience_s=1.0) as worker:
    worker.sum(np.ones(300, np.int32))
"""

# Each sum takes less than its patience.
SHORT_SUMS = """
import sys
import numpy as np
from omnihvd import inline
with inline.Worker(sys.argv[1], rank=0, ranks=1, session=7, patience_s=1.0) as worker:
    for _ in range(40):
        worker.sum(np.ones(300, np.int32))
"""

COMPUTING = """
import sys, time
from omnihvd import inline
with inline.Worker(sys.argv[1], rank=0, ranks=1, session=6) as worker:
    print("joined", flush=True)
    time.sleep(60)
"""

LOCKS_LITTLE = """
import ctypes, os, resource, sys
PR_CAPBSET_DROP, CAP_IPC_LOCK = 24, 14
assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK) == 0
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

# Contributions that are too short, too long, and of a job that is not there.
STRANGER = """
import socket, sys
to = socket.socket(type=socket.SOCK_DGRAM)
head = bytes(8) + bytes([1])
for datagram in (head, head.ljust(33, bytes(1)), (head + bytes([0, 9])).ljust(32, bytes(1))):
    to.sendto(datagram, (sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    try:
        with Lab(4, rate=None) as made:
            yield made
    except LabError as why:
        pytest.skip(str(why))


@contextlib.contextmanager
def other_end(lab: Lab) -> Iterator[None]:
    """The aggregator's veth, with the program that it needs to take what XDP sends."""
    link = ["ip", "link", "set", "dev", "port-h0", "xdp"]
    program = ["obj", str(engine.LIBRARIES / "pass.bpf.o"), "sec", "xdp"]
    subprocess.run(lab.command([*link, *program]), check=True)
    try:
        yield
    finally:
        subprocess.run(lab.command([*link, "off"]), check=True)


def start(lab: Lab, host: int, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "OMNIHVD_SECRET": SECRET, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    # Its number, as numbered in the lab: signals to nsenter reach nobody.
    command = lab.hosts[host].command(
        ["sh", "-c", 'echo $$; exec "$@"', "sh", sys.executable, *arguments]
    )
    process = subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout
    process.number = process.stdout.readline().strip()  # type: ignore[attr-defined]
    return process


def aggregator(lab: Lab, *arguments: str) -> subprocess.Popen[str]:
    process = start(lab, 0, "-m", "omnihvd", "aggregator", *arguments)
    assert process.stdout and process.stderr
    assert process.stdout.readline().strip() == f"omnihvd aggregator at {HOST}:{PORT}", (
        process.stderr.read()
    )
    return process


def on_eth0(lab: Lab) -> str:
    show = lab.hosts[0].command(["ip", "-details", "link", "show", "dev", "eth0"])
    return subprocess.run(show, stdout=subprocess.PIPE, text=True, check=True).stdout


def end(lab: Lab, process: subprocess.Popen[str], number: int, host: int = 0) -> str:
    kill = ["kill", f"-{int(number)}", process.number]  # type: ignore[attr-defined]
    subprocess.run(lab.hosts[host].command(kill), check=True)
    output, _ = process.communicate(timeout=20)
    return output


def sums(lab: Lab, arithmetic: str, session: str) -> None:
    arguments = ["3", session, HOST, arithmetic]
    workers = [start(lab, 1 + r, "-c", WORKER, str(r), *arguments) for r in range(3)]
    for worker in workers:
        output, error = worker.communicate(timeout=60)
        assert worker.returncode == 0, error
        assert json.loads(output)["blocks"] > 0


def counted(output: str) -> dict[str, int]:
    return {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", output)}


def test_hosts_sum_through_the_program_which_goes_with_its_process(lab: Lab) -> None:
    with other_end(lab):
        process = aggregator(lab, "--xdp", "eth0")
        assert "prog/xdp" in on_eth0(lab)
        sums(lab, "integer", "11")
        sums(lab, "fpisa", "15")
        counts = counted(end(lab, process, signal.SIGTERM))
    assert counts["results"] > 4 * 1172 and counts["impossible"] == counts["forged"] == 0
    assert "prog/xdp" not in on_eth0(lab)


@pytest.mark.skipif(bool(WHY_NO_AF_XDP), reason=WHY_NO_AF_XDP)
def test_hosts_sum_past_the_kernel(lab: Lab) -> None:
    process = aggregator(lab, "--af-xdp", "eth0")
    assert "prog/xdp" in on_eth0(lab)
    for session, arithmetic in (("12", "integer"), ("13", "float"), ("14", "fpisa")):
        sums(lab, arithmetic, session)
    stranger = start(lab, 1, "-c", STRANGER, HOST, str(PORT))
    assert stranger.communicate(timeout=20)[1] == ""
    counts = counted(end(lab, process, signal.SIGTERM))
    assert counts["short"] == counts["long"] == counts["other_job"] == 1
    assert counts["results"] > 6 * 1172 and counts["impossible"] == counts["forged"] == 0
    assert counts["dropped"] == 0
    assert "prog/xdp" not in on_eth0(lab)


@pytest.mark.skipif(bool(WHY_NO_AF_XDP), reason=WHY_NO_AF_XDP)
def test_too_little_memory_to_lock_is_named(lab: Lab) -> None:
    command = ["-m", "omnihvd", "aggregator", "--af-xdp", "eth0"]
    process = start(lab, 0, "-c", LOCKS_LITTLE, *command)
    _, error = process.communicate(timeout=20)
    said = "No buffer space available: raise ulimit -l, or give CAP_IPC_LOCK"
    assert process.returncode == 1 and said in error.splitlines()[-1]


def test_results_that_the_other_end_of_veth_does_not_take_are_named(lab: Lab) -> None:
    process = aggregator(lab, "--xdp", "eth0")
    _, error = start(lab, 1, "-c", ALONE, HOST, "integer", "1").communicate(timeout=60)
    end(lab, process, signal.SIGTERM)
    assert "sends results, but none arrives" in error.splitlines()[-1]


def test_a_group_that_is_blocked_is_named(lab: Lab) -> None:
    """Though repeated results come: they go to their worker alone."""

    def flood(state: str) -> None:
        link = ["ip", "link", "set", "dev", "port-h1", "type", "bridge_slave"]
        subprocess.run(lab.command([*link, "mcast_flood", state]), check=True)

    flood("off")
    try:
        with other_end(lab):
            process = aggregator(lab, "--xdp", "eth0")
            _, error = start(lab, 1, "-c", SHORT_SUMS, HOST).communicate(timeout=60)
            end(lab, process, signal.SIGTERM)
    finally:
        flood("on")
    assert "sends results, but none arrives" in error.splitlines()[-1]


def test_a_rank_beside_the_program_is_told_so(lab: Lab) -> None:
    """Its contributions come over the loopback, which has no program."""
    process = aggregator(lab, "--xdp", "eth0")
    _, error = start(lab, 0, "-c", ALONE, HOST, "integer", "1").communicate(timeout=60)
    end(lab, process, signal.SIGTERM)
    assert "the datagrams of this rank do not pass the interface" in error.splitlines()[-1]


@pytest.mark.parametrize("option", ["--xdp", PAST])
def test_a_worker_that_does_not_come_is_named(lab: Lab, option: str) -> None:
    process = aggregator(lab, option, "eth0")
    _, error = start(lab, 1, "-c", ALONE, HOST, "integer", "2").communicate(timeout=60)
    end(lab, process, signal.SIGTERM)
    assert "it waits for rank 1. If they have ended" in error.splitlines()[-1]


@pytest.mark.parametrize("option", ["--xdp", PAST])
def test_a_job_keeps_its_place_until_it_is_killed(lab: Lab, option: str) -> None:
    process = aggregator(lab, option, "eth0", "--jobs", "1")
    silent = start(lab, 1, "-c", COMPUTING, HOST)
    assert silent.stdout and silent.stdout.readline() == "joined\n"
    with other_end(lab):
        other = start(lab, 2, "-c", ALONE, HOST, "integer", "1")
        assert "(--jobs), and none of them has ended" in other.communicate(timeout=60)[1]
        end(lab, silent, signal.SIGKILL, host=1)
        other = start(lab, 2, "-c", ALONE, HOST, "integer", "1")
        _, error = other.communicate(timeout=60)
    end(lab, process, signal.SIGTERM)
    assert other.returncode == 0, error


@pytest.mark.parametrize("arithmetic", ["float", "natural"])
def test_numbers_that_the_kernel_cannot_add_are_refused(lab: Lab, arithmetic: str) -> None:
    process = aggregator(lab, "--xdp", "eth0")
    _, error = start(lab, 1, "-c", ALONE, HOST, arithmetic, "1").communicate(timeout=60)
    end(lab, process, signal.SIGTERM)
    assert "refuses this job: it does not add such numbers" in error.splitlines()[-1]


@pytest.mark.parametrize("option", ["--xdp", PAST])
def test_a_killed_aggregator_leaves_no_program(lab: Lab, option: str) -> None:
    process = aggregator(lab, option, "eth0")
    assert "prog/xdp" in on_eth0(lab)
    end(lab, process, signal.SIGKILL)
    assert "prog/xdp" not in on_eth0(lab)


@pytest.mark.parametrize("option", ["--xdp", PAST])
def test_an_interface_that_will_not_do_is_named(lab: Lab, option: str) -> None:
    def said(interface: str) -> str:
        process = start(lab, 0, "-m", "omnihvd", "aggregator", option, interface)
        _, error = process.communicate(timeout=20)
        assert process.returncode == 1
        return error.splitlines()[-1]

    def ip(*arguments: str) -> None:
        subprocess.run(lab.hosts[0].command(["ip", "link", *arguments]), check=True)

    assert "there is no interface eth9 (see: ip link)" in said("eth9")
    if option == "--xdp":  # what both look at is looked at once
        ip("add", "down0", "type", "veth")
        assert "interface down0 is not up: ip link set down0 up" in said("down0")
        ip("set", "down0", "up")
        assert "interface down0 has no IPv4 address" in said("down0")
        ip("del", "down0")
    other = aggregator(lab, "--xdp", "eth0")
    assert "interface eth0 has another XDP program" in said("eth0")
    end(lab, other, signal.SIGTERM)
