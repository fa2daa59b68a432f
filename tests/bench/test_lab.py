"""The laboratory: hosts that share nothing but shaped links, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.bench import lab as lab_module  # noqa: E402
from benchmarks.bench.lab import Lab, LabError, run  # noqa: E402

PAYLOAD = 10_000_000

# argv: "receive", or the host to send to. Sends PAYLOAD bytes; the receiver answers with the count.
EXCHANGE = f"""
import socket, sys
if sys.argv[1] == "receive":
    listener = socket.create_server(("", 6000))
    print("ready", flush=True)
    stream, peer = listener.accept()
    total = 0
    while data := stream.recv(1 << 16):
        total += len(data)
    stream.sendall(str(total).encode())
else:
    stream = socket.create_connection((sys.argv[1], 6000))
    stream.sendall(bytes({PAYLOAD}))
    stream.shutdown(socket.SHUT_WR)
    print(stream.recv(64).decode())
"""


def output(command: list[str]) -> str:
    return run(command, stdout=subprocess.PIPE, timeout=60).stdout.strip()


@pytest.fixture(scope="module")
def pair():
    with Lab(2, rate="1gbit") as lab:
        yield lab


class TestHosts:
    pytestmark = pytest.mark.root

    def test_exchange_crosses_both_links(self, pair):
        h0, h1 = pair.hosts
        before = pair.traffic()
        python = [sys.executable, "-c", EXCHANGE]
        with subprocess.Popen(h1.command([*python, "receive"]), stdout=subprocess.PIPE) as receiver:
            assert receiver.stdout.readline() == b"ready\n"
            assert output(h0.command([*python, "h1"])) == str(PAYLOAD)
        (s0, r0), (s1, r1) = (
            (after.sent - then.sent, after.received - then.received)
            for then, after in zip(before, pair.traffic())
        )
        # The frames' headers add 4.6%; acknowledgements go the other way.
        assert PAYLOAD < s0 < 1.1 * PAYLOAD
        assert PAYLOAD < r1 < 1.1 * PAYLOAD
        assert s1 < 0.1 * PAYLOAD
        assert r0 < 0.1 * PAYLOAD

    def test_both_ends_are_shaped(self, pair):
        for command in (pair.command, *(host.command for host in pair.hosts)):
            assert " rate 1Gbit " in output(command(["tc", "qdisc", "show"]))

    def test_rate_holds_and_can_be_changed(self):
        with Lab(2, rate="400mbit") as lab:
            lab.set_rate("40mbit")
            start, before = time.perf_counter(), lab.traffic()[0].sent
            payload_rate = lab.raw_rate(seconds=0.5)
            elapsed, sent = time.perf_counter() - start, lab.traffic()[0].sent - before
        bucket = 128 * 1024
        assert 0 < payload_rate * 0.5 < sent <= 5e6 * elapsed + bucket

    def test_hosts_have_own_names_and_memory(self, pair):
        h0, h1 = pair.hosts
        assert output(h0.command(["hostname"])) == "h0"
        assert output(h1.command(["hostname"])) == "h1"
        run(h0.command(["touch", "/dev/shm/mine"]))
        assert "mine" in output(h0.command(["ls", "/dev/shm"]))
        assert "mine" not in output(h1.command(["ls", "/dev/shm"]))
        assert not Path("/dev/shm/mine").exists()
        ipc = {output(h.command(["readlink", "/proc/self/ns/ipc"])) for h in pair.hosts}
        assert len(ipc | {str(Path("/proc/self/ns/ipc").readlink())}) == 3

    def test_hosts_see_their_own_interfaces(self, pair):
        assert output(pair.hosts[0].command(["ls", "/sys/class/net"])).split() == ["eth0", "lo"]

    def test_commands_keep_the_working_directory(self, pair, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert output(pair.hosts[0].command(["pwd"])) == str(tmp_path)

    def test_labs_do_not_meet(self, pair):
        connect = (
            "import socket\n"
            "try:\n"
            "    socket.create_connection(('10.0.0.2', 6000), 1)\n"
            "except OSError as error:\n"
            "    print(type(error).__name__)\n"
        )
        python = [sys.executable, "-c", connect]
        assert output(pair.hosts[0].command(python)) == "ConnectionRefusedError"
        with Lab(1, rate=None) as other:  # has no 10.0.0.2: nobody answers
            assert output(other.hosts[0].command(python)) in ("OSError", "TimeoutError")

    def test_timeout_ends_the_command(self, pair):
        with pytest.raises(subprocess.TimeoutExpired):
            run(pair.hosts[0].command(["sleep", "987"]), timeout=0.5)
        commands = output(pair.hosts[0].command(["sh", "-c", "cat /proc/[0-9]*/cmdline"]))
        assert "sleep" in commands  # the hosts' own
        assert "987" not in commands


class TestMpi:
    pytestmark = pytest.mark.root

    def test_ranks_are_on_their_hosts_and_use_the_links(self, tmp_path):
        program = tmp_path / "program.py"
        program.write_text(
            "import socket\n"
            "import numpy\n"
            "from mpi4py import MPI\n"
            "comm = MPI.COMM_WORLD\n"
            "names = comm.gather(socket.gethostname())\n"
            "local = comm.Split_type(MPI.COMM_TYPE_SHARED).size\n"
            f"mine = numpy.full({PAYLOAD}, comm.rank, numpy.uint8)\n"
            "theirs = numpy.empty_like(mine)\n"
            "comm.Sendrecv(mine, (comm.rank + 4) % 8, recvbuf=theirs, source=(comm.rank + 4) % 8)\n"
            "assert (theirs == (comm.rank + 4) % 8).all()\n"
            "if comm.rank == 0:\n"
            "    print(*names, local)\n"
        )
        with Lab(4, rate="1gbit") as lab:
            done = lab.mpirun(
                [sys.executable, str(program)],
                ranks_per_host=2,
                stdout=subprocess.PIPE,
                timeout=60,
            )
            traffic = lab.traffic()
        assert done.stdout.split() == ["h0", "h0", "h1", "h1", "h2", "h2", "h3", "h3", "2"]
        for sent, received in traffic:
            assert 2 * PAYLOAD < sent < 2.5 * PAYLOAD
            assert 2 * PAYLOAD < received < 2.5 * PAYLOAD

    def test_scheduling_is_left_alone_unless_asked(self, pair):
        autogroup = Path("/proc/sys/kernel/sched_autogroup_enabled")
        before = autogroup.read_text() if autogroup.exists() else None
        assert "mpi_yield_when_idle" not in pair.mpirun_command(["true"])
        with Lab(1, rate=None, share_cores=True) as lab:
            assert before is None or autogroup.read_text().strip() == "0"
            command = lab.mpirun_command(["true"], ranks_per_host=100)
            assert command[command.index("mpi_yield_when_idle") + 1] == "1"
        assert before is None or autogroup.read_text() == before

    def test_failure_is_reported(self, pair):
        with pytest.raises(subprocess.CalledProcessError):
            pair.mpirun(["false"], timeout=60, stdout=subprocess.DEVNULL)


def holders(namespace: str) -> list[int]:
    """The processes of this machine that are in a network namespace."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "ns/net").readlink()) == namespace:
                found.append(int(process.name))
        except OSError:
            pass  # gone meanwhile
    return found


