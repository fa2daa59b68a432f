"""A job loads the core alone: what it does not use lies in libraries of its own."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from omnihvd import engine

# Namespaces and prefixes of what lies beside the core.
BESIDE = re.compile(r"simulation|nccl|cuda", re.IGNORECASE)


def test_the_engine_has_no_symbol_of_what_lies_beside_it() -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("needs nm (binutils)")
    command = [nm, "-DC", "--defined-only", str(engine.LIBRARY)]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "omnihvd::Engine" in symbols
    assert not [line for line in symbols.splitlines() if BESIDE.search(line)]
