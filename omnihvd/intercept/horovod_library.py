"""Horovod's compiled libraries, one for each framework: hooks at their load and at hvd.init()."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, Callable

from omnihvd import engine
from omnihvd.intercept.after_import import after_import

FRAMEWORKS = ("horovod.torch", "horovod.tensorflow")
BASICS = "horovod.common.basics"  # loads them


def loaded() -> list[str]:
    """The paths of the loaded ones. Only the package's own count, not folders of a similar name."""
    package = sys.modules.get("horovod")
    if package is None or package.__file__ is None:
        return []
    folder = Path(package.__file__).resolve().parent
    paths = engine.hook.loaded_libraries("/mpi_lib")
    return [path for path in paths if Path(path).parent.resolve().parent == folder]


def on_load(then: Callable[[], None]) -> None:
    """Calls `then` now if any may be loaded, and after each later load."""
    after_import(BASICS, lambda basics: _call_after(basics, "__init__", lambda _: then()))
    if BASICS in sys.modules:
        then()


def on_init(then: Callable[[Any], None]) -> None:
    """Calls `then` after each hvd.init() from now on, with the HorovodBasics of the framework."""
    after_import(BASICS, lambda basics: _call_after(basics, "init", then))


def on_shutdown(then: Callable[[Any], None]) -> None:
    """Calls `then` after each hvd.shutdown() from now on, as on_init()."""
    after_import(BASICS, lambda basics: _call_after(basics, "shutdown", then))


def wrap_init(decorate: Callable[[Any], Any]) -> None:
    """Wraps each later hvd.init() by `decorate`."""
    after_import(
        BASICS,
        lambda basics: setattr(basics.HorovodBasics, "init", decorate(basics.HorovodBasics.init)),
    )


def initialized() -> list[Any]:
    """The HorovodBasics of each framework after its hvd.init()."""
    found = [getattr(sys.modules.get(f"{name}.mpi_ops"), "_basics", None) for name in FRAMEWORKS]
    return [horovod for horovod in found if horovod and horovod.is_initialized()]


def path_of(horovod: Any) -> str:
    """The library behind a HorovodBasics."""
    return str(horovod.MPI_LIB_CTYPES._name)


def framework_of(horovod: Any) -> str:
    """ "horovod.torch" or "horovod.tensorflow"."""
    return f"horovod.{Path(path_of(horovod)).parent.name}"


def _call_after(basics: ModuleType, method: str, then: Callable[[Any], None]) -> None:
    original = getattr(basics.HorovodBasics, method)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        then(self)
        return result

    setattr(basics.HorovodBasics, method, call)
    # horovod.tensorflow has `shutdown = _basics.shutdown`, and its elastic module imports that.
    for module in [m for name, m in sys.modules.items() if name.startswith("horovod.")]:
        bound: Any = getattr(module, method, None)
        if getattr(bound, "__func__", None) is original:
            setattr(module, method, MethodType(call, bound.__self__))
