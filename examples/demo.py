"""The language model trained by Horovod alone and by Horovod with OmniReduce, side by side.

    python examples/demo.py                          # 4 ranks on this machine
    python examples/demo.py --under ddp              # PyTorch's DDP, on Gloo, instead of Horovod
    sudo python examples/demo.py --network 1gbit     # 4 hosts on shaped links

Same data, same steps: fails unless both runs have the same losses and OmniReduce did the reducing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.lab import Lab, LabError, mpirun_env  # noqa: E402
from omnihvd.demo import DemoError, check_losses, moved_bytes  # noqa: E402

HERE = Path(__file__).parent
TAG = re.compile(r"\[1,\d+\]<std(out|err)>:")  # horovodrun's, before what a rank prints
STEP = re.compile(r"step (\d+)/\d+  (loss \S+  \S+ s/step)")
LOG_EVERY = 5
WORDS = {"MB": ("fewer", "more"), "s": ("faster", "slower")}  # of figures in these units

console = Console()


NOW_YOURS = {
    "ddp": "Now yours: torchrun --nproc-per-node 4 -m omnihvd train.py (docs/pytorch.md)",
    "horovod": "Now yours: horovodrun -np 4 python -m omnihvd train.py (docs/first_job.md)",
}


class Under(NamedTuple):
    """A library that trains the model, by an example that has a switch for OmniReduce."""

    name: str
    example: Path
    plain: list[str]
    omni: list[str]

    def launch(self, program: list[str], ranks: int) -> list[str]:
        if self.name == "Horovod":
            return [str(Path(sys.executable).with_name("horovodrun")), "-np", str(ranks), *program]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*torchrun, f"--nproc-per-node={ranks}", *program[1:]]

    def runs(self) -> list[tuple[str, list[str]]]:
        """Name and arguments of each."""
        return [(self.name, self.plain), (f"{self.name} + OmniReduce", self.omni)]


UNDER = {
    "horovod": Under(
        "Horovod",
        HERE / "pytorch_language_model.py",
        ["--compression", "none"],
        ["--compression", "omnireduce"],
    ),
    "ddp": Under(
        "DDP",
        HERE / "pytorch_ddp.py",
        ["--device", "cpu"],
        ["--device", "cpu", "--omnireduce"],
    ),
}


def show(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--under", choices=list(UNDER), default="horovod")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--network", metavar="RATE", help="a host for each rank, on such links")
    parser.add_argument("--timeout", type=float, default=600, help="seconds, of each run")
    args = parser.parse_args()
    if args.steps < 2 * LOG_EVERY:
        parser.error(f"--steps: at least {2 * LOG_EVERY}, to tell a step from the start")
    if args.network and args.under == "ddp":
        parser.error("--network is for Horovod: mpirun starts the ranks of several hosts")
    return args


def train(
    name: str, options: list[str], args: argparse.Namespace, lab: Lab | None, progress: Progress
) -> dict[str, Any]:
    """Runs the example; returns its report. In a lab, with `link_bytes`: sent by a host a step."""
    with tempfile.TemporaryDirectory(prefix="omnihvd-demo-") as folder:
        report = Path(folder, "report.json")
        under = UNDER[args.under]
        program = [sys.executable, str(under.example), *options, "--steps", str(args.steps)]
        program += ["--log-every", str(LOG_EVERY), "--json", str(report)]
        command = lab.mpirun_command(program) if lab else under.launch(program, args.ranks)
        tagged = not lab and args.under == "horovod"
        links: list[tuple[int, int]] = []  # (step, bytes sent so far by all hosts)
        task = progress.add_task(name, total=args.steps, last="starting")
        last_lines: deque[str] = deque(maxlen=60)
        start = time.monotonic()
        with launched(command, args) as process:
            assert process.stdout
            for line in process.stdout:
                last_lines.append(line)
                if match := STEP.search(line):
                    progress.update(task, completed=int(match[1]), last=match[2])
                    if not console.is_terminal:
                        show(f"{name}: {match[0]}")
                    if lab:
                        links.append((int(match[1]), sum(t.sent for t in lab.traffic())))
                elif not tagged or TAG.match(line):  # not the launcher's own chatter
                    show(TAG.sub("", line).rstrip())
        if process.returncode or not report.exists():
            show("".join(last_lines))
            late = time.monotonic() - start > args.timeout
            what = f"stopped after {args.timeout:g} s" if late else f"exit {process.returncode}"
            raise DemoError(f"{what}: {shlex.join(command)}")
        result: dict[str, Any] = json.loads(report.read_text())
    if len(links) > 1:
        (first, before), (last, after) = links[0], links[-1]
        result["link_bytes"] = (after - before) / (last - first) / args.ranks
    return result


@contextlib.contextmanager
def launched(command: list[str], args: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, which is ended on an error and after the time-out."""
    env = mpirun_env(args.ranks)
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(path)  # this checkout's omnihvd, installed or not
    env["TF_CPP_MIN_LOG_LEVEL"] = "3"  # horovodrun imports TensorFlow where it is installed
    if args.ranks > (os.cpu_count() or 1):
        env["OMPI_MCA_mpi_yield_when_idle"] = "1"  # else waiting ranks take the others' cores
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def end() -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)

    timer = threading.Timer(args.timeout, end)
    timer.start()
    try:
        with process:  # waits for it
            try:
                yield process
            except BaseException:
                end()
                raise
    finally:
        timer.cancel()


