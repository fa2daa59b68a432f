"""A script that knows nothing of omnihvd, and starts its ranks itself. argv: how, and a port."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def train(rank: int, port: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    ones = torch.ones(100_000)
    dist.all_reduce(ones)
    assert (ones == RANKS).all()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.optim.SGD([torch.zeros(1)], 1.0)  # with which FSDP is imported
    mp.start_processes(train, (sys.argv[2],), RANKS, start_method=sys.argv[1])