class TestCleanup:
    pytestmark = pytest.mark.root

    @pytest.mark.parametrize("end", ["exception", signal.SIGTERM, signal.SIGKILL])
    def test_nothing_stays(self, end):
        owner = (
            "import subprocess, sys, time\n"
            "from benchmarks.bench.lab import Lab\n"
            "with Lab(2) as lab:\n"
            "    h1 = lab.hosts[1]\n"
            "    for host in lab.hosts:\n"
            "        sleep = host.command(['sh', '-c', 'echo; exec sleep 600'])\n"
            "        job = subprocess.Popen(sleep, stdout=-1, start_new_session=True)\n"
            "        assert job.stdout.readline()\n"
            "        link = host.command(['readlink', '/proc/self/ns/net'])\n"
            "        print(subprocess.check_output(link, text=True).strip())\n"
            "    print('up', flush=True)\n"
            "    input()\n"
            "    raise RuntimeError('as a benchmark may')\n"
        )
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [sys.executable, "-c", owner], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        ) as process:
            *namespaces, up = (process.stdout.readline().strip() for _ in range(3))
            assert up == "up"
            assert all(len(holders(namespace)) >= 2 for namespace in namespaces)
            if end == "exception":
                process.stdin.write("\n")
            else:
                process.send_signal(end)
            _, errors = process.communicate(timeout=30)
        assert process.returncode == (1 if end == "exception" else -end)
        assert ("as a benchmark may" in errors) == (end == "exception")
        deadline = time.monotonic() + 10
        while any(map(holders, namespaces)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [holders(namespace) for namespace in namespaces] == [[], []]

    def test_close_waits_and_may_be_repeated(self):
        lab = Lab(1)
        link = output(lab.hosts[0].command(["readlink", "/proc/self/ns/net"]))
        assert holders(link)
        lab.close()
        assert not holders(link)
        lab.close()


class TestErrors:
    def test_not_root(self, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(LabError, match=r"needs root.*sudo"):
            Lab(2)

    def test_missing_tool(self, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(lab_module.shutil, "which", lambda tool: None if tool == "tc" else tool)
        with pytest.raises(LabError, match="needs tc: install the package iproute2"):
            Lab(2)

    def test_number_of_hosts(self):
        with pytest.raises(LabError, match="1 to 250 hosts, not 0"):
            Lab(0)

    @pytest.mark.root
    def test_bad_rate(self):
        with pytest.raises(LabError, match="fast"):
            Lab(2, rate="fast")
        with Lab(1, rate=None) as lab, pytest.raises(LabError, match="that have a rate"):
            lab.set_rate("1gbit")

    @pytest.mark.root
    def test_delay_is_had_or_refused(self):
        ping = (
            "import socket, time\n"
            "start = time.perf_counter()\n"
            "try:\n"
            "    socket.create_connection(('h1', 6000), 5)\n"
            "except ConnectionRefusedError:\n"
            "    print(time.perf_counter() - start)\n"
        )
        try:
            lab = Lab(2, delay="20ms")
        except LabError as error:
            assert "CONFIG_NET_SCH_NETEM" in str(error)
            return
        with lab:
            assert float(output(lab.hosts[0].command([sys.executable, "-c", ping]))) >= 0.04
