"""One process imports and collects all killers, and forks for each mutant. Run in the copy:

    python -m benchmarks.mutants.server ASKED ANSWERS COVERAGE BOUND TESTS...

Reads a list of numbers of mutants from a file, and writes a line of JSON for each of them. BOUND is
the seconds for all killers of a mutant. COVERAGE keeps which mutants a killer reaches.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from benchmarks.mutants.coverage import Coverage
from omnihvd import mutant_switch
from omnihvd.engine import LIBRARY

LONGEST = 0.6  # of the bound, for a killer as the code is
WORKERS = 2
MOST = 1 << 16
LEFT_OUT = "not (slow or gpu or root)"


class Child:
    """A forked process that has a mutant chosen, and runs killers until one fails."""

    def __init__(
        self, mutant: int, items: list[Any], costs: list[float], room: Path, bound: float
    ) -> None:
        self.mutant, self.began, self.bound = mutant, time.monotonic(), bound
        self.room, self.items = room, items
        self.bytes = room.with_suffix(".reached")
        self.bytes.write_bytes(b"\0" * MOST)
        self.room.write_text("")
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                code = self._run(items, costs)
            finally:
                os._exit(code)

    def _run(self, items: list[Any], costs: list[float]) -> int:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.environ["MUTANT_CHOSEN"] = str(self.mutant)
        os.environ["MUTANTS_REACHED"] = str(self.bytes)
        mutant_switch.choose()
        ctypes.CDLL(str(LIBRARY)).omnihvd_choose_mutant()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever hangs
        with self.room.open("a", buffering=1) as told:
            for item, cost, following in zip(items, costs, [*items[1:], None]):
                told.write(item.nodeid + "\n")
                signal.setitimer(signal.ITIMER_REAL, 3 + 10 * cost)
                begin = time.monotonic()
                reports = pytest_reports(item, following)
                told.write(f"{time.monotonic() - begin:.4f}\n")
                if any(report.failed for report in reports):
                    return 1
                if any(report.skipped for report in reports):
                    told.write("skipped\n")
        return 0

    def over(self) -> str | None:
        """How it ended: "", by a failure, a signal or the bound; None: not yet."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        late = time.monotonic() - self.began > self.bound
        if pid == 0 and not late:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # ranks, too
        if pid == 0:
            os.waitpid(self.pid, 0)
            return "bound"
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return "hang" if number == signal.SIGALRM else f"signal {number}"
        return "failed" if os.WEXITSTATUS(status) else ""


def pytest_reports(item: Any, following: Any) -> list[Any]:
    from _pytest.runner import runtestprotocol

    return runtestprotocol(item, log=False, nextitem=following)  # type: ignore[no-any-return]


def in_parallel(jobs: list[Callable[[], Child]], done: Callable[[Child, str], None]) -> None:
    running: list[Child] = []
    while jobs or running:
        while jobs and len(running) < WORKERS:
            running.append(jobs.pop(0)())
        for child in list(running):
            how = child.over()
            if how is not None:
                running.remove(child)
                done(child, how)
        time.sleep(0.002)


class Server:
    """The plugin of pytest that runs mutants instead of tests."""

    def __init__(self, asked: Path, answers: Path, coverage: Path, bound: float) -> None:
        self.bound = bound
        self.asked = json.loads(asked.read_text())
        self.answers = answers
        self.coverage = Coverage(coverage)
        self.reached: dict[str, tuple[float, set[int]]] = {}  # by killer: its seconds, and mutants

    def pytest_pycollect_makemodule(self) -> None:
        """Without shrinking, and the same cases for all mutants; a conftest has chosen another."""
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for framework in ("torch", "tensorflow"):
            importlib.import_module("warm").server(framework)  # for all of the children
        with tempfile.TemporaryDirectory() as name:
            self.folder = Path(name)
            self.cover(session.items)
            self.try_mutants(session.items)
        return True

    def cover(self, items: list[Any]) -> None:
        """Which mutants does a killer reach? Leaves out killers that fail as the code is."""
        left_out: list[str] = []

        def take(found: dict[str, Any]) -> None:
            if found["left_out"]:
                left_out.append(f"{found['killer']}: {found['left_out']}")
            else:
                self.reached[found["killer"]] = (found["seconds"], set(found["reached"]))

        def done(child: Child, how: str) -> None:
            said = child.room.read_text().split("\n")
            why = how or ("skipped" if "skipped" in said else "")
            reached = [n for n, is_set in enumerate(child.bytes.read_bytes()) if is_set and not why]
            seconds = None if why else float(said[1])
            entry = {"left_out": why, "seconds": seconds, "reached": reached}
            take(self.coverage.put(child.items[0], entry))

        def job(number: int, item: Any) -> Callable[[], Child]:
            room, longest = self.folder / f"cover{number % 64}", LONGEST * self.bound
            return lambda: Child(-1, [item], [self.bound], room, longest)

        new = []
        for item in items:
            found = self.coverage.get(item)
            if found:
                take(found)
            else:
                new.append(item)
        in_parallel([job(n, item) for n, item in enumerate(new)], done)
        self.tell({"killers": len(self.reached), "left_out": left_out, "covered": len(new)})

    def try_mutants(self, items: list[Any]) -> None:
        by_name = {item.nodeid: item for item in items}
        # A cheap test of few places says most about each. The bound may end before the others.
        costs_of_a_place = {n: seconds * len(of) for n, (seconds, of) in self.reached.items()}
        told_most = sorted(self.reached, key=lambda name: costs_of_a_place[name])

        def done(child: Child, how: str) -> None:
            last = [s for s in child.room.read_text().split("\n") if "::" in s]
            self.tell({"mutant": child.mutant, "how": how, "killer": last[-1] if how else None,
                       "ran": len(last),
                       "seconds": round(time.monotonic() - child.began, 2)})  # fmt: skip

        def job(mutant: int, names: list[str]) -> Callable[[], Child]:
            costs = [self.reached[name][0] for name in names]
            return lambda: Child(mutant, [by_name[n] for n in names], costs,
                                 self.folder / f"mutant{mutant % 64}", self.bound)  # fmt: skip

        jobs = []
        for mutant in self.asked:
            names = [name for name in told_most if mutant in self.reached[name][1]]
            if names:
                jobs.append(job(mutant, names))
            else:
                self.tell({"mutant": mutant, "how": "unreached", "killer": None})
        in_parallel(jobs, done)

    def tell(self, what: dict[str, Any]) -> None:
        with self.answers.open("a") as file:
            file.write(json.dumps(what) + "\n")


def main() -> int:
    hypothesis.settings.register_profile(
        "mutants", max_examples=100, deadline=None, derandomize=True, database=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    asked, answers, coverage, bound, *tests = sys.argv[1:]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:xdist"]
    options += ["-m", LEFT_OUT, "-o", "addopts=", "-W", "ignore"]
    plugin = Server(Path(asked), Path(answers), Path(coverage), float(bound))
    return int(pytest.main([*options, "benchmarks/mutants/killers.py", *tests], plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main())
