"""Imports a framework in a child process, since that is slow and may print or crash, and reports
the hooks in it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import Any

from omnihvd.intercept import backends, horovod_library

PATIENCE_S = 120
# With this process's sys.path, independent of the working directory.
PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from omnihvd.check import probe
print(json.dumps(probe.look(sys.argv[2])))
"""


class Probe:
    """A running probe; several run at once. module: torch, horovod.torch, ..."""

    def __init__(self, module: str) -> None:
        # Wrong settings are reported elsewhere. Only with OMNIHVD_GPU's is NCCL intercepted.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OMNIHVD_")}
        if (gpu := os.environ.get("OMNIHVD_GPU", "").lower()) in ("auto", "union"):
            environment["OMNIHVD_GPU"] = gpu
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(sys.path), module],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "OMNIHVD_LOG": "off"},
        )

    def answer(self) -> dict[str, Any] | str:
        """The result of look(), or why the module cannot be imported."""
        try:
            output, errors = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return f"not done after {PATIENCE_S} s"
        if self.process.returncode:
            return (errors.strip().splitlines() or [f"status {self.process.returncode}"])[-1]
        found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        return found


def look(module: str) -> dict[str, Any]:
    """Returns built: the libraries that this module was built with; hooked: the ones that omnihvd
    intercepts, and how; problems: the others, and why not."""
    importlib.import_module(module)
    callers: dict[backends.Backend, list[str]]  # the libraries that call each backend
    if module == "torch":
        callers = {backend: backend.in_torch() for backend in backends.TORCH}
    else:
        horovod = importlib.import_module(f"{module}.mpi_ops")._basics
        path = horovod_library.path_of(horovod)
        built_with = {b: getattr(horovod, f"{b.LIBRARY.lower()}_built")() for b in backends.HOROVOD}
        callers = {backend: [path] for backend, is_built in built_with.items() if is_built}
    built, hooked, problems = [], {}, {}
    for backend, libraries in callers.items():
        if not libraries:
            continue
        built.append(backend.LIBRARY)
        problem = next(filter(None, map(backend.problem, libraries)), None)
        if problem:
            problems[backend.LIBRARY] = problem
        else:
            hooked[backend.LIBRARY] = backend.describe(libraries[0])
    return {"built": built, "hooked": hooked, "problems": problems}
