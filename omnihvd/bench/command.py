"""`omnihvd bench -- LAUNCHER`: sums on this cluster in a minute, by omnihvd and what it replaces.

It runs your launcher several times: once with omnihvd, and once for each setting in which the
original library may be the fastest. It verifies each sum. Column non-zero is the share of non-zero
blocks of 256 elements on each rank, at random positions.

A clone of the repository has a laboratory with more peers: `python -m benchmarks.bench`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omnihvd.bench.rank import MARK, packed
from omnihvd.bench.settings import AS_IT_IS, YIELDING, Setting

PROGRAM = "omnihvd.bench.rank"
SIZES = {"64K": 1 << 16, "1M": 1 << 20, "16M": 1 << 24, "64M": 1 << 26}
DENSITIES = (1.0, 0.1, 0.01)
GRACE_S = 10.0  # for a launcher to end its ranks


# The original library's backend, and ours; then the settings in which the original may be fastest.
# Other MPIs do not read Open MPI's parameters: there the three jobs are alike.
BACKENDS = {"horovod": ("horovod", "omnihvd"), "torch": ("gloo", "omnihvd-torch")}
ORIGINAL = {"horovod": [AS_IT_IS, *YIELDING], "torch": [AS_IT_IS]}


class JobFailed(RuntimeError):
    """The launcher's job failed, or took too long."""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="omnihvd bench",
        usage="omnihvd bench [OPTION ...] -- LAUNCHER ...",
        description=__doc__,
        epilog="Example: omnihvd bench --sizes 1M 16M -- horovodrun -np 8 -H host1:4,host2:4",
    )
    p.add_argument(
        "--library", choices=ORIGINAL, help="default: torch under torchrun, else Horovod"
    )
    p.add_argument("--sizes", nargs="+", choices=SIZES, default=["64K", "1M", "16M"])
    p.add_argument("--seconds", type=float, default=0.5, help="at each point (default: 0.5)")
    p.add_argument("--timeout", type=float, default=300, help="seconds of a job (default: 300)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write all times here")
    return p


def command_of(launcher: Sequence[str]) -> list[str]:
    """The words that start PROGRAM on each rank. torchrun brings Python itself."""
    return [*launcher, *([] if _is_torchrun(launcher) else [sys.executable]), "-m", PROGRAM]


def _is_torchrun(words: Sequence[str]) -> bool:
    return any(re.search(r"(^|/)torchrun$|^torch\.distributed\.run$", word) for word in words)


def job(command: Sequence[str], plan: dict[str, Any], timeout: float) -> list[dict[str, Any]]:
    """Runs a job; returns rank 0's figures, one for each point."""
    words = [*command, packed(plan)]
    try:
        launched = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except FileNotFoundError as why:
        raise JobFailed(f"no program {words[0]}") from why
    except PermissionError as why:
        raise JobFailed(f"{words[0]} may not be run: name a launcher") from why
    with launched:
        try:
            output = launched.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired as why:
            launched.terminate()  # SIGKILL would leave its ranks behind
            with contextlib.suppress(subprocess.TimeoutExpired):
                launched.communicate(timeout=GRACE_S)
            launched.kill()
            raise JobFailed(
                f"the job took over {timeout:g} s (--timeout): {shlex.join(words)}"
            ) from why
    found = re.findall(rf"{MARK} (\{{.*\}})", output)
    if launched.returncode != 0 or len(found) != len(plan["points"]):
        last = "\n".join(output.strip().splitlines()[-15:])
        raise JobFailed(f"the job failed: {shlex.join(words)}\n{last}")
    return [json.loads(line) for line in found]


def measure(args: argparse.Namespace, launcher: list[str]) -> list[dict[str, Any]]:
    """A point each: `original`, by the name of its setting, and `omnihvd`: seconds of a sum."""
    command = command_of(launcher)
    library = args.library or ("torch" if _is_torchrun(command) else "horovod")
    sizes = [SIZES[name] for name in args.sizes]
    sparse = [[size, density] for size in sizes for density in DENSITIES]
    dense = [[size, 1.0] for size in sizes]  # at other densities they take the same time
    plain, ours_named = BACKENDS[library]
    plan = {"seconds": args.seconds}
    jobs = 1 + len(ORIGINAL[library])
    points = len(sparse) + (jobs - 1) * len(dense)
    print(f"{jobs} jobs, about {10 * jobs + points * (args.seconds + 1):.0f} s", flush=True)
    on, off = {"OMNIHVD_ENABLE": "1"}, {"OMNIHVD_ENABLE": "0"}  # a rank imports omnihvd either way
    ours = job(command, {**plan, "backend": ours_named, "env": on, "points": sparse}, args.timeout)
    original: dict[int, dict[str, dict[str, Any]]] = {}
    for setting in ORIGINAL[library]:
        theirs = {**plan, "backend": plain, "env": {**env_of(setting), **off}, "points": dense}
        for found in job(command, theirs, args.timeout):
            original.setdefault(found["count"], {})[setting.name or "as it is"] = found
    return [
        {
            **{name: one[name] for name in ("count", "density", "ranks")},
            "original": original[one["count"]],
            "omnihvd": one,
        }
        for one in ours
    ]


def env_of(setting: Setting) -> dict[str, str]:
    return {**setting.env, **{f"OMPI_MCA_{name}": value for name, value in setting.mca.items()}}


def table(points: list[dict[str, Any]]) -> str:
    lines = [f"{'tensor':>8} {'non-zero':>9} {'original':>11} {'omnihvd':>11}  times as fast"]
    for point in points:
        best, setting = min((one["median"], name) for name, one in point["original"].items())
        ours = point["omnihvd"]["median"]
        size = next(name for name, size in SIZES.items() if size == 4 * point["count"])
        lines.append(
            f"{size + 'B':>8} {100 * point['density']:>8g}% {1e3 * best:8.2f} ms "
            f"{1e3 * ours:8.2f} ms  {best / ours:.2f} (original: {setting})"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """arguments: options, "--", and the words that start a program on each rank."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    launcher = arguments[at + 1 :]
    args = parser().parse_args(arguments[:at] if launcher else arguments[:at] or ["--help"])
    if not launcher:
        parser().error("name your launcher after --, such as: omnihvd bench -- mpirun -np 4")
    try:
        points = measure(args, launcher)
    except JobFailed as why:
        print(f"omnihvd bench: {why}", file=sys.stderr)
        return 1
    print(f"{points[0]['ranks']} ranks; medians of the slowest rank's times\n{table(points)}")
    if args.json:
        args.json.write_text(json.dumps(points, indent=1))
    return 0
