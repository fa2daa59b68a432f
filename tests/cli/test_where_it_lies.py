"""A checkout beside an installed omnihvd, and a UCX that is not where the engine looks for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "omnihvd"


def sources(folder: Path) -> Path:
    """The package as a checkout has it, with no engine built."""
    ignored = shutil.ignore_patterns("*.so", "csrc", "__pycache__", "lib")
    shutil.copytree(PACKAGE, folder / "omnihvd", ignore=ignored)
    return folder


def python(*words: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", *words],  # nothing of this environment's is installed
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", **({"PYTHONPATH": str(path)} if path else {})},
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = sources(tmp_path / "checkout")
    (folder / "train.py").write_text(
        "import omnihvd\nfrom omnihvd import OmniReduce, engine\n"
        "print(engine.session.stats()['calls'], omnihvd.__file__)"
    )
    return folder


@pytest.mark.parametrize("words", [["-m", "omnihvd", "train.py"], ["train.py"]], ids=" ".join)
def test_sources_give_way_to_what_is_installed(
    checkout: Path, tmp_path: Path, words: list[str]
) -> None:
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "omnihvd").symlink_to(PACKAGE)
    said = python(*words, cwd=checkout, path=installed)
    assert said.stdout == f"0 {installed}/omnihvd/__init__.py\n", said.stderr
    assert f"{checkout / 'omnihvd'} has no engine built" in said.stderr
    assert f"installed in {installed}" in said.stderr


def test_what_make_quick_builds_gives_way_to_what_is_installed(tmp_path: Path) -> None:
    folder, installed = tmp_path / "clone", tmp_path / "installed"
    partial = shutil.ignore_patterns("csrc", "__pycache__", "libomnihvd_*", "openmpi", "mpich")
    shutil.copytree(PACKAGE, folder / "omnihvd", ignore=partial)
    (folder / "train.py").write_text("import omnihvd; print(omnihvd.__file__)")
    installed.mkdir()
    (installed / "omnihvd").symlink_to(PACKAGE)
    said = python("-m", "omnihvd", "train.py", cwd=folder, path=installed)
    assert said.stdout == f"{installed}/omnihvd/__init__.py\n", said.stderr
    assert f"{folder / 'omnihvd'} has no shims built" in said.stderr


def test_sources_alone_say_what_to_do(checkout: Path) -> None:
    said = python("-m", "omnihvd", "train.py", cwd=checkout)
    assert said.returncode == 2 and said.stderr.count("\n") == 1
    assert f"engine is not built in {checkout / 'omnihvd'}" in said.stderr
    assert "make build" in said.stderr


def test_a_check_in_a_checkout_looks_at_itself(checkout: Path, tmp_path: Path) -> None:
    """Its processes import the omnihvd that began them, and not that of the present folder."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("")
    script = "from omnihvd.check.probe import Probe; print(Probe('torch').answer())"
    program = f"import sys; sys.path[:] = {[str(PACKAGE.parent), str(tmp_path), *sys.path]}; "
    said = python("-c", program + script, cwd=checkout)
    assert said.stdout == "{'built': [], 'hooked': {}, 'problems': {}}\n", said.stderr


def test_ucx_is_found_wherever_python_has_it(tmp_path: Path) -> None:
    """With a stand-in for UCX, and for the engine, which knows no path to it."""
    installed = sources(tmp_path / "installed")
    ucx = tmp_path / "elsewhere/libucx"
    (ucx / "lib").mkdir(parents=True)
    (ucx / "__init__.py").write_text("")
    # As there, a part uses one that it does not name, so that only the last can be loaded alone.
    ucm, ucs, ucp = (ucx / f"lib/lib{part}.so.0" for part in ("ucm", "ucs", "ucp"))
    library(ucm, "int ucs(void); int ucm(void) { return ucs(); }")
    library(ucs, "int ucm(void); int ucs(void) { return 1; } int both(void) { return ucm(); }", ucm)
    library(ucp, "int ucs(void); int ucp(void) { return ucs(); }", ucs, ucm)
    engine = """
        #include <Python.h>
        int ucp(void);
        static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_engine", 0, -1};
        PyMODINIT_FUNC PyInit__engine(void) {
          PyObject *m = PyModule_Create(&module);
          PyModule_AddIntConstant(m, "EngineError", ucp());
          PyModule_AddIntConstant(m, "build_id", ucp());
          PyModule_AddIntConstant(m, "codec", ucp());
          PyModule_AddIntConstant(m, "hook", ucp());
          PyModule_AddIntConstant(m, "load_part", ucp());
          PyModule_AddIntConstant(m, "session", ucp());
          PyModule_AddIntConstant(m, "transport", ucp());
          return m;
        }"""
    suffix = EXTENSION_SUFFIXES[0]
    library(installed / f"omnihvd/_engine{suffix}", engine, ucp, path_to_needed=False)
    program = "from omnihvd import engine; print(engine.session)"
    alone = python("-c", program, cwd=tmp_path, path=installed)
    assert "libucp.so.0" in alone.stderr and "libucx-cu13" in alone.stderr
    beside = python(
        "-c", f"import sys; sys.path.append({str(ucx.parent)!r}); {program}", cwd=installed
    )
    assert beside.stdout == "1\n", beside.stderr


def library(path: Path, source: str, *needed: Path, path_to_needed: bool = True) -> None:
    """path_to_needed: those lie beside it."""
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(path)]
    command += ["-Wl,-rpath,$ORIGIN"] if path_to_needed else []
    command += [f"-I{sysconfig.get_path('include')}", f"-Wl,-soname,{path.name}", *map(str, needed)]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)
