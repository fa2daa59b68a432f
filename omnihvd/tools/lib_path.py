"""`omnihvd lib-path`: what to write into LD_PRELOAD, for programs without Python."""

from __future__ import annotations

import argparse
import subprocess
import sys

from omnihvd import engine


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="omnihvd lib-path",
        description="Prints the path of the library that stands in for MPI_Allreduce or "
        "ncclAllReduce: LD_PRELOAD=$(omnihvd lib-path mpi) mpirun ...",
    )
    parser.add_argument("library", nargs="?", default="mpi", choices=["mpi", "nccl"])
    library = parser.parse_args(arguments).library
    path = {"mpi": engine.MPI_SHIM, "nccl": engine.NCCL_SHIM}[library]
    if not path.exists():
        why = "there was no MPI when omnihvd was built; " if library == "mpi" else ""
        remedy = "install it again" + " where mpicxx is on the PATH" * (library == "mpi")
        print(f"omnihvd lib-path: {path} was not built: {why}{remedy}", file=sys.stderr)
        return 1
    print(path)
    folder = engine.ucx_folder()
    needed = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    if folder and "libucp.so.0 => not found" in needed:
        print(f"it needs UCX, too: LD_LIBRARY_PATH={folder}", file=sys.stderr)
    return 0
