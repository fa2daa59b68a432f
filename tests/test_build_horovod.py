"""Horovod is built from a source distribution only if that is the known one."""

from __future__ import annotations

import importlib
import sys
import unittest.mock
from pathlib import Path
from typing import Any

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


@pytest.fixture
def quick_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel is an empty file."""

    def compiled(_: Path, into: Path, environment: dict[str, str], log: Path) -> None:
        into.mkdir()
        (into / f"horovod-0.28.1+{environment['HOROVOD_LOCAL_VERSION']}-py3.whl").touch()

    nothing: Any = lambda *_: None  # noqa: E731
    for name in ("fetch_source", "edit_source", "installed_version"):
        monkeypatch.setattr(build_horovod, name, nothing)
    monkeypatch.setattr(build_horovod, "compile_wheel", compiled)


@pytest.mark.usefixtures("with_tools", "quick_builds")
def test_equal_folders_of_two_mpis_make_two_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrapper, cache = tmp_path / "mpicxx", tmp_path / "cache"
    monkeypatch.setattr(build_horovod, "tool_path", lambda: str(tmp_path))
    show = f'[ "$1" = -show ] && echo g++ -L{tmp_path}/lib -lmpi && exit 0'
    for knows_showme in ("true", "false", "true"):  # as Open MPI does, and nobody else
        wrapper.write_text(f"#!/bin/sh\n{show}\n{knows_showme}\n")
        wrapper.chmod(0o700)
        assert build_horovod.main(["--wheel-only", "--cache", str(cache)]) == 0
    said = capsys.readouterr().out.splitlines()
    first, second, third = (line for line in said if line.endswith(".whl"))
    assert first == third != second
    assert len(list(cache.iterdir())) == 2


@pytest.mark.usefixtures("with_tools", "quick_builds")
def test_a_build_leaves_alone_what_another_one_moves(tmp_path: Path) -> None:
    (tmp_path / "partial").write_text("another build's")
    for _ in range(2):
        assert build_horovod.main(["--wheel-only", "--without-mpi", "--cache", str(tmp_path)]) == 0
    assert (tmp_path / "partial").read_text() == "another build's"
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".whl"]


def test_a_horovod_that_cannot_be_imported_says_how_to_build_it_anew(tmp_path: Path) -> None:
    wheel = tmp_path / "horovod-0.28.1+b1-py3.whl"
    with pytest.raises(build_horovod.Failure) as why:
        build_horovod.check_import({"nothing": "1"}, False, wheel)
    said = str(why.value)
    assert "Horovod is installed, but `import horovod.nothing as hvd" in said
    anew = f"to build it anew: pip uninstall -y horovod, delete {wheel}, and run this again"
    assert anew in said and "ModuleNotFoundError" in said
