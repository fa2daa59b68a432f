"""A job loads the core alone: what it does not use lies in libraries of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omnihvd import engine

# Namespaces and prefixes of what lies beside the core.
BESIDE = re.compile(
    r"simulation::|simulator|nccl|cuda|inline|innetwork|datagram|udp|fpisa", re.IGNORECASE
)
INNETWORK = "libomnihvd_innetwork.so"

SUM = """
import threading
import numpy as np
from omnihvd import engine

said, barrier = [b"", b""], threading.Barrier(2, timeout=30)
sums = np.arange(2000, dtype=np.float32) + np.array([[1], [10_000]], np.float32)

def work(rank):
    def allgather(mine):
        said[rank] = mine
        barrier.wait()
        every = list(said)
        barrier.wait()
        return every

    settings = engine.session.settings_from_environment()
    group = engine.session.Engine(settings).join(rank, 2, allgather)
    group.allreduce(sums[rank], sums[rank])
    barrier.wait()

lock = threading.Lock()

def say(failure):  # in one piece: both ranks may fail at once
    with lock:
        print(f"{failure.exc_type.__name__}: {failure.exc_value}", flush=True)

threading.excepthook = say
ranks = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join(60)
assert (sums == 2 * np.arange(2000) + 10_001).all(), sums
print(*sorted({line.split("/")[-1].strip() for line in open("/proc/self/maps") if "/" in line}))
"""


def run(program: str, path: Path = Path(engine.__file__).parents[1], **env: str) -> str:
    given = {k: v for k, v in os.environ.items() if not k.startswith("OMNIHVD_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**given, "PYTHONPATH": str(path), **env},
        cwd=path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.stdout


def test_the_engine_has_no_symbol_of_what_lies_beside_it() -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("needs nm (binutils)")
    command = [nm, "-DC", "--defined-only", str(engine.LIBRARY)]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "omnihvd::Engine" in symbols
    assert not [line for line in symbols.splitlines() if BESIDE.search(line)]


@pytest.mark.parametrize(
    ("setting", "loads"),
    [
        ({}, False),
        ({"OMNIHVD_TRANSPORT": "ucx", "OMNIHVD_ARITHMETIC": "float"}, False),
        ({"OMNIHVD_TRANSPORT": "udp"}, True),
        ({"OMNIHVD_ARITHMETIC": "integer"}, True),
        ({"OMNIHVD_ARITHMETIC": "fpisa"}, True),
    ],
    ids=str,
)
def test_a_sum_loads_what_it_uses(setting: dict[str, str], loads: bool) -> None:
    loaded = run(SUM, **setting)
    assert "libomnihvd.so" in loaded, loaded
    assert (INNETWORK in loaded) == loads, loaded
    assert not re.search(r"libomnihvd_(nccl|mpi|gloo)|simulator|_core|_xdp|libcuda", loaded), loaded


HOOKED = """
import ctypes
import os
from pathlib import Path
from omnihvd import engine

if cards:
    engine.CARDS = Path(cards)
names = ("mmap", "munmap", "mremap", "shmat", "shmdt", "madvise")
at = [ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value for name in names]
before = [ctypes.string_at(address, 5) for address in at]
end = engine.transport.LinkEnd(1000)
changed = [ctypes.string_at(address, 5) for address in at] != before
print(changed, [name for name in os.environ if name.startswith("UCX_MEM")])
"""


@pytest.mark.parametrize(
    ("mode", "cards", "said"),
    [
        (None, "/no/cards", "False []"),
        (None, "/proc/self", "True []"),
        ("bistro", "/no/cards", "True ['UCX_MEM_MMAP_HOOK_MODE']"),
    ],
)
def test_ucx_rewrites_functions_of_the_process_only_for_cards(
    mode: str | None, cards: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for 0.4 s."""
    monkeypatch.delenv(engine.HOOKS, raising=False)
    env = {engine.HOOKS: mode} if mode else {}
    assert run(f"cards = {cards!r}" + HOOKED, **env).strip() == said


def test_two_threads_may_load_the_engine_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(engine.HOOKS, raising=False)
    monkeypatch.setattr(engine, "CARDS", tmp_path)
    with engine._no_hooks():
        del os.environ[engine.HOOKS]  # as the other one does when it is done
    assert engine.HOOKS not in os.environ


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package, with libraries that a test may change."""
    package = Path(engine.__file__).parent
    shutil.copytree(package, tmp_path / "omnihvd", ignore=shutil.ignore_patterns("csrc"))
    return tmp_path


def test_a_library_of_another_build_is_refused(copy: Path) -> None:
    library = copy / "omnihvd/lib" / INNETWORK
    build = engine.build_id().encode()
    content = library.read_bytes()
    assert content.count(build) == 1
    library.write_bytes(content.replace(build, b"0" * len(build)))
    said = run(SUM, copy, OMNIHVD_TRANSPORT="udp")
    lines = [line for line in said.splitlines() if "EngineError" in line]
    assert len(lines) == 2, said  # one a rank
    for line in lines:
        assert f"{library} is of build {'0' * len(build)}, and libomnihvd.so is of build " in line
        assert "install omnihvd again" in line
    said = run("from omnihvd import inline; inline.core()", copy)
    assert f"{library} is of build 0" in said


@pytest.mark.parametrize(
    "setting", [{"OMNIHVD_TRANSPORT": "udp"}, {"OMNIHVD_ARITHMETIC": "fpisa"}], ids=str
)
def test_a_library_that_is_missing_is_named(copy: Path, setting: dict[str, str]) -> None:
    (copy / "omnihvd/lib" / INNETWORK).unlink()
    said = run(SUM, copy, **setting)
    assert f"{INNETWORK} is missing: install omnihvd again" in said
    assert "EngineError" not in run(SUM, copy)


def test_a_file_that_is_no_part_is_refused(copy: Path) -> None:
    library = copy / "omnihvd/lib" / INNETWORK
    library.write_bytes(b"no library")
    assert f"{INNETWORK} cannot be loaded (" in run(SUM, copy, OMNIHVD_TRANSPORT="udp")
    shutil.copy(copy / "omnihvd/lib/libomnihvd_gloo.so", library)
    assert "is no part of omnihvd" in run(SUM, copy, OMNIHVD_TRANSPORT="udp")
