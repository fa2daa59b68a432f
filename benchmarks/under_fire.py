"""An elastic job of three ranks in which every half a minute a rank is killed or stopped.

    python benchmarks/under_fire.py [--plain] [--every 30] [--faults 8] [--quiet 40]

The ranks sum and step without end under horovodrun: this machine is three hosts to Horovod, and two
to omnihvd, so that TCP and shared memory both carry messages. Each sum is checked. The job has
--quiet seconds without a fault. Then every --every seconds a random rank is killed (SIGKILL), and
its host comes back, or it is stopped for 3 s. --plain is the same job without omnihvd, which shows
what Horovod itself takes to restart. Each of the two writes its part of results/under_fire.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.source import source  # noqa: E402
from benchmarks.elastic_hosts import HOSTS, launcher  # noqa: E402

RESULT = Path(__file__).parent / "results" / "under_fire.json"
KINDS = ("kill", "kill", "stop")
STOP = 3.0  # seconds
COUNT = 1_000_000  # float32, one block of ten not zero on each rank
PAUSE = 0.02  # seconds between sums, where a training computes
COMMIT = 10  # steps
Event = list[Any]  # what, when, ...


def rank(folder: Path, plain: bool) -> None:
    """Appends each event to a file of this process."""
    host = HOSTS.index(os.environ["HOROVOD_HOSTNAME"])
    log = (folder / f"{host}-{time.monotonic():.3f}").open("a", buffering=1)

    def say(what: str, *more: object) -> None:
        print(json.dumps([what, time.monotonic(), *more]), file=log)

    say("up", os.getpid())
    os.environ["OMNIHVD_HOST_ID"] = "other" if host == 2 else "first"
    import torch

    if not plain:
        import omnihvd
    import horovod.torch as hvd
    from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

    torch.set_num_threads(1)
    index = torch.arange(COUNT) // 256
    parts = [torch.where((index + r) % 10 == 0, r + 1.0, 0.0) for r in range(len(HOSTS))]
    parts[0] += parts[1]  # so that blocks are added up

    @hvd.elastic.run
    def train(state: Any) -> None:
        size, mine = hvd.size(), parts[hvd.rank()]
        total = torch.stack(parts[:size]).sum(0)
        say("begins", size)
        try:
            while True:
                factor = state.step % 7 + 1
                begun = time.monotonic()
                summed = hvd.allreduce(mine * factor, op=hvd.Sum, name="x")
                seconds = time.monotonic() - begun
                if not torch.equal(summed, total * factor):
                    say("wrong", state.step)
                state.step += 1
                say("step", state.step, size, begun, seconds)
                time.sleep(PAUSE)
                if state.step % COMMIT == 0:
                    say("taken", 0 if plain else omnihvd.stats()["calls"])
                    state.commit()
        except HorovodInternalError as error:
            say("fails", str(error))
            raise
        except HostsUpdatedInterrupt:
            say("changes")
            raise

    hvd.init()
    train(hvd.elastic.TorchState(model=torch.nn.Linear(1, 1), step=0))


def read(file: Path) -> list[Event]:
    """A rank's lines; a killed one may have begun another."""
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]


