"""On each rank: special values, and calls that are left to NCCL, with their reasons."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch_rank import DEVICE, HOOKED, RANK, SIZE, begin, calls, check, end, mine, passed, total

COUNT, F32 = 50_000, torch.float32


def special_values() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.zeros(COUNT, dtype=dtype, device=DEVICE)
        x[:10_000] = -0.0  # whole blocks of it
        if RANK == 0:
            x[15_000], x[16_000], x[17_000] = torch.nan, torch.inf, -torch.inf
        if RANK == 1:
            x[16_000], x[21_000] = -torch.inf, 3
        x[-10:] = 1 if RANK == 0 else -1  # in the ragged block
        dist.all_reduce(x)
        got = x.cpu()
        assert got[[15_000, 16_000]].isnan().all(), dtype
        assert got[17_000] == -torch.inf and got[21_000] == 3, dtype
        assert (got[-10:] == 2 - SIZE).all(), dtype
        got[[15_000, 16_000, 17_000, 21_000]] = 0
        assert (got[:-10] == 0).all(), dtype
        # Zeros of either sign are sent by nobody, and come back as 0: the same on all ranks.
        assert not HOOKED or not got[:10_000].signbit().any(), dtype


def other_operations() -> None:
    largest, mask = torch.full((COUNT,), RANK, device=DEVICE), mine(torch.int32, COUNT, 0.5) > 0
    before = passed("op")
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    assert (largest == SIZE - 1).all()
    assert passed("op") == before + HOOKED
    dist.all_reduce(mask, op=dist.ReduceOp.MAX)
    check(mask, total(torch.int32, COUNT, 0.5) > 0, "any")
    assert passed("op") == before + 2 * HOOKED


def captured() -> None:
    """Calls captured in a graph stay NCCL's; later calls do not."""
    x = mine(F32, COUNT, 0.3)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            dist.all_reduce(x)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    before, taken = passed("captured"), calls()
    graph = torch.cuda.CUDAGraph()
    # Other threads, as PyTorch's watchdog, may call CUDA meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(x)
    assert passed("captured") == before + HOOKED and calls() == taken
    for seed in (1, 2):
        x.copy_(mine(F32, COUNT, 0.3, seed))
        graph.replay()
        check(x, total(F32, COUNT, 0.3, seed), f"replay {seed}")
    y = mine(F32, COUNT, 0.3, 3)
    dist.all_reduce(y)
    check(y, total(F32, COUNT, 0.3, 3), "after the capture")
    assert calls() == taken + HOOKED
    torch.cuda.synchronize()
    graph.reset()  # before its communicator ends


begin()
special_values()
other_operations()
captured()
end()
