"""Wraps Horovod's functions for sparse gradients, compressors and codecs, once per process."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from omnihvd.intercept.after_import import after_import

PARTS = {
    "horovod.torch.mpi_ops": ["compression.torch_codecs"],
    "horovod.torch.optimizer": ["sparse.torch_rows", "compression.torch_horovod"],
    "horovod.torch.elastic.state": ["compression.torch_elastic"],
    "horovod.tensorflow": [
        "sparse.tensorflow_rows",
        "compression.tensorflow_horovod",
        "compression.tensorflow_codecs",
    ],
}


def install() -> None:
    """Wraps them in imported modules now, and in others at their import."""
    for module, names in PARTS.items():
        for name in names:
            after_import(module, functools.partial(_install, name))


def _install(name: str, module: ModuleType) -> None:
    importlib.import_module(f"omnihvd.{name}").install(module)
