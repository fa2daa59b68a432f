"""Runs a function with a module: now if the module is imported, else right after its import."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any, Callable


def after_import(name: str, then: Callable[[ModuleType], None]) -> None:
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, then))


def part(name: str) -> ModuleType:
    """Imports omnihvd's module for one framework. A loaded module is not imported again:
    TensorFlow's AutoGraph warns that it cannot transform imports."""
    return sys.modules.get(name) or importlib.import_module(name)


class _Finder(importlib.abc.MetaPathFinder):
    """Stays until the module has been executed: a caller may only ask whether it exists."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.then = then
        self.asking_others = False

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self.asking_others:
            return None
        self.asking_others = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.asking_others = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_then(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.then(module)

        spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec
