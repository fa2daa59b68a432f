"""One rank of a job: sums, and says what came of each."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaign import place
from benchmarks.campaign.library import MAKERS, Pipes
from benchmarks.campaign.plan import AGAIN, Fault, Job, Sum
from benchmarks.campaign.values import contribution, difference, encode, total


class Rank:
    def __init__(self, job: Job, rank: int, control: Connection, kids: int) -> None:
        self.job, self.rank, self.control, self.kids = job, rank, control, kids
        self.children: list[int] = []
        self.pipes: dict[int, Connection] = {}
        self.faults = [f for f in job.faults if f.rank == rank]

    def own(self, kind: str) -> Fault | None:
        return next((f for f in self.faults if f.kind == kind), None)

    def limit(self) -> None:
        """The limits that this rank has from the start."""
        if fault := self.own("files"):
            most = len(os.listdir("/proc/self/fd")) + int(fault.value)  # noqa: PTH208
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        if fault := self.own("memory"):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + int(fault.value)
            resource.setrlimit(resource.RLIMIT_AS, (most, most))

    def run(self, pipes: dict[int, Connection]) -> None:
        """pipes: of each group that this rank is in."""
        self.pipes = pipes
        self.limit()
        threads = [
            threading.Thread(target=self.group, args=(g, pipe), daemon=True)
            for g, pipe in pipes.items()
            if g
        ]
        try:
            for thread in threads:
                thread.start()
        except (RuntimeError, MemoryError) as why:  # this rank is at its limit of memory
            pipes[0].send(("result", -1, "failed", f"own: {why}", time.monotonic(), 0.0))
        self.group(0, pipes[0])
        for thread in threads:
            if thread.ident:
                thread.join()
        for child in self.children:
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended and status:
                    text = f"a forked child ended with status {status}"
                    pipes[0].send(("result", -1, "wrong", text, time.monotonic(), 0.0))
        self.control.send(("ended", self.rank))
        while True:
            said = self.control.recv()
            if said is None:
                return
            number, size = said
            sums = [Sum("allreduce", 1000 * (i + 1), "float32", 0.5, True) for i in range(AGAIN)]
            self.sums(1000, number, size, sums, pipes[0], self.job.seed + 1)
            self.control.send(("ended", self.rank))

    def group(self, g: int, pipe: Connection) -> None:
        members = self.job.groups[g]
        seed = self.job.seed * 10 + g
        self.sums(0, members.index(self.rank), len(members), self.job.sums[g], pipe, seed, g == 0)

    def sums(
        self,
        first: int,
        number: int,
        size: int,
        sums: list[Sum],
        pipe: Connection,
        seed: int,
        main: bool = False,
    ) -> None:
        """Reports ("result", number of the sum, verdict, text, when it began, seconds): a sum that
        has failed is followed by one more, which must fail, too, at once."""
        begun = time.monotonic()
        failed = ""
        made: Any = None
        try:
            made = MAKERS[self.job.backend](number, size, Pipes(pipe))
        except Exception as why:
            failed = _said(why)
            self.report(pipe, first - 1, "failed", failed, begun)
        for i, s in enumerate(sums if made else []):
            if main and (leaves := self.own("leave")) and i == leaves.after % len(sums):
                pipe.send(("fault", time.monotonic(), leaves))
                break
            if main and (forks := self.own("fork")) and i == forks.after % len(sums):
                pipe.send(("fault", time.monotonic(), forks))
                self.fork(made, bool(forks.value))
            begun = time.monotonic()
            try:
                wrong = self.sum(made, number, size, s, seed * 1000 + i)
            except Exception as why:
                if failed:
                    self.report(pipe, first + i, "failed again", _said(why), begun)
                    break
                failed = _said(why)
                self.report(pipe, first + i, "failed", failed, begun)
                if self.own("memory"):
                    break
                continue
            after = failed and not getattr(made, "by_library", False)
            verdict = "wrong" if wrong else "right after a failure" if after else "right"
            self.report(pipe, first + i, verdict, wrong, begun)
            if failed:
                break
        begun = time.monotonic()
        try:
            if made:
                made.close()
        except Exception as why:
            self.report(pipe, first + len(sums), "failed again", _said(why), begun)
        del made
        if failed and self.own("memory"):
            # It ends, as a script would. If UCX had no memory to write a message, later messages to
            # that rank through shared memory are lost, also those of others.
            os.kill(os.getpid(), signal.SIGTERM)
        pipe.send(("left", first >= 1000))

    def report(self, pipe: Connection, number: int, verdict: str, text: str, begun: float) -> None:
        if self.job.planted == "mute" and "rank" in text:
            text = "it failed"
        pipe.send(("result", number, verdict, text, begun, time.monotonic() - begun))

    def sum(self, made: Any, number: int, size: int, s: Sum, seed: int) -> str:
        """How the result is wrong; empty: right."""
        count = s.count * size if s.op == "reduce-scatter" else s.count
        given = encode(contribution(seed, number, size, count, s), s.dtype)
        before = given.copy()
        expected = total(seed, size, count, s)
        if self.rank == 1 and self.job.planted == "wrong" and count:
            given[0] += 1
        if self.rank == 1 and self.job.planted == "hang":
            time.sleep(1e6)
        if s.op == "reduce-scatter":
            out = np.full(s.count, 77, given.dtype)
            made.reduce_scatter(given, out, s.dtype)
            expected = expected[number * s.count : (number + 1) * s.count]
        elif s.in_place:
            out = given
            made.allreduce(given, given, s.dtype)
        else:
            out = np.full(count, 77, given.dtype)
            made.allreduce(given, out, s.dtype)
        wrong = difference(out, expected, s.dtype)
        if not wrong and out is not given and not self.job.planted:
            wrong = "the input has changed" if before.tobytes() != given.tobytes() else ""
        return f"{s}: {wrong}" if wrong else ""

    def fork(self, made: Any, sums: bool) -> None:
        """A child that lives as long as the job; with sums, it tries one, which must be refused."""
        child = os.fork()
        if child:
            self.children.append(child)
            return
        for pipe in (self.control, *self.pipes.values()):
            pipe.close()  # else it would hide this rank's end from the job
        status = 0
        if sums and self.job.backend == "engine":
            x = np.ones(10, np.float32)
            try:
                made.allreduce(x, x, "float32")
                status = 7
            except Exception as why:
                status = 0 if "fork" in str(why) else 8
        if not status:
            os.read(self.kids, 1)
        os._exit(status)


def _said(why: Exception) -> str:
    known = ("EngineError", "LibraryError", "DistBackendError", "DistNetworkError")
    name = type(why).__name__
    own = "" if name in known else f"own: {name}: "
    return f"{own}{why}" or name


def become_rank(
    job: Job,
    rank: int,
    control: Connection,
    pipes: dict[int, Connection],
    kids: int,
    folder: Path,
) -> None:
    """In the rank's process, which has just been forked. Does not return."""
    status = 1
    try:
        place.end_with_parent(signal.SIGKILL)
        place.log_to(folder, rank)
        sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        os.environ.update(job.env, OMNIHVD_HOST_ID=f"host-{job.hosts[rank]}", TMPDIR=str(folder))
        if job.planted == "segment" and rank == 0:
            Path("/dev/shm/omnihvd-planted").write_text("left behind")
        if job.planted == "process" and rank == 0 and not os.fork():
            place.end_with_parent(0)
            time.sleep(100)
            os._exit(0)
        Rank(job, rank, control, kids).run(pipes)
        atexit._run_exitfuncs()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        if status:
            os._exit(status)
        ctypes.CDLL(None).exit(status)  # with the destructors of libraries
