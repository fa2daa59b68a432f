"""Makes the source folder kernels/, which is installed as omnihvd.kernels, importable by tests;
and benchmarks/device_blocks.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "kernels"

spec = importlib.util.spec_from_file_location(
    "omnihvd.kernels", FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
)
assert spec and spec.loader
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.path.append(str(FOLDER.parent / "benchmarks"))


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """Of a dtype and a block size, emulated."""
    from kernel_emulation import SANITIZER, Kernels

    folder = tmp_path_factory.mktemp("kernels")
    flags = (f"-fsanitize={SANITIZER}", "-fno-sanitize-recover=all") if SANITIZER else ()
    return lambda dtype, block_size: Kernels(dtype, block_size, folder, flags)
