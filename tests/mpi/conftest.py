from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from preloaded import MPICC


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the compiled C programs."""
    folder = tmp_path_factory.mktemp("programs")
    for source in Path(__file__).parent.glob("*.c"):
        command = [str(MPICC), "-O2", "-Wall", "-Wextra", "-Werror", "-rdynamic", str(source)]
        subprocess.run([*command, "-o", folder / source.stem], check=True, timeout=60)
    return folder
