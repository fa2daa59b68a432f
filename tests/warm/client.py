"""Stands where a script would: has a server run it, and ends as it does.

    python -ISs client.py SERVER'S-PROCESS ABSTRACT-SOCKET SCRIPT WORDS...

The server's environment must be the job's where a library reads it while it is imported, and its
namespaces must be this process's. Where they are not, this process starts Python by itself.
"""

# pathlib takes longer to import than all of this.
# ruff: noqa: PTH109, PTH115, PTH123, PTH208
import array
import json
import os
import signal
import socket
import sys

READ_EARLY = ("LD_", "PYTHON", "OMP_", "OPENBLAS_", "MKL_", "TF_", "TORCH_", "GLIBC_", "MALLOC_")
PER_JOB = ("PYTHONPATH", "TORCH_NCCL_ASYNC_ERROR_HANDLING")  # read late
FORWARDED = ("ABRT", "CONT", "HUP", "INT", "QUIT", "TERM", "USR1", "USR2")


def early(environment: dict) -> dict:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_EARLY) and name not in PER_JOB
    }


def alike(server: str) -> bool:
    """Whether the server can stand in for a Python that this process would start."""
    try:
        with open(f"/proc/{server}/environ", "rb") as file:
            pairs = os.fsdecode(file.read()).split("\0")
        kinds = os.listdir("/proc/self/ns")
        same = all(
            os.readlink(f"/proc/self/ns/{kind}") == os.readlink(f"/proc/{server}/ns/{kind}")
            for kind in kinds
        )
    except OSError:
        return False
    theirs = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return same and early(theirs) == early(os.environ)


def number(server: socket.socket) -> int:
    data = server.recv(8, socket.MSG_WAITALL)
    if len(data) < 8:
        raise SystemExit("the server of warm processes has ended")
    return int.from_bytes(data, "little")


def main() -> None:
    process, name, *words = sys.argv[1:]
    if not alike(process):
        os.execv(sys.executable, [sys.executable, *words])
    child, early_signals = 0, []

    def forward(signum: int, _: object) -> None:
        if child:
            os.kill(child, signum)
        else:
            early_signals.append(signum)

    for short in FORWARDED:
        signal.signal(getattr(signal, f"SIG{short}"), forward)
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"\0{name}")
    job = {
        "words": words,
        "folder": os.getcwd(),
        "cores": list(os.sched_getaffinity(0)),
        "environment": dict(os.environ),
    }
    streams = array.array("i", [0, 1, 2])
    data = json.dumps(job).encode() + b"\n"
    sent = server.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    server.sendall(data[sent:])
    child = number(server)
    for signum in early_signals:
        os.kill(child, signum)
    status = os.waitstatus_to_exitcode(number(server))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
