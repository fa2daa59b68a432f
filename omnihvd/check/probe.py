"""Imports a framework in a child process, since that is slow and may print or crash, and reports
the hooks in it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import Any

from omnihvd import carriers, engine
from omnihvd.carriers import nccl, torch_gloo
from omnihvd.frameworks import horovod_library

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
        self.module = module
        # Wrong settings are reported elsewhere.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OMNIHVD_")}
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
    if module == "torch":
        libraries = engine.hook.loaded_libraries(nccl.TORCH)
        built = [nccl.LIBRARY] if libraries else []
    else:
        horovod = importlib.import_module(f"{module}.mpi_ops")._basics
        libraries = [horovod_library.path_of(horovod)]
        all_of = {"MPI": horovod.mpi_built, "Gloo": horovod.gloo_built, "NCCL": horovod.nccl_built}
        built = [name for name, is_built in all_of.items() if is_built()]
    hooked, problems = {}, {}
    for carrier in carriers.ALL:
        if carrier.LIBRARY in built:
            problem = next(filter(None, map(carrier.problem, libraries)), None)
            if problem:
                problems[carrier.LIBRARY] = problem
            else:
                hooked[carrier.LIBRARY] = carrier.describe(libraries[0])
    if module == "torch" and torch_gloo.has_gloo():
        built.append("Gloo")
        hooked["Gloo"] = "its process groups"
    return {"built": built, "hooked": hooked, "problems": problems}
