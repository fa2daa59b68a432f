"""Redirects ncclAllReduce and related functions in PyTorch's and Horovod's loaded libraries.

As for MPI (mpi.py), the library that is hooked calls the shim's functions; NCCL itself
and all other libraries are untouched. A library that holds an NCCL of its own, statically linked,
cannot be hooked: problem() says so.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import hashlib
import importlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from omnihvd import engine
from omnihvd.intercept import gpu_request, horovod_library, kernel_cache, torch_gloo
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


def requested() -> bool:
    """Whether OMNIHVD_GPU asks for more than NCCL's own sums."""
    settings = engine.session.settings_from_environment()
    return bool(settings.enable) and settings.gpu != "original"


def install() -> None:
    """Hooks PyTorch and Horovod once their ranks have met, if this job asks for it."""
    if not engine.NCCL_SHIM.exists() or not requested():
        return
    c10d = sys.modules.get(torch_gloo.MODULE)
    if c10d is not None and c10d.is_initialized() and "nccl" in torch_gloo.backends(c10d):
        warn_once_per_job(
            "omnihvd was imported after init_process_group(): another rank may be in a sum "
            "already, so sums over NCCL stay NCCL's. Import omnihvd before "
            "init_process_group() on every rank; in a notebook, restart the kernel first."
        )
    torch_gloo.on_init(_torch_began)
    horovod_library.on_init(_horovod_began)
    # An elastic job's new ranks begin to count with the next init().
    horovod_library.on_shutdown(_horovod_ended)


def _load_nvtx() -> None:
    """Loads NVTX from NVIDIA's wheel under a profiler, for the shim to find its functions."""
    for folder in filter(None, sys.path):
        for library in Path(folder).glob("nvidia/*/lib/libnvtx3interop.so.1"):
            ctypes.CDLL(str(library))
            return


@contextlib.contextmanager
def way(name: str, group: Any = None) -> Iterator[None]:
    """Sets the algorithm of NCCL communicators that make their first sum in this block, on this
    thread. name: a value of OMNIHVD_GPU ("auto", "original"); that setting holds for all other
    communicators, and for Horovod's, which have a thread of their own.

        with omnihvd.intercept.nccl.way("auto", group=data_parallel):    # on all its ranks alike
            dist.all_reduce(torch.zeros(1, device="cuda"), group=data_parallel)

    group: the torch.distributed group that makes sums here; None: the default group. If
    OMNIHVD_GPU is original, its ranks first learn whether all of them ask; if not, NCCL makes the
    sums.
    ValueError for an unknown name. A sum fails if the ranks of its communicator differ."""
    choose = ctypes.CDLL(str(engine.NCCL_SHIM)).omnihvd_nccl_choose
    choose.restype = ctypes.c_char_p
    if problem := choose(name.encode()):
        raise ValueError(problem.decode())
    try:
        if name != "original" and not requested() and not _request_here(group):
            choose(None)
        yield
    finally:
        choose(None)


_asked: collections.Counter[str] = collections.Counter()


def _question(about: str) -> str:
    """A name that no earlier question has. All ranks ask in the same order."""
    _asked[about] += 1
    return f"omnihvd/gpu/{about}/{_asked[about]}"


def _torch_began(c10d: ModuleType) -> None:
    if "nccl" in torch_gloo.backends(c10d):
        _hook_or_unhook(in_torch(), _ask_torch(c10d, None, "init"))


def _ask_torch(c10d: ModuleType, group: Any, about: str) -> Callable[[str], str]:
    ranks = c10d.get_process_group_ranks(group or c10d.group.WORLD)
    place = ranks.index(c10d.get_rank())
    members = hashlib.sha256(repr(list(ranks)).encode()).hexdigest()
    question = _question(f"{about}/{members}")
    return lambda answer: gpu_request.ask_store(
        c10d._get_default_store(), place, len(ranks), question, answer
    )


def _horovod_began(horovod: Any) -> None:
    if horovod.nccl_built():
        _hook_or_unhook(horovod_library.loaded(), _ask_horovod(horovod))


def _horovod_ended(horovod: Any) -> None:
    _asked.pop(horovod_library.framework_of(horovod), None)


def _ask_horovod(horovod: Any) -> Callable[[str], str]:
    framework = importlib.import_module(horovod_library.framework_of(horovod))
    tensors = importlib.import_module(framework.__name__.partition(".")[2])
    make = tensors.tensor if hasattr(tensors, "tensor") else tensors.constant

    def vote(name: str, number: int) -> int:
        return int(framework.allreduce(make([number]), name=name, op=framework.Min)[0])

    question = _question(framework.__name__)
    return lambda answer: gpu_request.ask_by_votes(vote, question, answer)


