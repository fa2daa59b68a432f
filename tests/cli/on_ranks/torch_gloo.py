"""On each rank of torchrun: a sum over Gloo."""

from __future__ import annotations

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(100_000))
dist.destroy_process_group()
