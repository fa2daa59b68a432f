"""Plants bugs by machine, one at a time, and counts those that a test finds."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.bench.source import source
from benchmarks.mutants import score, tree
from benchmarks.mutants.sites import ROOT, Site, files, sample

FOLDER = ROOT / "build" / "mutants"
FOLDERS = (
    *("protocol", "session", "ways", "shared", "simulator"),
    *("compressors", "codecs", "sparse", "c_interface", "gloo", "mpi", "observe"),
)
TESTS = [f"tests/{name}" for name in FOLDERS]


def ask(
    copy: tree.Tree, numbers: list[int], answers: Path, bound: float, tests: list[str], limit: float
) -> None:
    """Has the copy's server try mutants for so many minutes."""
    asked = FOLDER / "asked.json"
    asked.write_text(json.dumps(numbers))
    environment = {**os.environ, "PYTHONPATH": str(copy.root), "MALLOC_PERTURB_": "165"}
    environment.pop("MUTANT_CHOSEN", None)
    command = [sys.executable, "-m", "benchmarks.mutants.server", str(asked), str(answers)]
    coverage = FOLDER / f"coverage-{copy.key()}.jsonl"
    command += [str(coverage), str(bound), *tests]
    with (FOLDER / "server.log").open("w") as log, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command, cwd=copy.root, env=environment, stdout=log, stderr=log, timeout=60 * limit
        )


def told(answers: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    if not lines:
        raise SystemExit(f"no mutant was tried: {FOLDER / 'server.log'} says why")
    return lines[0], lines[1:]


def answered(sites: list[Site], answers: dict[str, Any], dropped: set[str]) -> list[Site]:
    """The first sites, as far as each has an answer: they are in random order, so a sample, too."""
    known = [site.key() in dropped or site.key() in answers for site in sites]
    return sites[: known.index(False)] if False in known else sites


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.mutants")
    parser.add_argument("--mutants", type=int, default=600, help="how many of all are tried")
    parser.add_argument("--seed", type=int, default=1, help="chooses them")
    parser.add_argument("--bound", type=float, default=60.0, help="seconds for a mutant")
    parser.add_argument("--minutes", type=float, default=600, help="at most, after the build (600)")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="beside the simulated jobs")
    parser.add_argument("--resume", action="store_true", help="those that --json does not kill")
    parser.add_argument("--json", type=Path, default=FOLDER / "results.json", help="for results")
    options = parser.parse_args()
    began = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    all_sites = tree.all_sites()
    sites = sample(all_sites, options.seed, options.mutants)
    copy = tree.Tree(FOLDER)
    copy.make(sites)
    dropped = copy.dropped()
    answers = score.load(options.json) if options.resume else {}
    new = [n for n, s in enumerate(sites) if s.key() not in dropped and s.key() not in answers]
    again = [n for n, s in enumerate(sites) if score.is_alive(answers.get(s.key(), "killed"))]
    numbers = [*new, *again]
    print(f"{len(all_sites):,} sites, {len(numbers)} mutants to try", flush=True)
    file = FOLDER / "answers.jsonl"
    file.write_text("")
    ask(copy, numbers, file, options.bound, options.tests, options.minutes)
    head, lines = told(file)
    answers |= {sites[line["mutant"]].key(): line["how"] for line in lines}
    sites = answered(sites, answers, dropped)
    if len(lines) < len(numbers):
        print(f"the time is over after {len(lines)} mutants; {len(sites)} are the sample")
    if not sites:
        raise SystemExit(f"no mutant was tried: {FOLDER / 'server.log'} says how far it came")
    print(f"{head['killers']} killers; left out: {len(head['left_out'])}")
    print("\n".join(score.survivors(sites, answers)))
    rows = score.counted(sites, answers)
    totals = {how: sum(row.get(how, 0) for row in rows) for how in
              ("killed", "survived", "unreached", "equal", "left out")}  # fmt: skip
    print(totals)
    tried = {key: answers[key] for s in sites if (key := s.key()) in answers}
    content = {**source(), "seed": options.seed, "sites": len(all_sites), "mutants": len(sites),
               "rows": rows, "files": len(files()), "killers": head["killers"], "totals": totals,
               "bound_s": options.bound, "tests": options.tests,
               "took_s": round(time.monotonic() - began),
               "survivors": score.survivors(sites, answers), "answers": tried}  # fmt: skip
    options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if len(lines) == len(numbers) else 1


if __name__ == "__main__":
    sys.exit(main())
