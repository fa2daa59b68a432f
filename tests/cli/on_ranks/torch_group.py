"""On each rank of torchrun: a sum over the backend that is the argument."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])  # "fake" asks for them
dist.init_process_group(sys.argv[1], rank=rank, world_size=size)
dist.all_reduce(torch.ones(100_000))
dist.destroy_process_group()