def _request_here(group: Any) -> bool:
    """Hooks for way(), if all ranks of the group ask. Returns whether they do."""
    c10d = sys.modules.get(torch_gloo.MODULE)
    if c10d is not None and c10d.is_initialized():
        return _hook_if_all_ask(in_torch(), _ask_torch(c10d, group, "way"))
    if began := horovod_library.initialized():
        return _hook_if_all_ask(horovod_library.loaded(), _ask_horovod(began[0]))
    return True  # a program that preloads the shim


def _hook_if_all_ask(loaded: list[str], ask: Callable[[str], str]) -> bool:
    """Hooks on all ranks or on none. Returns whether it does."""
    libraries, problem = _hookable(loaded)
    if why := ask(problem or gpu_request.YES):
        warn_once_per_job(f"sums on GPUs stay NCCL's: {why}")
        return False
    _hook(libraries)
    return True


def _hook_or_unhook(loaded: list[str], ask: Callable[[str], str]) -> None:
    """For ranks that have just met: an elastic job's new rank may not ask as earlier ones did."""
    if not _hook_if_all_ask(loaded, ask) and any(map(is_hooked, loaded)):
        for function in FUNCTIONS:
            engine.hook.remove(function)


def is_hooked(library: str) -> bool:
    return (library, FUNCTIONS[0]) in engine.hook.installed()


def _hookable(loaded: list[str]) -> tuple[list[str], str]:
    """Those of the loaded libraries that call NCCL, and why they cannot be hooked, or nothing."""
    libraries = [library for library in loaded if engine.hook.imports(library, FUNCTIONS[0])]
    if not libraries:
        return [], next(filter(None, map(problem, loaded)), "no library here uses NCCL")
    hooked = [library for library, function in engine.hook.installed() if function == FUNCTIONS[0]]
    nccls = {
        os.path.realpath(engine.hook.provider(path, FUNCTIONS[0])) for path in [*libraries, *hooked]
    }
    if len(nccls) > 1:  # the shim has one NCCL to call
        return [], (
            f"{', '.join(libraries)} and others use different NCCLs ({', '.join(sorted(nccls))}). "
            "Build Horovod with HOROVOD_NCCL_HOME set to PyTorch's"
        )
    return libraries, ""


def _hook(libraries: list[str]) -> None:
    if "NVTX_INJECTION64_PATH" in os.environ:
        _load_nvtx()
    make_kernels_once()
    for library, function in itertools.product(libraries, FUNCTIONS):
        engine.hook.install(library, function, str(engine.NCCL_SHIM), f"omnihvd_{function}")
    logger.info("hooked NCCL's allreduce in %s", ", ".join(libraries))


@functools.cache
def make_kernels_once() -> None:
    if any(Path(file).exists() for file in DRIVER_FILES):
        kernel_cache.make_for_this_machine()


def sums(horovod: Any) -> bool:
    # Where NCCL keeps its sums, those in host memory are all that omnihvd can intercept.
    return bool(horovod.nccl_built()) and not problem(horovod_library.path_of(horovod))


def in_torch() -> list[str]:
    return engine.hook.loaded_libraries(TORCH)


def intercepts(c10d: ModuleType) -> bool:
    libraries = in_torch() if "nccl" in torch_gloo.backends(c10d) else []
    return bool(libraries) and not problem(libraries[0])


def describe(library: str) -> str:
    return f"{FUNCTIONS[0]} of {engine.hook.provider(library, FUNCTIONS[0])}"


def problem(library: str) -> str | None:
    if not engine.NCCL_SHIM.exists():
        return "omnihvd was built without its NCCL shim: install it again"
    if is_hooked(library):
        return None
    if not engine.hook.imports(library, FUNCTIONS[0]):
        remedy = (
            "; use a build of PyTorch that is linked to the shared libnccl.so.2"
            if TORCH in library
            else "; build Horovod with HOROVOD_NCCL_LINK=SHARED"
        )
        return f"{library} holds NCCL itself, statically linked{remedy}"
    if not requested():
        return (
            "OMNIHVD_GPU is original, the default, as omnihvd's algorithms have not run on a GPU "
            "yet; set OMNIHVD_GPU=auto on all ranks, or use torch.sum_unions (docs/gpu.md)"
        )
    c10d = sys.modules.get(torch_gloo.MODULE)
    if not (c10d and c10d.is_initialized()) and not horovod_library.initialized():
        return None  # once the ranks have met, it is hooked, if all ask for it
    return (
        f"{library} is not hooked: a rank does not ask for it. Import omnihvd and set "
        "OMNIHVD_GPU=auto on every rank"
    )
