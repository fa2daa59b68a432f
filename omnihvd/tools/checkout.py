"""Replaces a checkout that is not wholly built by the installed omnihvd.

In a checkout, `python -m omnihvd`, and every program with that folder on its path, finds the
sources first, and `pip install .` leaves these without an engine.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def has_engine(package: Path) -> bool:
    return any((package / f"_engine{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


def is_whole(package: Path) -> bool:
    """Whether its shims are built, too: `make quick` builds the engine alone."""
    return has_engine(package) and (package / "lib" / "libomnihvd_gloo.so").exists()


def gave_way() -> bool:
    """Replaces the module omnihvd by the installed one, if need be and if there is one."""
    if is_whole(PACKAGE):
        return False
    spec = _installed()
    if spec is None or spec.loader is None:
        return False
    module = sys.modules["omnihvd"]
    for name in [name for name in sys.modules if name.startswith("omnihvd.")]:
        del sys.modules[name]  # this one
    del vars(module)["checkout"], vars(module)["tools"]
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    module.__path__ = list(spec.submodule_search_locations or ())
    spec.loader.exec_module(module)

    from omnihvd.log import say_once_per_job

    say_once_per_job(
        f"{PACKAGE} has no {'shims' if has_engine(PACKAGE) else 'engine'} built, so omnihvd "
        f"{module.__version__} is that installed in {module.__path__[0]}"
    )
    return True


def _installed() -> ModuleSpec | None:
    path = [entry for entry in sys.path if Path(entry or ".").resolve() != PACKAGE.parent]
    finders = [finder for finder in sys.meta_path if finder is not PathFinder]
    for spec in [
        PathFinder.find_spec("omnihvd", path),
        *(finder.find_spec("omnihvd", None) for finder in finders),  # of editable installations
    ]:
        if spec and spec.origin and is_whole(Path(spec.origin).parent):
            return spec
    return None
