"""NCCL is hooked in libraries named as those of PyTorch and Horovod; here they are small."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from omnihvd.intercept import nccl

FUNCTIONS = (
    "ncclAllReduce",
    "ncclGroupStart",
    "ncclGroupEnd",
    "ncclGroupSimulateEnd",
    "ncclCommDestroy",
    "ncclCommFinalize",
    "ncclCommAbort",
    "ncclCommShrink",
    "ncclCommGetAsyncError",
)
# Calls of all of them: the number of those that ended in NCCL itself.
CALLER = "".join(f"int {f}(void);" for f in FUNCTIONS) + (
    "int in_nccl(void) { return " + " + ".join(f"{f}()" for f in FUNCTIONS) + "; }"
)
NCCL = "".join(f"int {f}(void) {{ return 1; }}" for f in FUNCTIONS)

SETUP = """
import ctypes, os, sys, types
from pathlib import Path
from omnihvd import engine
from omnihvd.intercept import nccl
from omnihvd.intercept import horovod_library
caller = ctypes.CDLL(os.environ["CALLER"])
(library,) = engine.hook.loaded_libraries(os.environ["CALLER"])
sys.modules["horovod"] = types.ModuleType("horovod")
sys.modules["horovod"].__file__ = f"{Path(library).parents[2]}/horovod/__init__.py"
torchs = lambda: engine.hook.loaded_libraries(nccl.TORCH)
"""


def library(path: Path, source: str, *needed: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(path)]
    command += [str(n) for n in needed] + [f"-Wl,-rpath,{n.parent}" for n in needed]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)
    return path


def run(caller: Path, script: str, gpu: str = "auto") -> str:
    done = subprocess.run(
        [sys.executable, "-c", SETUP + script],
        env={
            "CALLER": str(caller),
            "OMNIHVD_GPU": gpu,
            "PATH": "/usr/bin",
            "PYTHONPATH": ":".join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "path, loaded",
    [
        ("torch/lib/libtorch_cuda.so", "torchs()"),
        ("horovod/torch/mpi_lib.so", "horovod_library.loaded()"),
    ],
)
def test_all_functions_are_hooked_in_pytorch_and_horovod(tmp_path, path, loaded):
    nccl = library(tmp_path / "libnccl.so.2", NCCL)
    caller = library(tmp_path / path, CALLER, nccl)
    said = run(
        caller,
        f"""
assert caller.in_nccl() == len(nccl.FUNCTIONS)
assert nccl.problem(library) is None  # the ranks have not met: `omnihvd check` says what will be
assert nccl._hook_if_all_ask({loaded}, lambda answer: "rank 1 does not") is False
assert not engine.hook.installed()
assert nccl._hook_if_all_ask({loaded}, lambda answer: "")
assert nccl.is_hooked(library) and nccl.problem(library) is None
hooked = {{function for path, function in engine.hook.installed() if path == library}}
assert hooked == set(nccl.FUNCTIONS)
nccl._hook_or_unhook({loaded}, lambda answer: "rank 1 does not")  # a rank that joined later
assert not engine.hook.installed() and caller.in_nccl() == len(nccl.FUNCTIONS)
print("done")
""",
    )
    assert "done" in said


def test_static_nccl_is_reported_with_the_remedy(tmp_path):
    caller = library(tmp_path / "horovod/torch/mpi_lib.so", NCCL + "int f(void) { return 1; }")
    said = run(
        caller,
        """
assert nccl._hook_if_all_ask(horovod_library.loaded(), lambda answer: answer) is False
""",
    )
    assert "statically linked" in said and "HOROVOD_NCCL_LINK=SHARED" in said


def test_two_nccls_in_a_process_are_refused(tmp_path):
    one = library(tmp_path / "one/libnccl.so.2", NCCL)
    two = library(tmp_path / "two/libnccl.so.3", NCCL)
    torch = library(tmp_path / "torch/lib/libtorch_cuda.so", CALLER, one)
    horovod = library(tmp_path / "horovod/torch/mpi_lib.so", CALLER, two)
    said = run(
        torch,
        f"""
