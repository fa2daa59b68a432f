"""Makes the source folder kernels/, which is installed as omnihvd.kernels, importable by
tests."""

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


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where what is compiled is kept, for tests/nccl, too."""
    made = tmp_path_factory.getbasetemp() / "kernels"
    made.mkdir(exist_ok=True)
    return made


def _flags() -> tuple[str, ...]:
    from kernel_emulation import SANITIZER

    return (f"-fsanitize={SANITIZER}", "-fno-sanitize-recover=all") if SANITIZER else ()


@pytest.fixture(scope="session")
def kernels(folder):
    """The kernels of a dtype and a block size, emulated."""
    from kernel_emulation import Kernels

    return lambda dtype, block_size: Kernels(dtype, block_size, folder, _flags())


@pytest.fixture(scope="session")
def sparsify_kernels(folder):
    """The same of sparsify.cu."""
    from kernel_emulation import SparsifyKernels

    return lambda dtype, block_size: SparsifyKernels(dtype, block_size, folder, _flags())


@pytest.fixture(scope="session")
def double(folder):
    """A module that stands in for CuPy."""
    from cuda_double import cupy_double

    return cupy_double(folder)


@pytest.fixture
def no_gpu(double, monkeypatch):
    """CuPy's stand-in in its place, and kernels emulated."""
    from cuda_double import cubin

    build = sys.modules["omnihvd.kernels.build"]
    monkeypatch.setitem(sys.modules, "cupy", double)
    monkeypatch.setattr(build, "cubin", cubin)
    build._loaded.cache_clear()
    yield
    build._loaded.cache_clear()
