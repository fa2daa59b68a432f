"""A copy of this repository with all mutants in it, and its build."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.mutants import cxx, python
from benchmarks.mutants.sites import CXX, ROOT, Site, files, numbered

SWITCH = Path(__file__).parent / "switch"
FLAGS = "-w -Wno-narrowing -O1 -D_GLIBCXX_ASSERTIONS"  # assertions find reads beyond a vector
CMAKE = ["-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF", f"-DCMAKE_CXX_FLAGS={FLAGS}",
         "-DOMNIHVD_WERROR=OFF", "-DCMAKE_BUILD_TYPE=None"]  # fmt: skip
DECIDES = re.compile(r"(omnihvd|kernels|simulator|tests)/(?!(.*/)?test_[^/]*$)").match


class Tree:
    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self.dropped_file = folder / "dropped.json"  # keys of sites that do not compile
        self.root.mkdir(parents=True, exist_ok=True)
        self.written: dict[str, str] = {}  # the hash of each file

    def key(self) -> str:
        """A hash of all that decides which mutants a test reaches, but for the file of the test."""
        deciding = [(name, text) for name, text in sorted(self.written.items()) if DECIDES(name)]
        return hashlib.sha256(repr([FLAGS, deciding]).encode()).hexdigest()[:16]

    def dropped(self) -> set[str]:
        text = self.dropped_file.read_text() if self.dropped_file.exists() else "[]"
        return set(json.loads(text))

    def write(self, name: str, data: bytes) -> None:
        """Leaves a file as it is that has these bytes, so that nothing is built anew."""
        path = self.root / name
        self.written[name] = hashlib.sha256(data).hexdigest()
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def copy(self) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "-zco", "--exclude-standard"], cwd=ROOT, capture_output=True
        )
        for name in listed.stdout.decode().strip("\0").split("\0"):
            if (ROOT / name).is_file() and name not in self.mutated:
                self.write(name, (ROOT / name).read_bytes())
                (self.root / name).chmod((ROOT / name).stat().st_mode)
        for suffix in ("h", "cc"):
            data = (SWITCH / f"mutant_switch.{suffix}").read_bytes()
            self.write(f"{CXX}/base/mutant_switch.{suffix}", data)
        self.write("omnihvd/mutant_switch.py", (SWITCH / "mutant_switch.py").read_bytes())

    def make(self, sites: list[Site]) -> None:
        """Copies, puts the mutants in, and builds; forgets those that do not compile."""
        self.mutated = {site.path for site in sites}
        self.copy()
        while True:
            dropped = self.dropped()
            for name in self.mutated:
                here = [
                    (n, s) for n, s in enumerate(sites) if s.path == name and s.key() not in dropped
                ]
                data = (ROOT / name).read_bytes()
                if name.endswith(".py"):
                    self.write(name, python.rewrite(data, name, here).encode())
                else:
                    self.write(name, cxx.rewrite(data.decode("latin-1"), here).encode("latin-1"))
            said = self.build()
            if not said:
                return
            bad = self.blamed(said)
            print(f"{len(bad)} mutants do not compile", flush=True)
            if not bad:
                raise SystemExit(f"the tree with mutants does not compile:\n{said[-6000:]}")
            keys = dropped | {sites[n].key() for n in bad}
            self.dropped_file.write_text(json.dumps(sorted(keys), indent=1))

    def build(self) -> str:
        """Returns the compiler's words if it fails."""
        environment = {**os.environ, "OMNIHVD_TARGETS": "all -- -k 0",
                       "CMAKE_ARGS": shlex.join(CMAKE)}  # fmt: skip
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True)
        if done.returncode == 0:
            return self.build_fuzz()
        return (done.stdout + done.stderr).decode(errors="replace")

    def build_fuzz(self) -> str:
        """The fuzz targets, each to take committed inputs only."""
        library, into = self.root / "omnihvd" / "lib", self.root / "build" / "fuzz"
        into.mkdir(parents=True, exist_ok=True)
        ccache = [word] if (word := shutil.which("ccache")) else []
        for source in sorted((self.root / "tests" / "fuzz").glob("*.cc")):
            program = into / source.stem
            # Also if it is there: the mutants of its headers may have other numbers now.
            command = [*ccache, "c++", "-std=c++17", *FLAGS.split(), f"-I{self.root / CXX}",
                       f"-I{self.root}", str(source), "-c", "-o", f"{program}.o"]  # fmt: skip
            link = ["c++", f"{program}.o", "-xc++", str(SWITCH / "replay.cc"), "-o", str(program),
                    f"-L{library}", "-lomnihvd_innetwork", "-lomnihvd", "-lpthread", "-ldl",
                    f"-Wl,-rpath,{library}",
                    "-Wl,--unresolved-symbols=ignore-in-shared-libs"]  # fmt: skip
            for words in (command, link):
                done = subprocess.run(words, capture_output=True, text=True)
                if done.returncode:
                    return done.stderr
        return ""

    def blamed(self, said: str) -> set[int]:
        """The mutants on lines that an error names; else, on those that its notes name."""
        result = set()
        for block in re.split(r"\n(?=\S+:\d+:\d+: (?:fatal )?error: )", "\n" + said):
            for path, line in re.findall(r"^(\S+):(\d+):\d+:", block, re.M):
                file = Path(path) if Path(path).is_absolute() else self.root / "build/engine" / path
                if not file.exists():
                    continue
                text = file.read_text(errors="replace").split("\n")[int(line) - 1]
                found = {int(n) for n in re.findall(r"omnihvd_mutant\((\d+)\)", text)}
                if found:
                    result |= found
                    break
        return result


def all_sites() -> list[Site]:
    """Needs the build's list of compiler calls, which `make build` writes."""
    names = files()
    commands = ROOT / "build" / "engine" / "compile_commands.json"
    if not commands.exists():
        raise SystemExit("the engine is not built here: make build")
    said = subprocess.run(["c++", "-print-file-name=include"], capture_output=True, text=True)
    own = said.stdout.strip()  # libclang's wheel has no headers of its own
    arguments = {}
    for entry in json.loads(commands.read_text()):
        name = os.path.relpath(entry["file"], ROOT)
        if name in names and "_avx" not in name:  # vectors are the same loops
            words = [w for w in shlex.split(entry["command"]) if w.startswith(("-I", "-D", "-m"))]
            arguments[entry["file"]] = ["-std=c++17", *words, "-isystem", own]
    return numbered([*cxx.find(ROOT, names, arguments), *python.find(ROOT, names)])
