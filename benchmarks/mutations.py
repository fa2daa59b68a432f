"""How soon random jobs over a bad network find bugs that are put in: results/mutations.json.

    python benchmarks/mutations.py

Builds the engine in a copy of this folder, with one bug after another, and runs
`omnihvd simulate --faults` from seed 0 on until it fails. Minutes, and a compiler.
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
RESULT = Path(__file__).parent / "results" / "mutations.json"
MOST_JOBS = 20_000
FAST = {  # to build: the engine alone, without what links slowly
    "OMNIHVD_TARGETS": "_engine",
    "CMAKE_ARGS": "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF " + os.environ.get("CMAKE_ARGS", ""),
}


class Mutation(NamedTuple):
    bug: str
    file: str
    right: str
    wrong: str


PROTOCOL = "omnihvd/csrc/protocol/"
MUTATIONS = (
    Mutation(
        "a datagram that comes twice is taken twice",
        PROTOCOL + "datagram_receiver.cc",
        "if (known) return Taken::duplicate;",
        "",
    ),
    Mutation(
        "what is lost is not sent again",
        PROTOCOL + "datagram_sender.cc",
        "  lost_.push_back(sequence);\n",
        "",
    ),
    Mutation(
        "a round is summed into memory that is still being sent",
        PROTOCOL + "aggregator.cc",
        "if (!slot.versions[(slot.round + 1) % 2].lent) send_result",
        "send_result",
    ),
    Mutation(
        "the same, below another aggregator",
        PROTOCOL + "aggregator_below.cc",
        "if (next.lent) {",
        "if (false) {",
    ),
    Mutation(
        "a window ends where the last worker has named, not the first",
        PROTOCOL + "aggregator.cc",
        "uint64_t least = kEnd;\n  for (const Named& named : slot.named) least = std::min(",
        "uint64_t least = 0;\n  for (const Named& named : slot.named) least = std::max(",
    ),
    Mutation(
        "a window has one block more than there is room for",
        PROTOCOL + "aggregator.cc",
        "std::min<size_t>(last - first, room);",
        "std::min<size_t>(last - first, room + 1);",
    ),
    Mutation(
        "below others more is named than a frame holds",
        PROTOCOL + "aggregator_below.cc",
        "if (to - from > most) {",
        "if (false) {",
    ),
    Mutation(
        "what lies behind the last window is not set to zero",
        PROTOCOL + "worker.cc",
        "write_zeros(aggregator, frame.slot, state.lo, layout_.positions(frame.slot));",
        "{}",
    ),
    Mutation(
        "sums of float16 stay float32",
        PROTOCOL + "aggregator.cc",
        "ops_.finish(sum, sum, n);",
        "",
    ),
    Mutation(
        "a short last block has the size of all",
        PROTOCOL + "aggregator.cc",
        "const uint32_t n = last ? elements_at(slot, block.position) : layout_.shape().block_size;",
        "const uint32_t n = layout_.shape().block_size;\n    (void)last;",
    ),
)


def copy(to: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().strip("\0").split("\0"):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)


def run(folder: Path) -> dict[str, object]:
    """The first seed that fails, and what it says; none within MOST_JOBS."""
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=folder,
        env={**os.environ, **FAST},
        check=True,
        capture_output=True,
    )
    command = [sys.executable, "-m", "omnihvd", "simulate", "--faults", "--seed", "0"]
    done = subprocess.run(
        [*command, "--jobs", str(MOST_JOBS), "--json", folder / "faults.json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode not in (0, 1):  # a crash: by memory that is not the engine's
        return {"seed": None, "said": f"the process ended by signal {-done.returncode}"}
    outcome = json.loads((folder / "faults.json").read_text())
    failure = outcome["failure"]
    return {
        "seed": outcome["failed_seed"],
        "said": failure and failure.split("; ")[0].split(": ", 1)[1].split(" at ")[0],
    }


def main() -> None:
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy(folder)
        without = run(folder)
        if without["seed"] is not None:
            raise SystemExit(f"seed {without['seed']} fails as it is: {without['said']}")
        for mutation in MUTATIONS:
            path = folder / mutation.file
            text = path.read_text()
            if text.count(mutation.right) != 1:
                raise SystemExit(f"{mutation.file} does not have: {mutation.right}")
            path.write_text(text.replace(mutation.right, mutation.wrong))
            found = run(folder)
            path.write_text(text)
            print(mutation.bug, found, flush=True)
            results.append({"bug": mutation.bug, **found})
    RESULT.write_text(json.dumps({"jobs": MOST_JOBS, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
