"""For all tests. Time-outs: pyproject.toml has the default, pytest.mark.timeout a test's own."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest
from launch import ENVIRONMENT

# The folder of _engine_tests, for tests and their processes; .ci/sanitize has its own before it.
ROOT = Path(__file__).parents[1]
TEST_MODULES = str(ROOT / "build" / "tests")
sys.path += [TEST_MODULES, str(ROOT)]  # ROOT: of simulator and benchmarks
os.environ["PYTHONPATH"] = os.pathsep.join(
    [*filter(None, [os.environ.get("PYTHONPATH")]), TEST_MODULES]
)

# Files that take longest begin first: else one worker runs the last of them alone.
LONG = (
    *("test_horovod", "test_examples", "test_shim", "test_whole_path", "test_union_way"),
    *("test_documents", "test_keras", "test_emulated", "test_horovod_codecs", "test_report"),
    *("test_demo", "test_groups", "test_torch_failures", "test_rows", "test_ray", "test_spark"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", help="fail unless the engine is loaded from this folder")


def pytest_collection_finish(session: pytest.Session) -> None:
    folder = session.config.getoption("--engine")
    if folder:
        engine = importlib.import_module("omnihvd._engine").__file__
        if not str(engine).startswith(folder):
            pytest.exit(f"the engine is {engine}, not one in {folder}", 1)


def pytest_configure() -> None:
    """For xdist's workers, too: other tests are on the cores that NumPy's own threads would use."""
    early = ("OMPI_", "OMP_", "UCX_")
    os.environ.update(
        {name: value for name, value in ENVIRONMENT.items() if name.startswith(early)}
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(name) if (name := item.path.stem) in LONG else len(LONG))
    if os.geteuid() != 0:
        skip = pytest.mark.skip(reason="needs root, for network namespaces")
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(skip)