other = ctypes.CDLL({str(horovod)!r})
assert nccl._hook_if_all_ask(torchs(), lambda answer: "")
assert not nccl._hook_if_all_ask(horovod_library.loaded(), lambda answer: answer)
nccl._hook_or_unhook(horovod_library.loaded(), lambda answer: answer)
assert other.in_nccl() == len(nccl.FUNCTIONS) and nccl.is_hooked(library)
""",
    )
    assert "use different NCCLs" in said and "HOROVOD_NCCL_HOME" in said


def test_each_group_has_its_own_question(monkeypatch):
    """The verdict on one group is no answer for another, of the same first and last rank."""
    asked = []
    monkeypatch.setattr(
        nccl.gpu_request, "ask_store", lambda store, place, ranks, name, answer: asked.append(name)
    )
    monkeypatch.setattr(nccl, "_asked", type(nccl._asked)())
    c10d = types.SimpleNamespace(
        get_process_group_ranks=lambda group: group,
        get_rank=lambda: 0,
        _get_default_store=lambda: None,
    )
    for group in ([0, 1, 3], [0, 2, 3], [0, 1, 3]):
        nccl._ask_torch(c10d, group, "way")("yes")
    assert len(set(asked)) == 3
    assert [name.rpartition("/")[2] for name in asked] == ["1", "1", "2"]


def test_a_rank_that_joins_later_is_asked_the_same_as_the_others(monkeypatch):
    """An elastic job shuts Horovod down and begins anew with ranks that have asked nothing."""
    monkeypatch.setattr(nccl, "_asked", type(nccl._asked)())
    monkeypatch.setattr(nccl.horovod_library, "framework_of", lambda horovod: "horovod.torch")
    first = nccl._question("horovod.torch"), nccl._question("init/1")
    nccl._horovod_ended(None)
    assert nccl._question("horovod.torch") == first[0]
    assert nccl._question("init/1") != first[1]


def test_a_folder_named_horovod_makes_no_library_horovods(tmp_path):
    nccl = library(tmp_path / "libnccl.so.2", NCCL)
    venv = tmp_path / "horovod/venv/site"
    others = [venv / "mpi4py/mpi_lib.so", venv / "numpy/libs/libblas.so", venv / "x/libmpi_lib.so"]
    paths = [library(path, CALLER, nccl) for path in others]
    own = library(venv / "horovod/torch/mpi_lib_v2.so", CALLER, nccl)
    said = run(
        own,
        f"""
for path in {list(map(str, paths))!r}:
    ctypes.CDLL(path)
assert horovod_library.loaded() == [library]
print("done")
""",
    )
    assert "done" in said


def test_original_hooks_nothing_and_says_so(tmp_path):
    nccl = library(tmp_path / "libnccl.so.2", NCCL)
    caller = library(tmp_path / "torch/lib/libtorch_cuda.so", CALLER, nccl)
    said = run(
        caller,
        """
from omnihvd.intercept import torch_gloo
def unexpected(then):
    raise AssertionError("a hook at the start of a job")
torch_gloo.on_init = horovod_library.on_init = unexpected
nccl.install()
assert not engine.hook.installed() and caller.in_nccl() == len(nccl.FUNCTIONS)

import omnihvd
from omnihvd.intercept import in_use
in_use.horovod_problem = lambda: nccl.problem(library)
for _ in range(2):
    omnihvd.OmniReduce.compress(None)
""",
        gpu="original",
    )
    assert said.count("OmniReduce is not in use, Horovod reduces as without it") == 1
    assert (
        "reduces as without it: OMNIHVD_GPU is original, the default, as omnihvd's algorithms have "
        "not run on a GPU yet; set OMNIHVD_GPU=auto on all ranks, or use torch.sum_unions "
        "(docs/gpu.md)"
    ) in said
