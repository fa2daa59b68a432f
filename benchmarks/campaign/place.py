"""Where a job runs: in its own namespaces if it may make them, and what may not be left there."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
from pathlib import Path

PR_SET_PDEATHSIG = 1
CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWIPC = 0x20000, 0x40000000, 0x08000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
SHM = Path("/dev/shm")


# Tells what isolate() needs: a container's root may make no namespaces, or iptables is missing.
TRIAL = "unshare --mount --net --ipc iptables -w -t raw -L"


def end_with_parent(number: int) -> None:
    """This process gets that signal when the thread that forked it ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def can_isolate() -> bool:
    try:
        return not subprocess.run(TRIAL.split(), capture_output=True, timeout=10).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False


def isolate(memory_bytes: int, loss: float) -> None:
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
        rule = f"-w -t raw -A PREROUTING -p udp -m statistic --mode random --probability {loss}"
        subprocess.run(["iptables", *rule.split(), "-j", "DROP"], check=True, timeout=10)


def set_link(up: bool) -> None:
    """The job's only link."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP if up else 0))


def lost_frames() -> int:
    command = ["iptables", "-w", "-t", "raw", "-vnxL", "PREROUTING"]
    lines = subprocess.run(command, check=True, timeout=10, capture_output=True, text=True).stdout
    return sum(int(line.split()[0]) for line in lines.splitlines() if " DROP " in line)


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
