"""The compiled engine, or a clear reason why it cannot be had."""

from __future__ import annotations

from pathlib import Path

try:
    from omnihvd import _engine
except ImportError as why:
    raise ImportError(
        f"omnihvd's engine cannot be loaded ({why}). If it was never built, `pip install .` (or "
        "`make build` in a checkout) builds it; if a library is missing, reinstall omnihvd in this "
        "environment (libucx-cu13 has UCX)."
    ) from why

EngineError = _engine.EngineError
hook = _engine.hook
session = _engine.session

LIBRARIES = Path(__file__).parent / "lib"
MPI_SHIM = LIBRARIES / "libomnihvd_mpi.so"
GLOO_SHIM = LIBRARIES / "libomnihvd_gloo.so"
NCCL_SHIM = LIBRARIES / "libomnihvd_nccl.so"
