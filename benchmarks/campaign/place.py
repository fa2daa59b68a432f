"""Where a job runs: in its own namespaces if it may make them, and what may not be left there."""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import os
import re
import socket
import struct
import subprocess
from pathlib import Path

PR_SET_PDEATHSIG = 1
CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWIPC = 0x20000, 0x40000000, 0x08000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
SHM = Path("/dev/shm")
RANDOM = "-p udp -m statistic --mode random --probability"  # of iptables
SLOW = "1:2"  # a class of tc


# Tell what isolate() needs: a container's root may make no namespaces, or a command is missing.
TRIALS = [
    f"unshare --mount --net --ipc {command}"
    for command in ("iptables -w -t raw -L", "tc qdisc add dev lo root htb")
]


def end_with_parent(number: int) -> None:
    """This process gets that signal when the thread that forked it ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def refused() -> str:
    """A command that fails here although isolate() needs it; empty: none."""
    for trial in TRIALS:
        try:
            run(trial)
        except (OSError, subprocess.SubprocessError):
            return trial
    return ""


def log_to(folder: Path, rank: int) -> None:
    """This process is a rank, and writes there from now on."""
    log = os.open(folder / f"rank-{rank}", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable(2)


def isolate(memory_bytes: int, loss: float, late: float) -> None:
    """Gives this process its own network, /dev/shm of so many bytes, and System V memory."""
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    check(libc.unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC), "unshare")
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount /")
    options = f"size={memory_bytes}".encode()
    check(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, options), "mount /dev/shm")
    set_link(True)
    if loss:
        run(f"iptables -w -t raw -A PREROUTING {RANDOM} {loss} -j DROP")
    if late:  # a slow queue, which the other frames pass by
        run("tc qdisc add dev lo root handle 1: htb default 1")
        run("tc class add dev lo parent 1: classid 1:1 htb rate 100gbit burst 10m quantum 60000")
        run(f"tc class add dev lo parent 1: classid {SLOW} htb rate 20mbit quantum 60000")
        run(f"tc qdisc add dev lo parent {SLOW} pfifo limit 8")
        run(f"iptables -w -t mangle -A OUTPUT {RANDOM} {late} -j CLASSIFY --set-class {SLOW}")


def run(command: str) -> str:
    return subprocess.run(
        command.split(), check=True, timeout=10, capture_output=True, text=True
    ).stdout


def add_address(address: str) -> None:
    """One more of this machine's own."""
    if not address.startswith("127."):
        run(f"ip address add {address}/32 dev lo")


def set_link(up: bool) -> None:
    """The job's only link."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP if up else 0))


def lost_frames() -> int:
    lines = run("iptables -w -t raw -vnxL PREROUTING").splitlines()
    return sum(int(line.split()[0]) for line in lines if " DROP " in line)


def late_frames() -> tuple[int, int]:
    """How many the slow queue has let go, and how many it had no place for."""
    found = re.search(r"(\d+) pkt \(dropped (\d+)", run(f"tc -s class show dev lo classid {SLOW}"))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def left() -> set[str]:
    """Names of memory and sockets that somebody made."""
    files = {str(path) for path in SHM.iterdir()}
    segments = {
        f"System V memory {line.split()[1]}"
        for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    }
    sockets = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and ("omnihvd" in words[7] or "ucx" in words[7]):
            sockets.add(f"socket {words[7]}")
    return files | segments | sockets
