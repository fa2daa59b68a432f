"""Redirects ncclAllReduce and related functions in PyTorch's and Horovod's loaded libraries.

As for MPI (mpi.py), the library that is hooked calls the shim's functions; NCCL itself
and all other libraries are untouched. A library that holds an NCCL of its own, statically linked,
cannot be hooked: problem() says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from omnihvd import engine
from omnihvd.carriers import kernel_cache
from omnihvd.frameworks import horovod_library
from omnihvd.frameworks.after_import import after_import
from omnihvd.log import logger, warn_once_per_job

LIBRARY = "NCCL"
FUNCTIONS = (
    "ncclAllReduce",
    "ncclGroupStart",
    "ncclGroupEnd",
    "ncclGroupSimulateEnd",
    "ncclCommDestroy",
    "ncclCommFinalize",
    "ncclCommAbort",
    "ncclCommShrink",
    "ncclCommGetAsyncError",
)
TORCH = "/torch/lib/libtorch_cuda.so"
DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg")  # dxg: Windows' subsystem for Linux


def install() -> None:
    """Hooks PyTorch and Horovod: now, if they are loaded, else once they are."""
    if engine.NCCL_SHIM.exists():
        if "NVTX_INJECTION64_PATH" in os.environ:
            _load_nvtx()
        after_import("torch", _hook_torch)
        horovod_library.on_load(_hook_horovod)
        horovod_library.on_init(_warn_if_horovod_keeps_its_own)


def _load_nvtx() -> None:
    """Loads NVTX from NVIDIA's wheel under a profiler, for the shim to find its functions."""
    for folder in filter(None, sys.path):
        for library in Path(folder).glob("nvidia/*/lib/libnvtx3interop.so.1"):
            ctypes.CDLL(str(library))
            return


@contextlib.contextmanager
def way(name: str) -> Iterator[None]:
    """Sets the algorithm of NCCL communicators that make their first sum in this block, on this
    thread. name: a value of OMNIHVD_GPU ("auto", "union", "stream", "original"); that setting holds
    for all other communicators.

        with omnihvd.carriers.nccl.way("original"):      # on all ranks of the group alike
            dist.all_reduce(torch.zeros(1, device="cuda"), group=tensor_parallel)

    ValueError for an unknown name. A sum fails if the ranks of its communicator differ."""
    choose = ctypes.CDLL(str(engine.NCCL_SHIM)).omnihvd_nccl_choose
    choose.restype = ctypes.c_char_p
    if problem := choose(name.encode()):
        raise ValueError(problem.decode())
    try:
        yield
    finally:
        choose(None)


def is_hooked(library: str) -> bool:
    return (library, FUNCTIONS[0]) in engine.hook.installed()


def _hook_torch(torch: ModuleType) -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        if engine.hook.loaded_libraries(TORCH):
            warn_once_per_job(
                "omnihvd was imported after init_process_group(): another rank may be in a sum "
                "already, so sums over NCCL stay NCCL's. Import omnihvd before "
                "init_process_group() on every rank; in a notebook, restart the kernel first."
            )
        return
    _hook(engine.hook.loaded_libraries(TORCH))


def _hook_horovod() -> None:
    _hook(horovod_library.loaded())


def _warn_if_horovod_keeps_its_own(horovod: Any) -> None:
    why = problem(horovod_library.path_of(horovod)) if horovod.nccl_built() else None
    if why:
        warn_once_per_job(f"Horovod's sums on GPUs stay NCCL's: {why}")


def _hook(loaded: list[str]) -> list[str]:
    """Hooks those of the loaded libraries that call NCCL."""
    libraries = [library for library in loaded if engine.hook.imports(library, FUNCTIONS[0])]
    if not libraries:
        return []
    nccls = {os.path.realpath(engine.hook.provider(path, FUNCTIONS[0])) for path in libraries}
    nccls |= {os.path.realpath(path) for path in _hooked_nccls()}
    if len(nccls) > 1:  # the shim has one NCCL to call
        warn_once_per_job(
            f"{', '.join(libraries)} and others use different NCCLs ({', '.join(sorted(nccls))}): "
            "NCCL's own allreduce is kept. Build Horovod with HOROVOD_NCCL_HOME set to PyTorch's."
        )
        return []
    make_kernels_once()
    for library, function in itertools.product(libraries, FUNCTIONS):
        engine.hook.install(library, function, str(engine.NCCL_SHIM), f"omnihvd_{function}")
    logger.info("hooked NCCL's allreduce in %s", ", ".join(libraries))
    return libraries


def _hooked_nccls() -> list[str]:
    return [
        engine.hook.provider(library, function)
        for library, function in engine.hook.installed()
        if function == FUNCTIONS[0]
    ]


@functools.cache
def make_kernels_once() -> None:
    if any(Path(file).exists() for file in DRIVER_FILES):
        kernel_cache.make_for_this_machine()


def describe(library: str) -> str:
    return f"{FUNCTIONS[0]} of {engine.hook.provider(library, FUNCTIONS[0])}"


def problem(library: str) -> str | None:
    if not engine.NCCL_SHIM.exists():
        return "omnihvd was built without its NCCL shim: install it again"
    if is_hooked(library):
        if engine.session.settings_from_environment().gpu != "original":
            return None
        return (
            "OMNIHVD_GPU is original, the default, as omnihvd's ways have not run on a GPU yet; "
            "OMNIHVD_GPU=auto tries them (docs/gpu.md)"
        )
    if not engine.hook.imports(library, FUNCTIONS[0]):
        remedy = (
            "; use a build of PyTorch that is linked to the shared libnccl.so.2"
            if TORCH in library
            else "; build Horovod with HOROVOD_NCCL_LINK=SHARED"
        )
        return f"{library} holds NCCL itself, statically linked{remedy}"
    return f"{library} was not hooked: import omnihvd before NCCL is used, on every rank"
