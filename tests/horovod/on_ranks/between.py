"""On each rank: sums of several kinds. Tells as JSON what was sent of each, as a share of what a
ring sends, what would have been sent between hosts, and the summary."""

from __future__ import annotations

import json
from typing import Any, Callable

import horovod.torch as hvd
import numpy as np
import torch

import omnihvd
from omnihvd.engine import session

COUNT, BLOCK, ROWS = 600_000, 256, 20_000


def with_blocks(share: float, elements: int = BLOCK) -> torch.Tensor:
    """Such a share of the blocks is not zero, in so many elements each; other ones on each rank."""
    prng = np.random.default_rng(hvd.rank())
    x = np.zeros((COUNT // BLOCK, BLOCK), np.float32)
    chosen = prng.choice(len(x), int(share * len(x)), replace=False)
    x[chosen, :elements] = hvd.rank() + 1
    return torch.from_numpy(x.reshape(-1))


def allreduce(x: torch.Tensor) -> None:
    hvd.allreduce_(x, op=hvd.Sum, name="x")


def scatter() -> None:
    hvd.reducescatter(with_blocks(0.02 + 0.1 * hvd.rank()), op=hvd.Sum, name="scatter")


def sparse() -> None:
    bag = torch.nn.EmbeddingBag(ROWS, 64, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(bag.parameters(), lr=0.1),
        named_parameters=bag.named_parameters(),
        compression=omnihvd.OmniReduce,
    )
    prng = np.random.default_rng(hvd.rank())
    # Ranks share these rows, mostly: else Horovod gathers them.
    bag(torch.from_numpy(prng.integers(0, 3000, (1000, 8)))).sum().backward()
    optimizer.step()


KINDS: dict[str, Callable[[], Any]] = {
    "sparse": sparse,
    "dense": lambda: allreduce(torch.full((COUNT,), hvd.rank() + 1.0)),
    "blocks": lambda: allreduce(with_blocks(0.1)),
    "uneven": lambda: allreduce(with_blocks(0.01 + 0.2 * hvd.rank())),
    "elements": lambda: allreduce(with_blocks(0.2, elements=3)),
    "scatter": scatter,
}


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    found = {}
    for kind, make in KINDS.items():
        figures = omnihvd.Statistics()
        make()
        read = figures.read()
        found[kind] = {
            "sent": read["sent_of_ring"],
            "between": read["between_hosts_bytes"] / read["ring_bytes"],
        }
        if kind == "sparse":
            found[kind]["summary"] = session.summary("MPI")
    print("FOUND", json.dumps(found), flush=True)
    hvd.shutdown()


main()
