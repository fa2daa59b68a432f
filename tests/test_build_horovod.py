"""Horovod is built from a source distribution only if that is the known one."""

from __future__ import annotations

import importlib
import sys

import pytest

from omnihvd.tools import build_horovod


def test_a_source_that_is_missing_or_another_one_is_refused(tmp_path):
    given = tmp_path / "horovod-0.28.1.tar.gz"
    with pytest.raises(build_horovod.Failure, match=r"there is no .*horovod-0.28.1.tar.gz"):
        build_horovod.fetch_source(given, tmp_path)
    given.write_bytes(b"something else")
    with pytest.raises(build_horovod.Failure, match=r"sha256 [0-9a-f]{64}, not .*refusing"):
        build_horovod.fetch_source(given, tmp_path)


def test_nccls_wheel_is_found_where_python_finds_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.split(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    assert build_horovod.nccl_of_wheel() is None
    (tmp_path / "nvidia" / "nccl" / "include").mkdir(parents=True)
    importlib.invalidate_caches()
    assert build_horovod.nccl_of_wheel() == str((tmp_path / "nvidia" / "nccl").resolve())
