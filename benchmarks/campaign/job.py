"""Runs one job: forks its ranks, serves their library, injects its faults, keeps what they say."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import heapq
import itertools
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Callable

from benchmarks.campaign import place
from benchmarks.campaign.aggregator import Aggregator, free_port
from benchmarks.campaign.plan import ELASTIC, LAUNCHERS, Fault, Job
from benchmarks.campaign.rank import become_rank

LIMIT_S = 60.0  # a whole job; no wait in it is as long
PR_SET_CHILD_SUBREAPER = 36
FROM_THE_START = ("files", "memory", "small-shm")
OF_RANKS = ("fork", "leave")  # that ranks make themselves, and report


@dataclass
class Result:
    """A rank reports it of a sum."""

    group: int
    rank: int
    number: int  # 1000 and later: of the group that the survivors form
    verdict: str
    text: str
    begun: float
    seconds: float


@dataclass
class Record:
    """All that happened."""

    job: Job
    results: list[Result] = field(default_factory=list)
    faults: list[tuple[float, Fault]] = field(default_factory=list)  # when, which
    ends: dict[int, int] = field(default_factory=dict)  # of ranks: as of os.waitpid
    again: list[int] = field(default_factory=list)  # ranks of the second group
    aggregator: str = ""  # its address
    aggregator_end: str = ""  # empty: as it should
    hangs: str = ""  # the ranks that did not end, with their stacks
    left: list[str] = field(default_factory=list)
    lost_frames: int = 0
    late_frames: int = 0
    logs: dict[int, str] = field(default_factory=dict)
    seconds: float = 0
    over: float = 0  # when the launcher ended


class Running:
    def __init__(self, job: Job, folder: Path, isolated: bool) -> None:
        self.job, self.folder, self.isolated = job, folder, isolated
        self.record = Record(job)
        self.pids: dict[int, int] = {}
        self.watches: dict[int, int] = {}  # rank -> descriptor of its process
        self.controls: dict[int, Connection] = {}
        self.pipes: dict[tuple[int, int], Connection] = {}  # (group, rank)
        self.gathers: dict[int, dict[int, bytes]] = {g: {} for g in range(len(job.groups))}
        self.gone: dict[int, set[int]] = {g: set() for g in range(len(job.groups))}
        self.members = {g: set(members) for g, members in enumerate(job.groups)}
        self.ended: set[int] = set()  # ranks that have made all sums
        others = (*FROM_THE_START, *OF_RANKS)
        self.waiting = [f for f in job.faults if f.kind not in others]
        self.stops: collections.Counter[int] = collections.Counter()  # that hold each rank now
        self.stops_lock = threading.Lock()
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()  # of what is due at the same time
        self.kids, self.kids_end = os.pipe()
        self.aggregator: Aggregator | None = None

    def start(self) -> None:
        job = self.job
        if job.aggregator:
            self.aggregator = Aggregator(job, self.folder)
            self.record.aggregator = self.aggregator.address
            names = {"udp": "OMNIHVD_INLINE", "bind": "OMNIHVD_AGGREGATORS"}
            job.env[names[job.aggregator]] = self.aggregator.address
        if job.backend == "torch":
            job.env.update(CAMPAIGN_STORE=str(free_port()), GLOO_SOCKET_IFNAME="lo")
        pairs = {r: multiprocessing.Pipe() for r in range(job.size)}
        group_pairs = {
            (g, r): multiprocessing.Pipe() for g, members in self.members.items() for r in members
        }
        for rank in range(job.size):
            pid = os.fork()
            if not pid:
                for other, (ours, theirs) in [*pairs.items(), *group_pairs.items()]:
                    ours.close()
                    if other != rank and (not isinstance(other, tuple) or other[1] != rank):
                        theirs.close()
                for watch in self.watches.values():
                    os.close(watch)
                os.close(self.kids_end)
                own = {g: theirs for (g, r), (_, theirs) in group_pairs.items() if r == rank}
                become_rank(job, rank, pairs[rank][1], own, self.kids, self.folder)
            self.pids[rank] = pid
            self.watches[rank] = os.pidfd_open(pid)
        for _, theirs in [*pairs.values(), *group_pairs.values()]:
            theirs.close()
        self.controls = {rank: ours for rank, (ours, _) in pairs.items()}
        self.pipes = {key: ours for key, (ours, _) in group_pairs.items()}
        if job.backend == "torch":
            import torch.distributed as dist

            port = int(job.env["CAMPAIGN_STORE"])
            self.store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)

    def run(self, limit_s: float) -> Record:
        begun = time.monotonic()
        self.record.faults += [(begun, f) for f in self.job.faults if f.kind in FROM_THE_START]
        self.start()
        end = begun + limit_s
        while self.watches:
            now = time.monotonic()
            if now > end:
                self.abort()
                break
            self.trigger()
            while self.due and self.due[0][0] <= now:
                heapq.heappop(self.due)[2]()
            if not self.due and set(self.watches) <= self.ended:
                self.go_on(sorted(self.watches))
            sources: dict[Any, Callable[[], None]] = {}
            for rank, watch in self.watches.items():
                sources[watch] = lambda rank=rank: self.process_ended(rank)
            for rank, control in self.controls.items():
                sources[control] = lambda rank=rank: self.said(rank)
            for key, pipe in self.pipes.items():
                sources[pipe] = lambda key=key: self.served(*key)
            sources.update(self.more_sources())
            until = min(end, self.due[0][0] if self.due else end)
            ready = wait(list(sources), max(until - time.monotonic(), 0))
            # Messages before ends: a rank that has ended may have said something first.
            for source in sorted(ready, key=lambda s: isinstance(s, int)):
                sources[source]()
        self.finish()
        self.record.seconds = time.monotonic() - begun
        return self.record

    def more_sources(self) -> dict[Any, Callable[[], None]]:
        return {}

    def lives(self, rank: int) -> bool:
        return rank in self.watches

    def ranks(self) -> list[int]:
        return list(self.watches)

    # --- what ranks say ---------------------------------------------------------------------------

    def said(self, rank: int) -> None:
        try:
            self.controls[rank].recv()
        except (EOFError, OSError):
            del self.controls[rank]
            return
        self.ended.add(rank)

    def go_on(self, alive: list[int]) -> None:
        """All that live have made their sums: they form another group, or end."""
        self.ended.clear()
        if self.job.again and not self.record.again and len(alive) > 1:
            if self.aggregator and self.aggregator.killed:
                self.aggregator.start()
            self.record.again = alive
            self.waiting.clear()
            (place.SHM / "full").unlink(missing_ok=True)
            self.gathers[0], self.gone[0], self.members[0] = {}, set(), set(alive)
            for number, rank in enumerate(alive):
                with contextlib.suppress(OSError):
                    self.controls[rank].send((number, len(alive)))
            return
        for rank in alive:
            with contextlib.suppress(OSError, KeyError):
                self.controls[rank].send(None)

    def served(self, g: int, rank: int) -> None:
        try:
            said = self.pipes[g, rank].recv()
        except (EOFError, OSError):
            del self.pipes[g, rank]
            return
        if said[0] == "result":
            self.record.results.append(Result(g, rank, *said[1:]))
        else:
            self.hear(g, rank, said)

    def hear(self, g: int, rank: int, said: Any) -> None:
        """Takes what a rank says besides results."""
        if said[0] == "fault":
            self.record.faults.append(said[1:])
        elif said[0] == "gather":
            self.gathers[g][rank] = said[1]
            self.answer(g)
        elif said[1] == bool(self.record.again):  # else it has left the group before
            self.gone[g].add(rank)
            self.answer(g)

    def answer(self, g: int) -> None:
        asked = self.gathers[g]
        if gone := self.gone[g] & self.members[g]:
            answer: Any = f"rank {min(gone)} has left"
        elif set(asked) == self.members[g]:
            answer = [asked[rank] for rank in sorted(asked)]
        else:
            return
        for rank in list(asked):
            with contextlib.suppress(OSError, KeyError):
                self.pipes[g, rank].send(answer)
        asked.clear()

    def process_ended(self, rank: int) -> None:
        os.close(self.watches.pop(rank))
        self.record.ends[rank] = os.waitpid(self.pids[rank], 0)[1]
        for key in [key for key in self.pipes if key[1] == rank]:
            while key in self.pipes and self.pipes[key].poll():
                self.served(*key)  # what it has said before
            self.pipes.pop(key, None)
        self.controls.pop(rank, None)
        for g, members in self.members.items():
            if rank in members:
                self.gone[g].add(rank)
                self.gathers[g].pop(rank, None)
                self.answer(g)

    # --- faults -----------------------------------------------------------------------------------

    def trigger(self) -> None:
        for fault in [*self.waiting]:
            if self.is_due(fault):
                self.waiting.remove(fault)
                self.schedule(fault)

    def is_due(self, fault: Fault) -> bool:
        return fault.after <= len(self.record.results)

    def schedule(self, fault: Fault) -> None:
        self.at(fault.delay_s, lambda: self.inject(fault))

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.due, (time.monotonic() + seconds, next(self.numbers), action))

    def inject(self, fault: Fault) -> None:
        if fault.rank >= 0 and not self.lives(fault.rank):
            return
        if fault.kind in ("kill", "exit"):
            # Under SIGTERM a rank ends as one that a launcher ends.
            self.signal(fault.rank, signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)
        elif fault.kind in ("stop", "stop-long"):
            self.stop([fault.rank], fault.value)
        elif fault.kind == "suspend":
            self.stop(self.ranks(), fault.value)
        elif fault.kind == "full":
            self.fill()
        elif fault.kind == "link":
            place.set_link(False)
            self.at(fault.value, lambda: place.set_link(True))
        elif fault.kind == "aggregator" and self.aggregator:
            self.aggregator.kill()
        else:
            return
        self.record.faults.append((time.monotonic(), fault))

    def signal(self, rank: int, number: int) -> None:
        if rank in self.watches:
            os.kill(self.pids[rank], number)

    def stop(self, ranks: list[int], seconds: float) -> None:
        with self.stops_lock:
            for rank in ranks:
                self.stops[rank] += 1
                self.signal(rank, signal.SIGSTOP)
        # By a thread: this one may wait for the rest of a message from a rank that is stopped.
        timer = threading.Timer(seconds, self.wake, (dict.fromkeys(ranks),))
        timer.daemon = True
        timer.start()
        self.at(seconds, lambda: None)  # the job does not end before

    def wake(self, ranks: Iterable[int]) -> None:
        """Ends one stop of each; a rank goes on after its last."""
        with self.stops_lock:
            for rank in ranks:
                self.stops[rank] -= 1
                if not self.stops[rank]:
                    with contextlib.suppress(ProcessLookupError):
                        self.signal(rank, signal.SIGCONT)

    def fill(self) -> None:
        """Takes all that is free in /dev/shm."""
        path = place.SHM / "full"
        with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 65536)

    # --- the end ----------------------------------------------------------------------------------

    def abort(self) -> None:
        """Ranks that hang write their stacks."""
        hang = sorted(self.watches)
        for rank in hang:
            self.signal(rank, signal.SIGCONT)
            self.signal(rank, signal.SIGABRT)
        time.sleep(1)
        for rank in hang:
            self.signal(rank, signal.SIGKILL)
            self.process_ended(rank)
        self.record.hangs = " ".join(f"rank {rank}" for rank in hang)

    def finish(self) -> None:
        os.close(self.kids)
        os.close(self.kids_end)  # forked children end
        if self.aggregator:
            self.record.aggregator_end = self.aggregator.end()
        (place.SHM / "full").unlink(missing_ok=True)
        self.record.left = [*self.processes_left(), *sorted(self.things_left())]
        if self.job.loss:
            self.record.lost_frames = place.lost_frames()
        if self.job.late:
            self.record.late_frames, lost = place.late_frames()
            self.record.lost_frames += lost
        for rank in self.pids:
            log = self.folder / f"rank-{rank}"
            self.record.logs[rank] = log.read_text(errors="replace") if log.exists() else ""

    def processes_left(self) -> list[str]:
        """Children of ranks are this process's now: they must end by themselves."""
        end = time.monotonic() + 3
        while time.monotonic() < end:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return []
            if not pid:
                time.sleep(0.005)
        me = os.getpid()
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                words = path.read_text().rsplit(")", 1)[1].split()
                if int(words[1]) == me:
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    found.append(f"process {path.parent.name}")
        return found

    def things_left(self) -> set[str]:
        known = {f"rank-{rank}" for rank in self.pids} | {"aggregator"}
        files = {str(p) for p in self.folder.iterdir() if p.name not in known}
        found = files | place.left() if self.isolated else files
        return {name for name in found if not self.known(Path(name).name)}

    def known(self, name: str) -> bool:
        """Whether it is not omnihvd's."""
        return False


def run_job(job: Job, isolated: bool, limit_s: float = LIMIT_S) -> Record:
    """In a process of its own (__main__.py), which this makes the place of the job."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    if isolated:
        place.isolate(job.memory_bytes, job.loss, job.late)
    # No TemporaryDirectory: ranks run the exit functions of this process, too.
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        if job.backend == ELASTIC:
            from benchmarks.campaign.elastic import Elastic

            return Elastic(job, folder, isolated).run(limit_s)
        if job.backend in LAUNCHERS:
            from benchmarks.campaign.launched import Launched

            return Launched(job, folder, isolated).run(limit_s)
        return Running(job, folder, isolated).run(limit_s)
    finally:
        shutil.rmtree(folder)
