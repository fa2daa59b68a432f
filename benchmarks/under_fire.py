"""An elastic job under fire: python benchmarks/under_fire.py --write

Three ranks under horovodrun sum, and check each sum. Every 30 s one is killed, and comes back.
Beside it, the same job without faults.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from benchmarks.bench.source import source  # noqa: E402

HOSTS = ("localhost", "127.0.0.1", socket.gethostname())  # to Horovod three hosts
FILE = ROOT / "benchmarks" / "results" / "under_fire.json"
Line = tuple[float, str, int]  # when, what, ranks


def lines_of(log: Path) -> list[Line]:
    found = []
    for line in log.read_text().splitlines():
        words = line.split()
        if len(words) == 3:  # a rank that is killed may leave half a line
            found.append((float(words[1]), words[0], int(words[2])))
    return found


def alive(folder: Path) -> list[int]:
    pids = [int(path.name.removeprefix("rank-")) for path in folder.glob("rank-*")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def run(seconds: float, every_s: float, count: int) -> tuple[list[list[Line]], list[float]]:
    """Each log, and when a process was killed."""
    dice = random.Random(1)
    kills: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        discover = folder / "discover"
        discover.write_text("#!/bin/sh\n" + "".join(f"echo {host}:1\n" for host in HOSTS))
        discover.chmod(0o700)
        words = [str(ROOT / "tests" / "quick_horovodrun.py"), "--min-np", "1", "--max-np", "3"]
        words += ["-np", "3", "--host-discovery-script", str(discover)]
        words += ["--network-interface", "lo", "--blacklist-cooldown-range", "1", "2"]
        end = time.time() + seconds + 10
        words += [sys.executable, str(Path(__file__).with_name("under_fire_rank.py")), name]
        paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
        with (folder / "output").open("wb") as output:
            job = subprocess.Popen(
                [sys.executable, *words, str(end), str(count)],
                env={**os.environ, "PATH": path, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            while len(alive(folder)) < 3:
                time.sleep(0.1)
            begun = time.time()
            while every_s and begun + (len(kills) + 1) * every_s < end - every_s / 2:
                time.sleep(max(begun + (len(kills) + 1) * every_s - time.time(), 0))
                kills.append(time.time())
                os.kill(dice.choice(alive(folder)), signal.SIGKILL)
            assert job.wait(timeout=seconds + 60) == 0, (folder / "output").read_text()[-3000:]
        finally:
            job.kill()
        return [lines_of(path) for path in folder.glob("rank-*")], kills


def measured(logs: list[list[Line]], kills: list[float]) -> dict[str, Any]:
    """Rates and times. A restart lasts from a process's last step to its next one's end."""
    begun = max(log[0][0] for log in logs if log[0][2] == 3 and log[0][1] == "begins")
    if kills:
        begun = min(log[0][0] for log in logs)
    steps = [(when, ranks) for log in logs for when, what, ranks in log if what == "step"]
    whole = max(when for when, _ in steps) - begun
    fails = [line[0] for log in logs for line in log if line[1] == "fails"]
    logs = [[line for line in log if line[1] != "fails"] for log in logs]
    longest = max(logs, key=len)  # of a process that lived for long
    restarts = [
        (before[0], later[0])
        for before, between, later in zip(longest, longest[1:], longest[2:])
        if between[1] == "begins" and later[1] == "step"
    ]
    lost = sum(end - begin for begin, end in restarts)
    recoveries = []
    for kill in kills:
        after = [
            later[0] - kill
            for log in logs
            for begins, later in zip(log, log[1:])
            if begins[1] == "begins" and begins[0] > kill and later[1] == "step"
        ]
        recoveries.append(min(after))
    own = [when for when, what, _ in longest if what == "step"]
    span = own[-1] - own[0]
    return {
        "seconds": whole,
        "steps of all ranks each second": len(steps) / whole,
        "steps each second": (len(own) - 1) / span,
        "steps each second, outside restarts": (len(own) - 1) / (span - lost),
        "restarts": len(restarts),
        "kills": len(kills),
        "errors_s": [min(when for when in fails if when > kill) - kill for kill in kills],
        "recoveries_s": recoveries,
        "recovery_median_s": statistics.median(recoveries) if recoveries else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--every", type=float, default=30)
    parser.add_argument("--count", type=int, default=1_000_000, help="elements of each sum")
    parser.add_argument("--write", action="store_true", help=str(FILE.relative_to(ROOT)))
    given = parser.parse_args()
    code = source()
    result = {
        **code,
        "fault-free": measured(*run(given.seconds / 3, 0, given.count)),
        "under fire": measured(*run(given.seconds, given.every, given.count)),
    }
    print(json.dumps(result, indent=1))
    if given.write:
        FILE.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
