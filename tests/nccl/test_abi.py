"""The shim declares CUDA's driver itself, to build where there is no CUDA: as cuda.h does?"""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_driver_functions_agree_with_their_header():
    headers = sorted(Path(sysconfig.get_path("purelib"), "nvidia").rglob("include/cuda.h"))
    if not headers:
        pytest.skip("no cuda.h here: pip install nvidia-cuda-runtime")
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    command += ["-isystem", str(headers[0].parent), f"-I{HERE.parents[1] / 'omnihvd' / 'csrc'}"]
    done = subprocess.run([*command, str(HERE / "abi.cc")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
