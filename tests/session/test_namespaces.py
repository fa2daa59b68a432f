"""Containers of one host that share some namespaces and not others, in all combinations: sums are
right, and nobody waits for a wake-up that cannot come."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bench.lab import Host, Lab, LabError

pytestmark = [pytest.mark.root, pytest.mark.timeout(90)]

SUMS = 10
SECRET = "the secret of a test"


@pytest.fixture
def lab() -> Iterator[Lab]:
    try:
        with Lab(2, rate=None) as lab:
            yield lab
    except LabError as error:
        pytest.skip(str(error))


def contained(lab: Lab, host: Host, apart: Sequence[str], argv: Sequence[str]) -> list[str]:
    """argv with the network of a host, in a container that shares all else but what is apart."""
    words = ["unshare", "--mount", "--kill-child", "--fork"]
    words += ["--ipc"] * ("ipc" in apart) + ["--pid", "--mount-proc"] * ("pid" in apart)
    own_memory = "mount -t tmpfs tmpfs /dev/shm && " * ("shm" in apart)
    words += ["sh", "-c", own_memory + 'exec "$@"', "sh", *argv]
    return lab.command(["nsenter", "-t", str(host.keeper), "-n", *words])


def end(process: subprocess.Popen[str]) -> None:
    """Its own children end with the lab."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe:
                pipe.close()
    process.wait()


class Ranks:
    """Processes of over_pipes.py; their exchanges are served here."""

    def __init__(self, commands: Sequence[Sequence[str]], **environment: str) -> None:
        pipe: Any = subprocess.PIPE
        self.processes = [
            subprocess.Popen(
                command, env={**os.environ, **environment}, stdin=pipe, stdout=pipe, text=True
            )
            for command in commands
        ]

    def hear(self) -> list[str]:
        said = []
        for rank, process in enumerate(self.processes):
            assert process.stdout
            said.append(process.stdout.readline().strip())
            assert said[-1], f"rank {rank} has ended"
        return said

    def say(self, line: str) -> None:
        for process in self.processes:
            assert process.stdin
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def seconds(self) -> float:
        """The slowest sum's."""
        for _ in range(3):
            self.say(",".join(self.hear()))
        return max(map(float, self.hear()))

    def end(self) -> None:
        for process in self.processes:
            end(process)


def rank_command(rank: int, size: int) -> list[str]:
    program = Path(__file__).with_name("over_pipes.py")
    return [sys.executable, str(program), str(rank), str(size), str(SUMS)]


def test_every_rank_in_another_combination(lab: Lab) -> None:
    """So that the pairs differ in every combination, too."""
    kinds = [
        (host, [name for name, is_apart in zip(("ipc", "pid", "shm"), bits) if is_apart])
        for host in lab.hosts
        for bits in itertools.product((False, True), repeat=3)
    ]
    ranks = Ranks(
        [
            contained(lab, host, apart, rank_command(rank, len(kinds)))
            for rank, (host, apart) in enumerate(kinds)
        ]
    )
    try:
        assert ranks.seconds() < 0.5 * SUMS
    finally:
        ranks.end()


def as_user(user: int, argv: Sequence[str]) -> list[str]:
    """argv as another user, who may read root's files and no more."""
    words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return [*words, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", *argv]


def test_ranks_of_different_users() -> None:
    """They may not open each other's shared memory."""
    if subprocess.run(as_user(1234, ["true"]), capture_output=True).returncode:
        pytest.skip("cannot start a process as another user")
    ranks = Ranks([as_user(1234 + rank, rank_command(rank, 3)) for rank in range(3)])
    try:
        assert ranks.seconds() < 0.5 * SUMS
    finally:
        ranks.end()


def test_an_aggregator_with_another_network(lab: Lab) -> None:
    near, far = lab.hosts
    server = subprocess.Popen(
        contained(
            lab,
            far,
            [],
            [sys.executable, "-m", "omnihvd", "aggregator", "--bind", f"{far.address}:7000"],
        ),
        env={**os.environ, "OMNIHVD_SECRET": SECRET},
        stdout=subprocess.PIPE,
        text=True,
    )
    ranks = None
    try:
        assert server.stdout and ":7000" in server.stdout.readline()
        ranks = Ranks(
            [contained(lab, near, [], rank_command(rank, 2)) for rank in range(2)],
            OMNIHVD_SECRET=SECRET,
            OMNIHVD_AGGREGATORS=f"{far.address}:7000",
        )
        assert ranks.seconds() < 0.5 * SUMS
    finally:
        end(server)
        if ranks:
            ranks.end()


READ_ONLY = "mount -t tmpfs -o ro tmpfs /dev/shm"
# There is room for UCX's queue, and not for its receive buffers.
NO_ROOM = "mount -t tmpfs -o size=16m tmpfs /dev/shm"


@pytest.mark.parametrize(
    "lack, warns",
    [
        (READ_ONLY, False),
        (READ_ONLY + " && echo 0 > /proc/sys/kernel/shmmni", True),
        (NO_ROOM, False),
    ],
)
def test_ranks_without_shared_memory(lack: str, warns: bool, tmp_path: Path) -> None:
    """UCX itself fails where it cannot open it."""
    words = [
        "env",
        "-u",
        "UCX_TLS",
        "unshare",
        "--mount",
        "--ipc",
        "--kill-child",
        "--fork",
        "sh",
        "-c",
    ]
    commands = [
        [*words, f'{lack} && exec "$@" 2> {tmp_path}/{rank}', "sh", *rank_command(rank, 2)]
        for rank in range(2)
    ]
    ranks = Ranks(commands)
    try:
        assert ranks.seconds() < 0.5 * SUMS
        for rank in range(2):
            said = (tmp_path / str(rank)).read_text()
            assert ("ranks of this host use TCP" in said) == warns, said
    finally:
        ranks.end()


NAMES = """
import ctypes, os
libc, made = ctypes.CDLL(None), 0x100
watch = libc.inotify_init1(os.O_NONBLOCK)
libc.inotify_add_watch(watch, b"/dev/shm", made)
from omnihvd.engine import session
engine = session.Engine(session.settings_from_environment())
print(engine.describe_transport(), "; free:", os.statvfs("/dev/shm").f_bavail)
try:
    print("made:", os.read(watch, 4096))
except BlockingIOError:
    print("made: nothing")
"""


def test_ucx_gives_its_memory_no_names() -> None:
    """A process that is killed after it has made one would leave the memory behind."""
    size = 64 << 20
    own = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    words = ["env", "-u", "UCX_TLS", "unshare", "--mount", "sh", "-c", own, "sh"]
    done = subprocess.run(
        [*words, sys.executable, "-c", NAMES], capture_output=True, text=True, timeout=60
    )
    assert "made: nothing" in done.stdout and "posix/memory" in done.stdout, done
    assert int(done.stdout.split("free:")[1].split()[0]) < size // 4096 - 1000, done  # it has some
