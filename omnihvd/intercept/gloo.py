"""Redirects the sums of a Horovod on Gloo to omnihvd's, in Horovod's own libraries alone.

Horovod contains Gloo, and calls it through the vtables of its GlooAlgorithms. The shim replaces
them by copies with omnihvd's allreduce (csrc/intercept/gloo/). This relies on the object layout
of one version of Horovod; the shim verifies the layout before it changes anything.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
from typing import Any

from omnihvd import engine
from omnihvd.intercept import horovod_library
from omnihvd.intercept.at_exit import at_exit

LIBRARY = "Gloo"
VERSION = "0.28.1"  # of Horovod
VTABLE = "_ZTVN7horovod6common14GlooAlgorithmsIfEE"  # one of those that are replaced


def install() -> None:
    """Hooks the Horovod libraries that are loaded, and others at their load."""
    if engine.GLOO_SHIM.exists():
        horovod_library.on_load(hook_loaded_libraries)


def hook_loaded_libraries() -> None:
    for library in horovod_library.loaded():
        if engine.hook.imports(library, VTABLE):
            _hook(library)


def sums(horovod: Any) -> bool:
    return bool(horovod.gloo_enabled())  # then Horovod sums with nothing else in host memory


def describe(library: str) -> str:
    return f"the Gloo in {library}"


def problem(library: str) -> str | None:
    if not engine.GLOO_SHIM.exists():
        return "omnihvd was built without its Gloo shim: install it again"
    return _hook(library)


@functools.cache
def _hook(library: str) -> str | None:
    """Hooks a library. Returns the obstacle; None: done."""
    version = importlib.metadata.version("horovod").split("+")[0]
    if version != VERSION:
        return (
            f"this is Horovod {version}, and omnihvd knows how {VERSION} calls Gloo; build that "
            "(python -m omnihvd.tools.build_horovod), or run Horovod on MPI"
        )
    why = _shim().omnihvd_gloo_hook(library.encode())
    if why is None:
        return None
    return (
        f"{why.decode()}: Horovod calls Gloo in another way than omnihvd knows; build it again "
        "(python -m omnihvd.tools.build_horovod), or run it on MPI"
    )


@functools.cache
def _shim() -> ctypes.CDLL:
    shim = ctypes.CDLL(str(engine.GLOO_SHIM))
    shim.omnihvd_gloo_hook.argtypes = [ctypes.c_char_p]
    shim.omnihvd_gloo_hook.restype = ctypes.c_char_p
    shut_down = shim.omnihvd_gloo_shut_down
    shut_down.argtypes = [ctypes.c_char_p]
    horovod_library.on_shutdown(lambda h: shut_down(horovod_library.path_of(h).encode()))
    # Comes after Horovod's own clean-up, which is registered by hvd.init().
    at_exit(shim.omnihvd_gloo_end)
    return shim
