"""Which MPI this process has, or would get, and which of omnihvd's MPI shims speaks to it.

MPIs have one of few binary interfaces; a shim is compiled for each (csrc/CMakeLists.txt). A build
from source has one, for the MPI that was there; the wheel has all, and looks here for the MPI that
this process has loaded, then for that of Python's environment, then for the loader's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from typing import NamedTuple

from omnihvd import engine

# The library's name in each. Open MPI 4 and 5 have one interface; so have MPICH since 3.1, Intel's
# MPI and others after it.
LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH or Intel MPI"}
LOADED = ("/libmpi.so", "/libmpich.so")
LONGEST = 8192  # bytes of an MPI's version, of any MPI


class Mpi(NamedTuple):
    path: str  # of its library
    version: str  # "Open MPI v4.1.8", in its own words
    abi: str | None  # None: omnihvd knows none like it


def shims() -> dict[str, Path]:
    """Those that were built, by interface."""
    paths = {abi: engine.LIBRARIES / abi / "libomnihvd_mpi.so" for abi in LIBRARIES}
    return {abi: path for abi, path in paths.items() if path.exists()}


def shim() -> Path | None:
    """That for this process's MPI. None: there is none, or no MPI that tells which of several."""
    built = shims()
    if len(built) <= 1:
        return next(iter(built.values()), None)
    mpi = find()
    return built.get(mpi.abi or "") if mpi else None


def of(library: str) -> Mpi:
    """What a loaded library is, which may be asked before MPI_Init(). Raises OSError if it is no
    MPI."""
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
    """This process's MPI: loaded already, else now, which has no effect but that."""
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
    """The interfaces, that of the MPI that has started this process first."""
    mpich = "PMI_RANK" in os.environ and "OMPI_COMM_WORLD_RANK" not in os.environ
    return sorted(LIBRARIES, key=lambda abi: (abi == "mpich") != mpich)


def _abi(loaded: ctypes.CDLL, version: str) -> str | None:
    if hasattr(loaded, "ompi_mpi_comm_world"):
        return "openmpi"
    known = ("MPICH", "Intel(R) MPI", "MVAPICH")
    return "mpich" if any(word in version for word in known) else None
