"""Horovod is built from a source distribution only if that is the known one."""

from __future__ import annotations

import importlib
import sys
import unittest.mock
from pathlib import Path

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


@pytest.fixture
def with_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_horovod, "choose_frameworks", lambda _: {"torch": "1"})
    monkeypatch.setattr(build_horovod, "check_tools", lambda _: None)


@pytest.mark.usefixtures("with_tools")
def test_an_installed_horovod_that_cannot_be_imported_stays_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise build_horovod.Failure("it cannot be imported")

    monkeypatch.setattr(build_horovod, "installed_version", lambda _: unittest.mock.ANY)
    monkeypatch.setattr(build_horovod, "check_import", fails)
    assert build_horovod.main(["--without-mpi", "--cache", str(tmp_path)]) == 1
    assert "it cannot be imported" in capsys.readouterr().err


@pytest.mark.usefixtures("with_tools")
def test_a_cache_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert build_horovod.main(["--without-mpi", "--cache", str(tmp_path / "file/x")]) == 1
    assert "name another folder by --cache" in capsys.readouterr().err


@pytest.mark.usefixtures("with_tools")
def test_without_a_home_folder_the_cache_has_to_be_named(monkeypatch, capsys) -> None:
    def nowhere(_: Path) -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", nowhere)
    with pytest.raises(SystemExit, match="2"):
        build_horovod.main(["--without-mpi"])
    assert "--cache" in capsys.readouterr().err
