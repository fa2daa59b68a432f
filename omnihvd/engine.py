"""The compiled engine, loaded at its first use, or a clear reason why it cannot be had."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from omnihvd import checkout

LIBRARIES = Path(__file__).parent / "lib"
LIBRARY = LIBRARIES / "libomnihvd.so"
MPI_SHIM = LIBRARIES / "libomnihvd_mpi.so"
GLOO_SHIM = LIBRARIES / "libomnihvd_gloo.so"
NCCL_SHIM = LIBRARIES / "libomnihvd_nccl.so"

if TYPE_CHECKING:
    from omnihvd import _engine

    EngineError = _engine.EngineError
    hook = _engine.hook
    session = _engine.session


def __getattr__(name: str) -> Any:
    """EngineError, hook, session: what the engine has."""
    if name not in ("EngineError", "hook", "session"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    engine = _load()
    globals().update(EngineError=engine.EngineError, hook=engine.hook, session=engine.session)
    return globals()[name]


def _load() -> ModuleType:
    try:
        try:
            return importlib.import_module("omnihvd._engine")
        except ImportError as why:
            # Of UCX the engine knows where it lay when it was built, and the folder beside omnihvd.
            if "libuc" not in str(why) or not load_ucx():
                raise
            return importlib.import_module("omnihvd._engine")
    except ImportError as why:
        if not checkout.has_engine(checkout.PACKAGE):
            message = (
                f"omnihvd's engine is not built in {checkout.PACKAGE}, and no built one is "
                "installed for this Python: `pip install .` builds and installs it, `make build` "
                "builds it in a checkout"
            )
        else:
            message = (
                f"omnihvd's engine cannot be loaded ({why}): install omnihvd again in this "
                "environment (libucx-cu13 has UCX)"
            )
        raise ImportError(message) from why


def load_ucx() -> bool:
    """Loads the UCX of the wheel libucx-cu13, wherever Python has it; the engine then finds it."""
    spec = importlib.util.find_spec("libucx")
    if spec is None or spec.origin is None:
        return False
    for part in ("ucm", "ucs", "uct", "ucp"):  # each needs those before it
        library = Path(spec.origin).parent / "lib" / f"lib{part}.so.0"
        if not library.exists():
            return False
        ctypes.CDLL(str(library))
    return True
