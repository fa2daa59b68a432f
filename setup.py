"""Builds the engine (omnihvd/csrc) with CMake, and makes README.md's links absolute for an index of
packages. Everything else is declared in pyproject.toml.

Build settings (environment):
  OMNIHVD_UCX_HOME  prefix of the UCX to use, or `system`: pkg-config's; default: libucx's wheel
  MPI_HOME          prefix of the MPI to build the MPI shim for; default: the one of mpicxx
  CMAKE_ARGS        more arguments for CMake
  OMNIHVD_TARGETS   what to build of it: `omnihvd _engine` will do for torch.distributed. The first
                    such build in a folder leaves out the simulation
  OMNIHVD_PROJECT_URL  where the repository is published, as https://github.com/OWNER/NAME; default:
                    the package names no address, and README.md keeps its relative links
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "omnihvd" / "csrc"
TESTS = ROOT / "tests" / "engine"  # what only tests need is built with the engine in place
SIMULATOR = ROOT / "simulator"  # so is the simulator; neither is in a wheel


def find_tool(name: str, remedy: str) -> str:
    """The tool beside this Python (a virtual environment's), else the one on PATH."""
    here = str(Path(sys.executable).parent)
    found = shutil.which(name, path=os.pathsep.join([here, os.environ.get("PATH", "")]))
    if not found:
        sys.exit(f"omnihvd: {name} is needed to build the engine and was not found; {remedy}")
    return found


def ucx_arguments() -> list[str]:
    home = os.environ.get("OMNIHVD_UCX_HOME")
    stays = True
    if not home:
        spec = importlib.util.find_spec("libucx")
        if spec is None or spec.origin is None:
            sys.exit(
                "omnihvd: UCX was not found; pip install libucx-cu13, or set OMNIHVD_UCX_HOME "
                "to the prefix of a system UCX (or to `system` for the one pkg-config knows)"
            )
        package = Path(spec.origin).resolve().parent
        # In pip's isolated build the wheel lies in a folder that is gone afterwards.
        stays = Path(sysconfig.get_path("platlib")).resolve() in package.parents
        home = str(package)
    return [f"-DOMNIHVD_UCX_HOME={home}", f"-DOMNIHVD_UCX_RPATH={'ON' if stays else 'OFF'}"]


class BuildPackage(build_py):
    """Copies the package's files into a folder that has nothing else."""

    def run(self) -> None:
        # pip builds in build/lib.*, where modules lie that an earlier version had.
        fresh = not (self.editable_mode or self.distribution.have_run.get("build_ext"))
        if fresh and Path(self.build_lib).resolve() != ROOT:
            shutil.rmtree(Path(self.build_lib, "omnihvd"), ignore_errors=True)
        super().run()


class BuildEngine(build_ext):
    """Runs CMake; its outputs go straight into the package's folder."""

    def run(self) -> None:
        for ext in self.extensions:
            self.build_extension(ext)

    def build_extension(self, ext: Extension) -> None:
        import pybind11

        output = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        build = ROOT / "build" / "engine" if self.inplace else Path(self.build_temp).resolve()
        cmake = find_tool("cmake", "pip install cmake")
        ninja = find_tool("ninja", "pip install ninja")
        tests = ROOT / "build" / "tests" if self.inplace and TESTS.exists() else ""
        simulator = SIMULATOR if self.inplace and SIMULATOR.exists() else ""
        targets = shlex.split(os.environ.get("OMNIHVD_TARGETS", ""))
        build.mkdir(parents=True, exist_ok=True)
        if not self.inplace:  # the tools and libraries found last time may be gone, or unwanted now
            (build / "CMakeCache.txt").unlink(missing_ok=True)
        configure = [
            cmake, "-S", str(CSRC), "-B", str(build), "-G", "Ninja",
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DOMNIHVD_OUTPUT={output}",
            f"-DOMNIHVD_TESTS={tests}",
            f"-DOMNIHVD_SIMULATOR={simulator}",
            *ucx_arguments(),
            *("-UOMNIHVD_MPICXX", "-UMPI_*"),  # another MPI_HOME, or PATH, is another MPI
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]  # fmt: skip
        with (build / "lock").open("w") as lock:  # one builder at a time in one folder
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Configuring says nothing but warnings and errors, which it writes to stderr.
            done = subprocess.run(configure, stdout=subprocess.DEVNULL).returncode == 0
            make = [cmake, "--build", str(build), *(["--target", *targets] if targets else [])]
            # Ninja would take jobs of `make -j`, which make does not give to such a recipe.
            env = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
            if not (done and subprocess.run(make, env=env).returncode == 0):
                sys.exit("omnihvd: building the engine failed; see the messages above")


def readme(url: str) -> str:
    """README.md with links to the files of this version at `url`."""
    text = (ROOT / "README.md").read_text()
    if not url:
        return text
    version = re.findall(r'"(.*)"', (ROOT / "omnihvd/version.py").read_text())[0]
    tag = "HEAD" if "dev" in version else f"v{version}"
    relative = re.compile(r"(!?)(\[[^]]*\]\()(?!\w+:|#)")
    folder = {"": "blob", "!": "raw"}  # a page, or the picture itself
    return relative.sub(lambda m: f"{m[1]}{m[2]}{url}/{folder[m[1]]}/{tag}/", text)


def urls(url: str) -> dict[str, str]:
    pages = {
        "Repository": "",
        "Documentation": "/blob/HEAD/docs/start.md",
        "Changelog": "/blob/HEAD/CHANGELOG.md",
        "Issues": "/issues",
    }
    return {name: url + page for name, page in pages.items()} if url else {}


URL = os.environ.get("OMNIHVD_PROJECT_URL", "").rstrip("/")

# `kernels` is a top-level folder here and a part of the package when installed.
kernels = ["omnihvd.kernels"] if (ROOT / "kernels" / "__init__.py").exists() else []

setup(
    long_description=readme(URL),
    long_description_content_type="text/markdown",
    project_urls=urls(URL),
    packages=find_packages(include=["omnihvd", "omnihvd.*"]) + kernels,
    package_dir={"omnihvd.kernels": "kernels"} if kernels else {},
    ext_modules=[
        Extension(
            "omnihvd._engine",
            sources=[],
            depends=[
                str(path.relative_to(ROOT))
                for path in sorted(CSRC.rglob("*"))
                if path.suffix in (".c", ".cc", ".h", ".txt")
            ],
        )
    ],
    cmdclass={"build_ext": BuildEngine, "build_py": BuildPackage},
)
