"""On each rank of an elastic job: training, while a rank joins and another one dies.

argv: the folder with the list of hosts, the host that joins after 4 steps, the host where a rank
dies after 8. Two models are trained, one with OmniReduce alone, one with a block compressor.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import horovod.torch as hvd
import torch

from omnihvd import OmniReduce

FOLDER, JOINS, DIES = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
HOST = os.environ["HOROVOD_HOSTNAME"]
WORDS, WIDTH, STEPS = 4096, 64, 12
committed: dict = {}  # what the compressor had kept at the last commit


def say(*what: object) -> None:
    with (FOLDER / "log").open("a") as log:
        print(*what, file=log)


def kept(optimizer: torch.optim.Optimizer) -> tuple[int, torch.Tensor]:
    (state,) = optimizer.state_dict()["omnihvd_compression"].values()
    return state["step"], state["rest"].clone()


def expected(sizes: list[int]) -> torch.Tensor:
    """The gradient of rank k is k + 1 in rows 8 k to 8 k + 7."""
    weight = torch.zeros(WORDS, WIDTH)
    for size in sizes:
        for k in range(size):
            weight[8 * k : 8 * k + 8] -= k + 1
    return weight


def change(state: hvd.elastic.TorchState) -> None:
    if state.step == 4 and hvd.rank() == 0:
        hosts = (FOLDER / "hosts").read_text()
        (FOLDER / "next").write_text(f"{hosts}{JOINS}:1\n")
        (FOLDER / "next").rename(FOLDER / "hosts")
    if state.step == 8 and HOST == DIES:
        os.kill(os.getpid(), signal.SIGKILL)


def backward(model: torch.nn.Embedding) -> None:
    rank = hvd.rank()
    ((rank + 1) * model(torch.arange(8 * rank, 8 * rank + 8))).sum().backward()


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    if committed:
        step, rest = kept(state.compressing)
        assert step == committed["step"] and torch.equal(rest, committed["rest"])
        say("kept", HOST)
    say("begins", HOST, state.step, hvd.size())
    while state.step < STEPS:
        if state.step in (4, 8) and state.sizes[-1] == hvd.size():
            change(state)
            while True:  # until it is noticed
                state.check_host_updates()
                hvd.allreduce(torch.ones(1), name="wait")
        for optimizer, model in ((state.exact, state.model), (state.compressing, state.other)):
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
        state.step += 1
        state.sizes = [*state.sizes, hvd.size()]
        assert torch.equal(state.model.weight, expected(state.sizes)), state.sizes
        committed["step"], committed["rest"] = kept(state.compressing)
        assert committed["step"] == state.step  # also where the rank came later
        state.commit()
    say("ends", HOST, state.sizes)


def model_and_optimizer(name: str, compression: object) -> tuple[torch.nn.Module, object]:
    model = torch.nn.Embedding(WORDS, WIDTH)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        named_parameters=model.named_parameters(prefix=name),
        compression=compression,
        op=hvd.Sum,
    )
    return model, optimizer


hvd.init()
model, exact = model_and_optimizer("exact", OmniReduce)
other, compressing = model_and_optimizer("other", OmniReduce.block_topk(0.0005))  # one of 2 blocks
train(
    hvd.elastic.TorchState(
        model=model, exact=exact, other=other, compressing=compressing, step=0, sizes=[]
    )
)
