"""`omnihvd kernels`: the files that the NCCL shim loads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
from omnihvd.intercept import kernel_cache

COMMAND = [sys.executable, "-m", "omnihvd", "kernels", "--arch", "sm_90"]


def test_processes_that_come_together_compile_each_file_once(tmp_path, monkeypatch):
    monkeypatch.setenv("OMNIHVD_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setenv("OMNIHVD_BLOCK_SIZE", "64")
    monkeypatch.setenv("OMNIHVD_ENABLE", "0")
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(COMMAND, env=os.environ, **pipe) for _ in range(2)]
    said = [process.communicate(timeout=100) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    compiled = [int(out.split(": ")[1].split()[0]) for out, _ in said]
    assert sum(compiled) == len(kernel_cache.DTYPES)

    files = [kernel_cache.path_of(dtype, 64, "sm_90") for dtype in kernel_cache.DTYPES]
    assert kernel_cache.complete("sm_90", 64)
    assert not kernel_cache.complete("sm_90", 128)
    assert all(file.read_bytes()[:4] == b"\x7fELF" for file in files)
    folder = kernel_cache.folder("sm_90")
    assert folder.parent.parent == tmp_path
    left = {file.name for file in folder.iterdir()} - {file.name for file in files}
    assert left == {"lock"}, "half a file was left"
    assert kernel_cache.compile_missing("sm_90", 64) == []


def test_a_home_that_cannot_be_written_names_the_setting():
    environment = {**os.environ, "HOME": "/dev/null", "XDG_CACHE_HOME": ""}
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "/dev/null" in done.stderr
    assert "OMNIHVD_KERNEL_CACHE" in done.stderr and done.stderr.count("\n") == 1


def test_sources_that_change_make_another_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OMNIHVD_KERNEL_CACHE", str(tmp_path))
    before = kernel_cache.folder("sm_90")
    sources = tmp_path / "kernels"
    sources.mkdir()
    for file in kernel_cache.SOURCES.iterdir():
        if file.suffix in (".cu", ".cuh"):
            (sources / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(kernel_cache, "SOURCES", sources)
    assert kernel_cache.folder("sm_90") == before
    with (sources / "abi.cuh").open("a") as file:
        file.write("\n")
    assert kernel_cache.folder("sm_90") != before
