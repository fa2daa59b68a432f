"""MPICH as a peer. It lies in a folder of its own, as its programs have the names of Open MPI's:

pip install --prefix build/mpich mpich
export MPICH_HOME=build/mpich
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bench.lab import AGENT, Host
from benchmarks.bench.lab_processes import LabError

HOME = "MPICH_HOME"


def environment() -> dict[str, str]:
    """The environment of MPICH's ranks."""
    lib = str(_home() / "lib")
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [lib, os.environ.get("LD_LIBRARY_PATH")])),
        "MPI4PY_MPIABI": "mpich",
        "MPI4PY_LIBMPI": f"{lib}/libmpi.so.12",
    }


def mpiexec(words: Sequence[str], ranks: int) -> list[str]:
    """The command line for `ranks` ranks on this machine."""
    return [str(_home() / "bin" / "mpiexec"), "-np", str(ranks), *words]


def mpiexec_on(hosts: Sequence[Host], per_host: int, words: Sequence[str]) -> list[str]:
    """The command line over a lab's hosts, for the first host; ranks are numbered host by host."""
    placing = ",".join(f"{host.name}:{per_host}" for host in hosts)
    options = ["-launcher", "ssh", "-launcher-exec", AGENT, "-iface", "eth0", "-hosts", placing]
    return hosts[0].command(mpiexec([*options, *words], len(hosts) * per_host))


def _home() -> Path:
    home = os.environ.get(HOME)
    if not home or not Path(home, "bin", "mpiexec").exists():
        raise LabError(
            f"the backend mpich needs {HOME}, the folder of an MPICH: "
            "pip install --prefix build/mpich mpich"
        )
    return Path(home).resolve()
