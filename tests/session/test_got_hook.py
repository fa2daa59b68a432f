"""The GOT hook, on libraries compiled here: no MPI involved."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnihvd import _engine

hook = _engine.hook


def installed() -> set[tuple[str, str]]:
    """This file's hooks: other tests may have imported Horovod, in which there are others."""
    return {entry for entry in hook.installed() if entry[1] == "answer"}


CC = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(CC is None, reason="needs a C compiler")

LINKS = {
    "now": ["-Wl,-z,now", "-Wl,-z,relro"],  # JUMP_SLOT in read-only memory, like Horovod
    "lazy": ["-Wl,-z,lazy", "-Wl,-z,relro"],  # JUMP_SLOT not resolved yet
    "no-plt": ["-fno-plt", "-Wl,-z,now", "-Wl,-z,relro"],  # GLOB_DAT
    "writable": ["-Wl,-z,lazy", "-Wl,-z,norelro"],
}


def build(folder: Path, name: str, source: str, *options: str) -> str:
    path = folder / f"lib{name}.so"
    command = [str(CC), "-O1", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", *options]
    subprocess.run([*command, "-o", str(path)], input=source, text=True, check=True, timeout=60)
    return str(path)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library with answer() == 1."""
    return build(tmp_path_factory.mktemp("original"), "original", "int answer(void) { return 1; }")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory, original: str) -> str:
    """A library with two() == 2 and three() == 3, which itself calls answer() too."""
    source = """int answer(void);
                int two(void) { return answer() + 1; }
                int three(void) { return answer() + 2; }"""
    return build(tmp_path_factory.mktemp("shim"), "hookee_shim", source, original)


@pytest.fixture(autouse=True)
def unhook() -> Iterator[None]:
    yield
    hook.remove("answer")
    assert installed() == set()


def caller(folder: Path, original: str, name: str, link: str = "now") -> tuple[str, ctypes.CDLL]:
    source = "int answer(void); int call(void) { return answer(); }"
    path = build(folder, name, source, original, *LINKS[link])
    return path, ctypes.CDLL(path)


def protections(path: str) -> list[str]:
    """The protection of each mapping of this file, in order, of equal neighbours one."""
    kinds: list[str] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(path) and (not kinds or kinds[-1] != line.split()[1]):
            kinds.append(line.split()[1])
    return kinds


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("called_before", [False, True])
def test_redirects_and_restores(
    tmp_path: Path, original: str, shim: str, link: str, called_before: bool
) -> None:
    path, library = caller(tmp_path, original, "caller", link)
    if called_before:
        assert library.call() == 1
    before = protections(path)
    assert hook.install(path, "answer", shim, "two") == [path]
    assert library.call() == 2
    assert installed() == {(path, "answer")}
    assert protections(path) == before
    hook.remove("answer")
    assert library.call() == 1
    assert installed() == set()
    assert protections(path) == before


def test_both_kinds_of_slot(tmp_path: Path, original: str, shim: str) -> None:
    source = """int answer(void);
                int (*volatile pointer)(void);
                int call(void) { return answer(); }
                int through(void) { pointer = answer; return pointer(); }"""
    path = build(tmp_path, "pointer", source, original, *LINKS["now"])
    library = ctypes.CDLL(path)
    assert hook.install(path, "answer", shim, "two") == [path]
    assert (library.call(), library.through()) == (2, 2)


def test_touches_only_what_is_named(tmp_path: Path, original: str, shim: str) -> None:
    path, library = caller(tmp_path, original, "mine")
    _, other = caller(tmp_path, original, "other")
    assert hook.install("/libmine.so", "answer", shim, "two") == [path]
    assert (library.call(), other.call()) == (2, 1)


def test_repeats_are_harmless_and_reach_later_libraries(
    tmp_path: Path, original: str, shim: str
) -> None:
    folder = str(tmp_path)
    first, one = caller(tmp_path, original, "first")
    assert hook.install(folder, "answer", shim, "two") == [first]
    second, two = caller(tmp_path, original, "second")
    assert (one.call(), two.call()) == (2, 1)
    assert hook.install(folder, "answer", shim, "two") == [first, second]
    assert (one.call(), two.call()) == (2, 2)
    hook.remove("answer")
    assert (one.call(), two.call()) == (1, 1)


def test_another_shim_takes_over_and_the_original_returns(
    tmp_path: Path, original: str, shim: str
) -> None:
    path, library = caller(tmp_path, original, "taken_over")
    hook.install(path, "answer", shim, "two")
    assert hook.install(path, "answer", shim, "three") == [path]
    assert library.call() == 3
    hook.remove("answer")
    assert library.call() == 1


def test_the_shim_itself_is_left_alone(tmp_path: Path, original: str, shim: str) -> None:
    path, library = caller(tmp_path, original, "hookee")
    assert hook.install("/libhookee", "answer", shim, "two") == [path]
    assert library.call() == 2  # would recurse for ever, were the shim's own call redirected


def test_survives_an_unloaded_library(tmp_path: Path, original: str, shim: str) -> None:
    path, library = caller(tmp_path, original, "unloaded")
    hook.install(path, "answer", shim, "two")
    ctypes.CDLL(None).dlclose(ctypes.c_void_p(library._handle))
    assert hook.loaded_libraries(path) == []
    assert installed() == set()
    hook.remove("answer")
    again = ctypes.CDLL(path)
    assert again.call() == 1
    assert hook.install(path, "answer", shim, "two") == [path]
    assert again.call() == 2


def test_no_slot_no_hook(tmp_path: Path, original: str, shim: str) -> None:
    """As with a statically linked MPI, or a Horovod that knows Gloo only."""
    static = build(
        tmp_path,
        "static",
        "int answer(void) { return 1; } int call(void) { return answer(); }",
        "-fvisibility=hidden",
    )
    ctypes.CDLL(static)
    assert hook.loaded_libraries(static) == [static]
    assert not hook.imports(static, "answer")
    assert hook.install(static, "answer", shim, "two") == []
    assert hook.install("/no/such/library", "answer", shim, "two") == []
    assert installed() == set()


def test_queries(tmp_path: Path, original: str) -> None:
    path, _ = caller(tmp_path, original, "asked")
    assert hook.loaded_libraries(str(tmp_path)) == [path]
    assert hook.imports(path, "answer")
    assert not hook.imports(path, "call")
    assert hook.provider(path, "answer") == original
    assert hook.provider(path, "call") == path


def test_errors_name_the_cause(tmp_path: Path, original: str, shim: str) -> None:
    path, _ = caller(tmp_path, original, "erring")
    with pytest.raises(_engine.EngineError, match=r"/no/such[.]so is not loaded in this process"):
        hook.imports("/no/such.so", "answer")
    with pytest.raises(_engine.EngineError, match=r"/no/such[.]so is not loaded in this process"):
        hook.provider("/no/such.so", "answer")
    needs = "neither .* nor the libraries it needs have the function nothing"
    with pytest.raises(_engine.EngineError, match=needs):
        hook.provider(path, "nothing")
    missing = "cannot load a part of omnihvd: .*no/such_shim[.]so"
    with pytest.raises(_engine.EngineError, match=missing):
        hook.install(path, "answer", "/no/such_shim.so", "two")
    with pytest.raises(_engine.EngineError, match=r"has no function four"):
        hook.install(path, "answer", shim, "four")


def test_while_other_threads_call(tmp_path: Path, original: str, shim: str) -> None:
    path, library = caller(tmp_path, original, "busy")
    stop = threading.Event()
    answers: set[int] = set()

    def work() -> None:
        while not stop.is_set():
            answers.add(library.call())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            hook.install(path, "answer", shim, "two")
            hook.remove("answer")
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=30)
    assert answers <= {1, 2}
