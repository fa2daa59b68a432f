"""On each rank of an elastic job: sums that are checked, while ranks come and go.

argv: a folder in which `hosts` lists the hosts, and the job's phases: how many ranks, and what ends
the phase: 3:kill=127.0.0.1 (the rank there dies in the midst of a sum), 2:hosts=a:1,b:1 (the hosts
from then on), 2:run=COMMAND (rank 0 runs it; no rank goes), or just 2.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

import omnihvd

FOLDER = Path(sys.argv[1])
PHASES = [phase.partition(":")[::2] for phase in sys.argv[2:]]
COUNT = 2_000_000
HOST = os.environ["HOROVOD_HOSTNAME"]


def part(rank: int, step: int) -> torch.Tensor:
    index = torch.arange(COUNT)
    return torch.where((index // 256 + rank) % 3 == 0, rank + 1.0 + step, 0.0)


def check_sum(step: int) -> None:
    summed = hvd.allreduce(part(hvd.rank(), step), op=hvd.Sum, name="x")
    expected = torch.stack([part(rank, step) for rank in range(hvd.size())]).sum(0)
    assert torch.equal(summed, expected), (hvd.rank(), hvd.size(), step)


def die_when_sending(before: int) -> None:
    while omnihvd.stats()["bytes_sent"] == before:
        time.sleep(1e-4)
    os.kill(os.getpid(), signal.SIGKILL)


def happen(event: str) -> None:
    what, _, argument = event.partition("=")
    if what == "kill" and argument == HOST:
        sent = omnihvd.stats()["bytes_sent"]
        threading.Thread(target=die_when_sending, args=[sent], daemon=True).start()
    if what == "hosts" and hvd.rank() == 0:
        (FOLDER / "next").write_text("\n".join(argument.split(",")) + "\n")
        (FOLDER / "next").rename(FOLDER / "hosts")
    if what == "run" and hvd.rank() == 0:
        subprocess.run(argument, shell=True, check=True)


def say(*what: object) -> None:
    with (FOLDER / "log").open("a") as log:
        print(*what, file=log)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    if state.happened:  # or Horovod has begun anew before its time
        state.phase += 1
        state.happened = False
    ranks, event = PHASES[state.phase]
    assert hvd.size() == int(ranks), (hvd.size(), PHASES[state.phase])
    say("begins", HOST, os.getpid(), state.phase, state.step)
    steps = 0
    while event or steps < 3:
        if steps == 3:
            state.happened = True
            state.commit()
            happen(event)
        elif steps > 3:
            time.sleep(0.2)  # until it is noticed
        start = time.monotonic()
        try:
            check_sum(state.step)
        except HorovodInternalError as why:
            say("fails", HOST, os.getpid(), state.phase, f"{time.monotonic() - start:.1f}", why)
            raise
        steps += 1
        state.step += 1
        state.commit()
    say("ends", HOST, os.getpid(), state.phase, state.step)


hvd.init()
train(hvd.elastic.TorchState(model=torch.nn.Linear(1, 1), step=0, phase=0, happened=False))
