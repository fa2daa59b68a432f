"""The XDP program, loaded for tests, or why it cannot be."""

from __future__ import annotations

import os
from typing import Any

from omnihvd import engine
from omnihvd.inline.aggregator import xdp_module

HOST, GROUP, PORT, JOBS, SLOTS = "10.0.0.1", "239.255.77.1", 47800, 2, 4


def make_plane() -> Any:
    return xdp_module().Plane(
        object=str(engine.LIBRARIES / "aggregator.bpf.o"), interface="", host=HOST, port=PORT,
        group=GROUP, jobs=JOBS, slots=SLOTS,
    )  # fmt: skip


def why_not() -> str:
    """Empty: the XDP program can be loaded here."""
    if os.geteuid() != 0:
        return "loading an XDP program takes root"
    try:
        make_plane()
    except engine.EngineError as why:
        return str(why)
    return ""


WHY_NOT = why_not()
