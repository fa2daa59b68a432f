"""The compiled engine, loaded at its first use; EngineMissing says why it cannot be loaded."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from omnihvd.tools import checkout

LIBRARIES = Path(__file__).parent / "lib"
LIBRARY = LIBRARIES / "libomnihvd.so"
GLOO_SHIM = LIBRARIES / "libomnihvd_gloo.so"
NCCL_SHIM = LIBRARIES / "libomnihvd_nccl.so"
CARDS = Path("/sys/class/infiniband")  # that register memory
HOOKS = "UCX_MEM_MMAP_HOOK_MODE"
NAMES = ("EngineError", "build_id", "codec", "hook", "load_part", "session", "transport")

if TYPE_CHECKING:
    from omnihvd._engine import EngineError as EngineError
    from omnihvd._engine import build_id as build_id
    from omnihvd._engine import codec as codec
    from omnihvd._engine import hook as hook
    from omnihvd._engine import load_part as load_part
    from omnihvd._engine import session as session
    from omnihvd._engine import transport as transport


def __getattr__(name: str) -> Any:
    """The engine's attributes."""
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _no_hooks():
        engine = _load()
    globals().update({known: getattr(engine, known) for known in NAMES})
    return globals()[name]


class EngineMissing(ImportError):
    """The engine cannot be loaded; the message says what to do."""


def _load() -> ModuleType:
    try:
        try:
            return _import()
        except ImportError as why:
            # The engine looks for UCX where it was at build time, and in the folder beside omnihvd.
            if "libuc" not in str(why) or not _load_ucx():
                raise
            return _import()
    except (ImportError, OSError) as why:
        if not checkout.has_engine(checkout.PACKAGE):
            message = (
                f"omnihvd's engine is not built in {checkout.PACKAGE}, and no built one is "
                "installed for this Python: `pip install .` builds and installs it, `make build` "
                "builds it in a checkout"
            )
        elif any(name in str(why) for name in ("GLIBC", "musl")):  # GLIBCXX, too
            message = (
                f"omnihvd's engine was built for a system with newer libraries ({why}): install "
                "omnihvd again from its source (pip install .), with a C++17 compiler"
            )
        else:
            message = (
                f"omnihvd's engine cannot be loaded ({why}): install omnihvd again in this "
                "environment (libucx-cu13 has UCX)"
            )
        raise EngineMissing(message) from why


@contextlib.contextmanager
def _no_hooks() -> Iterator[None]:
    """While UCX is loaded, it rewrites eight functions as mmap() for cards that register memory,
    and waits for 50 ms at each. Without a card nobody needs that."""
    if HOOKS in os.environ or any(CARDS.glob("*")):
        yield
        return
    os.environ[HOOKS] = "none"  # "reloc" would replace malloc() by one that forks cannot use
    try:
        yield
    finally:
        os.environ.pop(HOOKS, None)  # another thread may load it, too


def _import() -> ModuleType:
    module = importlib.import_module("omnihvd._engine")
    if module.__file__ is None:  # the folder of its types: Python takes it for a package
        del sys.modules[module.__name__]
        raise ImportError("it is not there")
    return module


def _load_ucx() -> bool:
    """Loads UCX from where Python has the wheel libucx-cu13, for the engine to find it loaded."""
    folder = ucx_folder()
    if folder is not None:
        ctypes.CDLL(str(folder / "libucp.so.0"))  # loads its other libraries from the same folder
    return folder is not None


def ucx_folder() -> Path | None:
    spec = importlib.util.find_spec("libucx")
    folder = Path(spec.origin).parent / "lib" if spec and spec.origin else None
    return folder if folder and (folder / "libucp.so.0").exists() else None
