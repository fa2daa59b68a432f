"""For all tests. Time-outs: pyproject.toml has the default, pytest.mark.timeout a test's own."""

from __future__ import annotations

import os

import pytest

from launch import ENVIRONMENT


def pytest_configure() -> None:
    os.environ.update(
        {name: value for name, value in ENVIRONMENT.items() if name.startswith("OMPI_")}
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() != 0:
        skip = pytest.mark.skip(reason="needs root, for network namespaces")
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(skip)
