"""On each rank: a process group, where the settings of rank 1 are wrong by then."""

from __future__ import annotations

import os

import torch.distributed as dist

import omnihvd.torch  # noqa: F401

if os.environ["RANK"] == "1":
    os.environ["OMNIHVD_SLOTS"] = "many"
dist.init_process_group("gloo")
