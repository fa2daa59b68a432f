"""A cluster's scheduler runs this on each rank."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

WORDS, WIDTH, STEPS = 4096, 64, 3  # an embedding of 1 MiB; a step touches a few rows


def train() -> dict[str, Any]:
    """Some steps of SGD, checked; returns the rank and its statistics.

    The loss of rank k is (k + 1) times the sum of rows k and k + 1 of the embedding.
    """
    import horovod.torch as hvd
    import torch

    import omnihvd
    from omnihvd import OmniReduce

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    model = torch.nn.Embedding(WORDS, WIDTH)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        named_parameters=model.named_parameters(),
        compression=OmniReduce,
        op=hvd.Sum,
    )
    for _ in range(STEPS):
        optimizer.zero_grad()
        ((rank + 1) * model(torch.tensor([rank, rank + 1]))).sum().backward()
        optimizer.step()
    expected = torch.zeros(WORDS, WIDTH)
    for k in range(size):
        expected[k : k + 2] -= STEPS * (k + 1)
    assert torch.equal(model.weight, expected)
    stats = omnihvd.stats()
    hvd.shutdown()
    return {"rank": rank, "size": size, "host": os.environ["HOROVOD_HOSTNAME"], **stats}


def die_when_sending() -> None:
    """From now on this process dies in the midst of a sum."""
    import omnihvd

    def wait(before: int) -> None:
        while omnihvd.stats()["bytes_sent"] == before:
            time.sleep(1e-4)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, args=[omnihvd.stats()["bytes_sent"]], daemon=True).start()


def sum_until_one_dies() -> None:
    """The last rank dies in the third sum."""
    import horovod.torch as hvd
    import torch

    import omnihvd

    omnihvd.stats()
    hvd.init()
    for step in range(100):
        if step == 2 and hvd.rank() == hvd.size() - 1:
            die_when_sending()
        hvd.allreduce(torch.ones(2_000_000), op=hvd.Sum, name="x")


def train_elastically() -> tuple[list[int], dict[str, Any]]:
    """Six sums; the last rank dies in the midst of the third or fourth. The sizes of the job at
    each, and statistics of those that remain."""
    import horovod.torch as hvd
    import torch

    import omnihvd

    @hvd.elastic.run
    def loop(state: hvd.elastic.TorchState) -> list[int]:
        while len(state.sizes) < 6:
            if len(state.sizes) == 2 and hvd.rank() == 2:
                die_when_sending()
            mine = torch.arange(1_000_000) * float(hvd.rank() + 1)
            summed = hvd.allreduce(mine, op=hvd.Sum, name="x")
            assert summed[-1] == 999_999 * sum(range(1, hvd.size() + 1))
            state.sizes = [*state.sizes, hvd.size()]
            state.commit()
        return state.sizes

    hvd.init()
    sizes = loop(hvd.elastic.TorchState(model=torch.nn.Linear(1, 1), sizes=[]))
    return sizes, omnihvd.stats()
