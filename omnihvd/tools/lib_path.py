"""`omnihvd lib-path`: what to write into LD_PRELOAD, for programs without Python."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys

from omnihvd import engine
from omnihvd.intercept import mpi_abi


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="omnihvd lib-path",
        description="Prints the path of the library that intercepts MPI_Allreduce or "
        "ncclAllReduce: mpirun -x LD_PRELOAD=$(omnihvd lib-path mpi) ...",
    )
    parser.add_argument("library", nargs="?", default="mpi", choices=["mpi", "nccl"])
    of_abi = "MPI of the program; default: that of Python's environment"
    parser.add_argument("--abi", choices=list(mpi_abi.LIBRARIES), help=of_abi)
    chosen = parser.parse_args(arguments)
    library = chosen.library
    if library == "mpi":
        path = mpi_abi.shims().get(chosen.abi) if chosen.abi else mpi_abi.shim()
    else:
        path = engine.NCCL_SHIM if engine.NCCL_SHIM.exists() else None
    if path is None:
        print(f"omnihvd lib-path: {_why_not(library, chosen.abi)}", file=sys.stderr)
        return 1
    if set(str(path)) & {" ", ":"}:
        print(
            "omnihvd lib-path: LD_PRELOAD takes no path with a space or a colon: link the folder "
            f"{engine.LIBRARIES} to one without, and name {path.name} there",
            file=sys.stderr,
        )
        return 1
    print(path)
    folder, ldd = engine.ucx_folder(), shutil.which("ldd")
    needed = subprocess.run([ldd, path], capture_output=True, text=True).stdout if ldd else ""
    if folder and "libucp.so.0 => not found" in needed:
        print(f"it needs UCX, too: LD_LIBRARY_PATH={folder}", file=sys.stderr)
    return 0


def _why_not(library: str, abi: str | None) -> str:
    if library == "nccl":
        return "omnihvd was built without its NCCL shim: install it again"
    if not mpi_abi.shims():
        return (
            "there was no MPI when omnihvd was built; install it again where mpicxx is on the PATH"
        )
    if abi:
        return (
            f"this omnihvd has no shim for {mpi_abi.NAMES[abi]}: install it again from source, "
            "with that MPI's mpicxx first on the PATH"
        )
    return (
        "there is no MPI in this environment that would tell which of "
        f"{', '.join(mpi_abi.shims())} the program has: name one with --abi"
    )
