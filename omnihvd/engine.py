"""The compiled engine, loaded at its first use, or a clear reason why it cannot be had."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

LIBRARIES = Path(__file__).parent / "lib"
LIBRARY = LIBRARIES / "libomnihvd.so"
MPI_SHIM = LIBRARIES / "libomnihvd_mpi.so"
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
    try:
        engine = importlib.import_module("omnihvd._engine")
    except ImportError as why:
        raise ImportError(
            f"omnihvd's engine cannot be loaded ({why}). If it was never built, `pip install .` "
            "(or `make build` in a checkout) builds it; if a library is missing, reinstall omnihvd "
            "in this environment (libucx-cu13 has UCX)."
        ) from why
    globals().update(EngineError=engine.EngineError, hook=engine.hook, session=engine.session)
    return globals()[name]
