"""Finds the MPI of this process, loaded or not yet, and the MPI shim that matches it.

MPIs have one of a few binary interfaces (ABIs); each has a shim (csrc/CMakeLists.txt). A build from
source has one shim, for the MPI at build time. The wheel has all, and picks one here: by the MPI
that this process has loaded, else the one in Python's environment, else the dynamic loader's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from typing import NamedTuple

from omnihvd import engine

# The library's name by interface. Open MPI 4 and 5 share one; so do MPICH since 3.1, Intel MPI and
# other descendants.
LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH or Intel MPI"}
LOADED = ("/libmpi.so", "/libmpich.so")
LONGEST = 8192  # bytes of an MPI's version, of any MPI


class Mpi(NamedTuple):
    path: str  # of its library
    version: str  # "Open MPI v4.1.8", in its own words
    abi: str | None  # None: unknown to omnihvd


def shims() -> dict[str, Path]:
    """The shims of this build, by interface."""
    paths = {abi: engine.LIBRARIES / abi / "libomnihvd_mpi.so" for abi in LIBRARIES}
    return {abi: path for abi, path in paths.items() if path.exists()}


def shim() -> Path | None:
    """The shim for this process's MPI. None: there is no shim, or several and no MPI to decide."""
    built = shims()
    if len(built) <= 1:
        return next(iter(built.values()), None)
    mpi = find()
    return built.get(mpi.abi or "") if mpi else None


def of(library: str) -> Mpi:
    """Identifies a loaded MPI library, even before MPI_Init(). Raises OSError if it is no MPI."""
    loaded = ctypes.CDLL(library, os.RTLD_NOLOAD | os.RTLD_LAZY)
    text, length = ctypes.create_string_buffer(LONGEST), ctypes.c_int()
    try:
        loaded.MPI_Get_library_version(text, ctypes.byref(length))
    except AttributeError:
        raise OSError(f"{library} is no MPI") from None
    version = text.value.decode(errors="replace").partition("\n")[0].partition(",")[0]
    version = " ".join(version.replace("Version:", "").split())
    return Mpi(library, version, _abi(loaded, version))


def find() -> Mpi | None:
    """This process's MPI. Loads it if need be, without any other effect."""
    for path in filter(None, map(_loaded, LOADED)):
        return of(path)
    lib = Path(sys.prefix, "lib")
    names = [LIBRARIES[abi] for abi in _by_launcher()]
    for candidate in [*(str(lib / name) for name in names if (lib / name).exists()), *names]:
        with contextlib.suppress(OSError):
            ctypes.CDLL(candidate)
            return of(_loaded(f"/{Path(candidate).name}") or candidate)
    return None


def _loaded(text: str) -> str | None:
    return next(iter(engine.hook.loaded_libraries(text)), None)


def _by_launcher() -> list[str]:
    """The interfaces, first the one of the MPI that started this process."""
    mpich = "PMI_RANK" in os.environ and "OMPI_COMM_WORLD_RANK" not in os.environ
    return sorted(LIBRARIES, key=lambda abi: (abi == "mpich") != mpich)


def _abi(loaded: ctypes.CDLL, version: str) -> str | None:
    if hasattr(loaded, "ompi_mpi_comm_world"):
        return "openmpi"
    known = ("MPICH", "Intel(R) MPI", "MVAPICH")
    return "mpich" if any(word in version for word in known) else None