class Job:
    def __init__(self, folder: Path, plain: bool) -> None:
        self.folder, self.output = folder, folder / "output"
        self.logs = folder / "logs"
        self.logs.mkdir()
        mine = [sys.executable, __file__, "--rank", str(self.logs), *["--plain"] * plain]
        paths = {
            "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        }
        with self.output.open("wb") as output:
            self.launcher = subprocess.Popen(
                [*launcher(folder), *mine],
                env={**os.environ, **paths, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def newest(self, host: int) -> Path | None:
        return max(self.logs.glob(f"{host}-*"), default=None)

    def is_whole(self, since: float) -> bool:
        """Whether all three have stepped together since then."""
        for log in map(self.newest, range(len(HOSTS))):
            if log is None:
                return False
            with log.open("rb") as file:
                file.seek(max(log.stat().st_size - 1000, 0))
                lines = file.read().splitlines()[1:-1]
            steps = [event for event in map(json.loads, lines) if event[0] == "step"]
            if not any(size == len(HOSTS) and begun > since for *_, size, begun, _ in steps):
                return False
        return True

    def wait_until_whole(self, since: float, limit: float = 100) -> None:
        until = time.monotonic() + limit
        while not self.is_whole(since):
            if self.launcher.poll() is not None or time.monotonic() > until:
                what = "has ended" if time.monotonic() < until else "does not come back"
                raise SystemExit(f"the job {what}:\n{self.output.read_text(errors='replace')}")
            time.sleep(0.2)

    def fault(self, kind: str, host: int) -> dict[str, Any]:
        """When it was, and when it was over."""
        log = self.newest(host)
        assert log is not None
        pid, when = read(log)[0][2], time.monotonic()
        os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        if kind == "stop":
            time.sleep(STOP)
            os.kill(pid, signal.SIGCONT)
        return {"kind": kind, "host": HOSTS[host], "at": when, "over": time.monotonic()}

    def end(self) -> None:
        self.launcher.terminate()
        try:
            self.launcher.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.launcher.kill()
            self.launcher.wait()


def run(args: argparse.Namespace) -> dict[str, Any]:
    prng = random.Random(args.seed)
    faults: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), args.plain)
        try:
            job.wait_until_whole(0)
            began = time.monotonic()
            for number in range(args.faults):
                due = began + args.quiet + number * args.every + prng.random()
                time.sleep(max(due - time.monotonic(), 0))
                kind = KINDS[number % len(KINDS)]
                faults.append(job.fault(kind, prng.randrange(len(HOSTS))))
                job.wait_until_whole(faults[-1]["over"])
                print(
                    f"{kind}: whole after {time.monotonic() - faults[-1]['at']:.1f} s", flush=True
                )
            time.sleep(max(faults[0]["at"] + args.every * args.faults - time.monotonic(), 0))
        finally:
            job.end()
        return figures([read(log) for log in sorted(job.logs.iterdir())], began, faults)


def figures(logs: list[list[Event]], began: float, faults: list[dict[str, Any]]) -> dict[str, Any]:
    """Throughput before the faults and under them, and the parts of each recovery.

    A step that is done again after a fault counts once. Horovod restarts from the first survivor's
    error, or news of a host, to the beginning of its next training. `kept` has all time, and counts
    ranks' steps; `kept_apart` counts the job's, and leaves out restarts and the time of stops.
    """
    steps = [event for log in logs for event in log if event[0] == "step"]
    last = max(when for _, when, *_ in steps)
    done = {number: (when, size) for _, when, number, size, *_ in sorted(steps, key=lambda e: e[1])}
    ends = [fault["at"] for fault in faults[1:]] + [last]

    def rate(since: float, until: float, without: float = 0.0, each: bool = False) -> float:
        sizes = [size for when, size in done.values() if since < when <= until]
        return (sum(sizes) if each else len(sizes)) / (until - since - without)

    def sum_ms(since: float, until: float) -> float:
        taken = [e[5] for e in steps if since < e[1] <= until and e[3] == len(HOSTS)]
        return round(1e3 * median(taken), 2)

    for fault, until in zip(faults, ends):
        fault.update(recovery(logs, fault, until))
    start, away = faults[0]["at"], sum(f["restarts_s"] + f["over"] - f["at"] for f in faults)
    for fault in faults:
        fault["at"] = round(fault["at"] - began, 3)
        del fault["over"]
    calls = [max((e[2] for e in log if e[0] == "taken"), default=0) for log in logs]
    return {
        "quiet_s": round(start - began, 1),
        "fire_s": round(last - start, 1),
        "steps_per_s": [round(rate(began, start), 2), round(rate(start, last), 2)],
        "sum_ms": [sum_ms(began, start), sum_ms(start, last)],
        "kept": round(rate(start, last, each=True) / rate(began, start, each=True), 4),
        "kept_apart": round(rate(start, last, away) / rate(began, start), 4),
        "sums": len(steps),
        "wrong": sum(e[0] == "wrong" for log in logs for e in log),
        "taken": sum(calls),
        "faults": faults,
    }


def recovery(logs: list[list[Event]], fault: dict[str, Any], until: float) -> dict[str, Any]:
    """Seconds: until the last survivor noticed a kill; of Horovod's restarts; until the next step
    (after a stop: from its end), and until the next of all ranks."""
    at, over = fault["at"], fault["over"]
    inside = [[e for e in log if at < e[1] <= until] for log in logs]
    errors = [e for log in inside for e in log if e[0] == "fails"]
    noticed = max((when for _, when, *_ in errors), default=over)
    restarts, resets = [], []
    for log in inside:
        pairs = [
            next((e[1] for e in log[n:] if e[0] == "begins"), until) - event[1]
            for n, event in enumerate(log)
            if event[0] in ("fails", "changes")
        ]
        restarts += [sum(pairs)] * bool(pairs)
        resets += pairs[:1]
    steps = [e for log in inside for e in log if e[0] == "step" and e[1] > noticed]
    whole = [e for e in steps if e[3] == len(HOSTS)]
    return {
        "error": errors[0][2].split(". ")[0] if errors else None,
        "noticed_s": round(noticed - over, 3) if errors else None,
        "reset_s": round(max(resets), 3) if resets else None,
        "restarts_s": round(max(restarts), 3) if restarts else 0.0,
        "step_s": round(min(e[1] for e in steps) - over, 3),
        "whole_s": round(min(e[1] for e in whole) - over, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plain", action="store_true", help="without omnihvd")
    parser.add_argument("--every", type=float, default=30, help="seconds from fault to fault (30)")
    parser.add_argument("--faults", type=int, default=8)
    parser.add_argument("--quiet", type=float, default=40, help="seconds before the first (40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULT)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank(args.rank, args.plain)
        return
    found = {
        **source(),
        "command": " ".join(["benchmarks/under_fire.py", *sys.argv[1:]]),
        "every_s": args.every,
        "seed": args.seed,
        **run(args),
    }
    if not args.plain and not found["taken"]:
        raise SystemExit(
            f"omnihvd made no sum, so {args.json} is as it was: `omnihvd check` says what is wrong"
        )
    parts = json.loads(args.json.read_text()) if args.json.exists() else {}
    parts["plain" if args.plain else "omnihvd"] = found
    args.json.write_text(json.dumps(parts, indent=1) + "\n")
    if found["wrong"]:
        raise SystemExit(f"{found['wrong']} of {found['sums']} sums were wrong")


if __name__ == "__main__":
    main()