def ratio(before: float, after: float, less: str, more: str) -> str:
    """With the word for it: 3.1x fewer."""
    if not before or not after:
        return ""
    times = max(before, after) / min(before, after)
    return f"{times:.1f}x {less if before >= after else more}" if times >= 1.05 else "the same"


def compare(plain: dict[str, Any], omni: dict[str, Any], args: argparse.Namespace) -> Table:
    """The table of both runs."""

    def median(run: dict[str, Any], key: str) -> float:
        return statistics.median(run[key][1:])  # the first step sets up connections

    stats, steps, ranks = omni["stats"], args.steps, args.ranks

    def total(key: str) -> float:
        return sum(rank[key] for rank in stats)

    def megabytes(key: str) -> float:
        return total(key) / 1e6 / steps / ranks

    where = f"{ranks} hosts, {args.network} links" if args.network else f"{ranks} ranks, one host"
    table = Table(
        title=f"{UNDER[args.under].example.name}: {where}, {steps} steps", title_justify="left"
    )
    table.add_column()
    for name in (*dict(UNDER[args.under].runs()), ""):
        table.add_column(name, justify="right")

    def row(name: str, unit: str, before: float, after: float, at_least: str = "") -> None:
        figures = (f"{at_least}{before:.3g} {unit}", f"{after:.3g} {unit}")
        table.add_row(name, *figures, ratio(before, after, *WORDS[unit]))

    table.add_row("loss at the last step", *(f"{run['losses'][-1]:.4f}" for run in (plain, omni)))
    table.add_row("gradients, a step", *[f"{plain['gradient_bytes'] / 1e6:.1f} MB"] * 2)
    table.add_row("   through OmniReduce", "", f"{megabytes('bytes_in'):.1f} MB")
    for name, key in (("on a rank", "nonzero_blocks"), ("on any rank", "result_blocks")):
        table.add_row(f"   non-zero blocks {name}", "", f"{total(key) / total('blocks'):.2%}")
    if args.network:
        row("sent by a host, a step", "MB", plain["link_bytes"] / 1e6, omni["link_bytes"] / 1e6)
        table.caption = "sent: all bytes that left on the host's link, frame headers included"
    else:  # what goes through shared memory cannot be counted
        ring = 2 * (ranks - 1) / ranks * plain["gradient_bytes"] / 1e6
        moved = moved_bytes(stats) / 1e6 / steps / ranks
        row("sent or copied, a step", "MB", ring, moved, at_least="≥ ")
        table.caption = "by a rank; ≥: the least that a dense allreduce sends, 2 (N-1)/N"
    row("time a step", "s", median(plain, "step_seconds"), median(omni, "step_seconds"))
    if "wait_seconds" in plain:
        waits = (median(plain, "wait_seconds"), median(omni, "wait_seconds"))
        row("   waiting for gradients", "s", *waits)
    return table


def check(plain: dict[str, Any], omni: dict[str, Any]) -> None:
    """Raises DemoError unless OmniReduce was used and changed nothing."""
    for rank, stats in enumerate(omni["stats"]):
        if not stats["calls"]:
            raise DemoError(
                f"OmniReduce took no call on rank {rank}; passed on: {stats['passed']}. "
                "`omnihvd check` says what is missing."
            )
    worst = check_losses(plain["losses"], omni["losses"])
    steps = len(plain["losses"])
    console.print(f"The losses of all {steps} steps agree: within {worst:.1g}, relative.")


def main() -> int:
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that launched() ends the ranks
    columns = (
        TextColumn("{task.description:20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[last]}"),
        TimeElapsedColumn(),
    )
    try:
        with contextlib.ExitStack() as stack:
            lab = stack.enter_context(Lab(args.ranks, args.network)) if args.network else None
            progress = stack.enter_context(Progress(*columns, console=console))
            plain, omni = (train(*run, args, lab, progress) for run in UNDER[args.under].runs())
        console.print(compare(plain, omni, args))
        check(plain, omni)
        show(NOW_YOURS[args.under])
    except (DemoError, LabError) as error:
        show(f"demo: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
