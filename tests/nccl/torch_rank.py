"""For the scripts on ranks that share a GPU: torch.distributed over NCCL, and values to sum.

Each script runs twice: with NCCL's allreduce hooked, and, under OMNIHVD_ENABLE=0, without.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import contributions
import torch
import torch.distributed as dist

import omnihvd

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(os.environ["FOLDER"])
HOOKED = os.environ.get("OMNIHVD_ENABLE") != "0"
PATIENCE_S = 60.0
DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.int8, torch.uint8, torch.int32, torch.int64,
)  # fmt: skip
DEVICE = torch.device("cuda", 0)


def begin(timeout_s: float = PATIENCE_S) -> None:
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", timeout=timedelta(seconds=timeout_s))


def end() -> None:
    torch.cuda.synchronize()
    dist.destroy_process_group()
    print("all well", flush=True)


def wait_for(name: str) -> None:
    """Until a rank has said so, by other means than those under test."""
    give_up = time.monotonic() + PATIENCE_S
    while not (FOLDER / name).exists():
        assert time.monotonic() < give_up, f"nobody said: {name}"
        time.sleep(1e-3)


def say(name: str) -> None:
    (FOLDER / name).touch()


def calls() -> int:
    return int(omnihvd.stats()["calls"])


def passed(reason: str) -> int:
    return int(omnihvd.stats()["passed"].get(reason, {"calls": 0})["calls"])


def values(
    dtype: torch.dtype, count: int, density: float, rank: int, seed: int = 0
) -> torch.Tensor:
    return torch.from_numpy(contributions.values(count, density, rank, seed)).to(dtype)


def total(
    dtype: torch.dtype, count: int, density: float, seed: int = 0, size: int = SIZE
) -> torch.Tensor:
    return torch.from_numpy(contributions.total(count, density, size, seed)).to(dtype)


def mine(dtype: torch.dtype, count: int, density: float, seed: int = 0) -> torch.Tensor:
    return values(dtype, count, density, RANK, seed).to(DEVICE)


def check(got: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, msg=lambda m: f"{what}: {m}")
