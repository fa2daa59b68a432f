"""Simulates allreduces of thousands of ranks: the engine's protocol over a simulated network."""

from __future__ import annotations

from omnihvd import engine

_ = engine.session  # loads the engine, to which the simulator's module is linked
try:
    from simulator import _core as _core
except ImportError as why:
    raise ImportError("the simulator is not built here: `make build` builds it") from why
