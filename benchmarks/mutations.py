"""How soon random jobs under fault injection find planted bugs: results/mutations.json.

    python benchmarks/mutations.py

Applies one patch of benchmarks/bugs after another to a copy of this repository, builds the engine
there, and runs the jobs of `python -m simulator --faults` from seed 0 on until one fails. It takes
minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.source import source  # noqa: E402

RESULT = Path(__file__).parent / "results" / "mutations.json"
MOST_JOBS = 20_000
# To build: without what links slowly. A checkout without Gloo's shim gives way to an installed
# omnihvd, which has no bug.
FAST = {
    "OMNIHVD_TARGETS": "_engine _core omnihvd_gloo",
    "CMAKE_ARGS": "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF " + os.environ.get("CMAKE_ARGS", ""),
}


# Says each seed before it runs, since a bug may end the process.
SEARCH = """
import sys
from simulator import faults
for seed in range(int(sys.argv[1])):
    print(seed, end="", flush=True)
    try:
        faults.run_seed(seed)
    except faults.EngineError as why:
        print("", why)
        break
    print()
"""


class Bug(NamedTuple):
    """A patch of benchmarks/bugs. Its first line names the bug."""

    patch: Path

    @property
    def name(self) -> str:
        with self.patch.open() as lines:
            return next(lines).strip()

    def apply(self, folder: Path, *options: str) -> None:
        command = ["git", "apply", *options, str(self.patch)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(
                f"this bug's place has moved: {self.patch.name} ({self.name}) no longer applies; "
                f"make the patch again where the code is now\n{done.stderr.strip()}"
            )


BUGS = [Bug(path) for path in sorted((Path(__file__).parent / "bugs").glob("*.patch"))]


def copy(to: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().strip("\0").split("\0"):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)


def build(folder: Path) -> None:
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=folder,
        env={**os.environ, **FAST},
        check=True,
        capture_output=True,
    )


def search(folder: Path) -> dict[str, object]:
    """The first seed that fails, and what it says; none within MOST_JOBS."""
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, str(MOST_JOBS)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if "is that installed in" in done.stderr:
        raise SystemExit(f"this is not the engine with the bug: {done.stderr.strip()}")
    *_, last = done.stdout.splitlines() or [""]
    seed, _, failure = last.partition(" ")
    if not seed:
        raise SystemExit(f"no job has begun: {done.stderr.strip()}")
    if done.returncode > 0:
        raise SystemExit(f"seed {seed}: {done.stderr.strip()}")
    if failure:
        said = failure.split("; ")[0].split(": ", 1)[1].split(" at ")[0]
    elif done.returncode < 0:  # a crash: by memory that is not the engine's
        said = f"the process ended by signal {-done.returncode}"
    else:
        return {"seed": None, "said": None}
    return {"seed": int(seed), "said": said}


def main() -> None:
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy(folder)
        build(folder)
        without = search(folder)
        if without["seed"] is not None:
            raise SystemExit(f"seed {without['seed']} fails as it is: {without['said']}")
        for bug in BUGS:
            bug.apply(folder)
            build(folder)
            found = search(folder)
            bug.apply(folder, "--reverse")
            print(bug.name, found, flush=True)
            results.append({"bug": bug.name, **found})
    content = {**source(), "jobs": MOST_JOBS, "results": results}
    RESULT.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
