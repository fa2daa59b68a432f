"""Older names of modules, for one release: checkpoints have them, too."""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NEWER = {
    "omnihvd.compressors": "omnihvd.compression",
    "omnihvd.codecs": "omnihvd.compression",
    "omnihvd.carriers": "omnihvd.intercept",
}


class _Older(MetaPathFinder, Loader):
    """Imports the newer module, under both names."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        known = name.startswith(tuple(NEWER)) and ".".join(name.split(".")[:2]) in NEWER
        return ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        older = ".".join(spec.name.split(".")[:2])
        newer = spec.name.replace(older, NEWER[older])
        module = importlib.import_module(newer)
        warnings.warn(f"{spec.name} is {newer} now", DeprecationWarning, stacklevel=2)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has put the older one there


def install() -> None:
    sys.meta_path.insert(0, _Older())
