"""On each rank: many sums under way, in stream order; the caller never waits. The word chooses."""

from __future__ import annotations

import itertools
import sys
import threading

import torch
import torch.distributed as dist
from torch.cuda.jiterator import _create_jit_fn as create_jit_fn
from torch_rank import (
    DEVICE,
    HOOKED,
    RANK,
    SIZE,
    begin,
    calls,
    check,
    end,
    mine,
    say,
    total,
    values,
    wait_for,
)

COUNT, F32 = 100_003, torch.float32


def back_to_back() -> None:
    """Several process groups, each with a stream of its own, and no wait in between."""
    groups = [dist.group.WORLD, dist.new_group(), dist.new_group()]
    tensors = [mine(F32, COUNT, 0.2, seed) for seed in range(30)]
    works = [dist.all_reduce(x, group=groups[i % 3], async_op=True) for i, x in enumerate(tensors)]
    for work in works:
        work.wait()
    for seed, x in enumerate(tensors):
        check(x, total(F32, COUNT, 0.2, seed), f"sum {seed}")


def in_stream_order() -> None:
    """Work queued before a sum is in it; work queued behind it sees the result."""
    stream = torch.cuda.Stream()
    x, y = mine(F32, COUNT, 0.3), mine(F32, COUNT, 0.3)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)  # cycles: what follows is queued before it can run
        x *= 2
        dist.all_reduce(x)
        x += 1
        dist.all_reduce(x)
        copy = x.clone()
    dist.all_reduce(y)
    y += 1
    stream.synchronize()
    expected = (2 * total(F32, COUNT, 0.3) + 1) * SIZE
    check(copy, expected, "a copy behind the second sum")
    check(y, total(F32, COUNT, 0.3) + 1, "on the default stream")


def caller_never_waits() -> None:
    """Rank 0 has queued three sums, and gone on, before another rank has called."""
    first = mine(F32, COUNT, 0.2)
    dist.all_reduce(first)  # here the ranks meet
    torch.cuda.synchronize()
    tensors = [mine(F32, COUNT, 0.2, seed) for seed in (1, 2, 3)]
    torch.cuda.synchronize()
    if RANK > 0:
        wait_for("rank 0 has gone on")
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    if RANK == 0:
        assert not works[0].is_completed(), "done without the others"
        say("rank 0 has gone on")
    for work in works:
        work.wait()
    for seed, x in enumerate(tensors, 1):
        check(x, total(F32, COUNT, 0.2, seed), f"sum {seed}")


def growing() -> None:
    """Tensors of growing size, while the ones before are under way."""
    counts = (1_000, 50_000, 1_000_001, 200, 6_000_000)
    tensors = [mine(F32, count, 0.3, seed) for seed, count in enumerate(counts)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for work in works:
        work.wait()
    for seed, x in enumerate(tensors):
        check(x, total(F32, counts[seed], 0.3, seed), f"sum {seed}")


def driver_locks() -> None:
    """Another thread frees memory and loads kernels all the time, and so waits for the device."""
    over = threading.Event()

    def disturb() -> None:
        torch.cuda.set_device(DEVICE)
        for i in itertools.count():
            if over.is_set():
                return
            torch.empty(1 << 24, device=DEVICE)
            torch.cuda.empty_cache()
            name = f"f{i}"
            create_jit_fn(  # NVRTC, and a module of its own
                f"template <typename T> T {name}(T x) {{ return x + {i}; }}"
            )(torch.ones(8, device=DEVICE))

    helper = threading.Thread(target=disturb)
    helper.start()
    try:
        for seed in range(100):
            x = mine(F32, COUNT, 0.2 if seed % 20 else 1, seed)
            dist.all_reduce(x)
            check(x, total(F32, COUNT, 0.2 if seed % 20 else 1, seed), f"sum {seed}")
    finally:
        over.set()
        helper.join()


def a_thousand() -> None:
    """Sums on 48 streams of three groups: more than the hardware has queues."""
    groups = [dist.group.WORLD, dist.new_group(), dist.new_group()]
    streams = [torch.cuda.Stream() for _ in range(48)]
    tensors = [torch.ones(COUNT, device=DEVICE) for _ in streams]
    torch.cuda.synchronize()
    for i in range(1000):
        with torch.cuda.stream(streams[i % 48]):
            dist.all_reduce(tensors[i % 48], group=groups[i % 3])
            tensors[i % 48] /= SIZE
    torch.cuda.synchronize()
    for x in tensors:
        check(x, torch.ones(COUNT), "after a thousand sums")


def new_groups() -> None:
    """Groups come and go, of two ranks and of one."""
    alone = [dist.new_group([rank]) for rank in range(SIZE)]
    for seed in range(3):
        group = dist.new_group([0, 1])
        if RANK < 2:
            x, y = mine(F32, COUNT, 0.2, seed), mine(F32, COUNT, 0.2, seed)
            dist.all_reduce(x, group=group)
            dist.all_reduce(y, group=alone[RANK])
            check(x, total(F32, COUNT, 0.2, seed, size=2), f"sum {seed}")
            check(y, values(F32, COUNT, 0.2, RANK, seed), "of one")
            dist.destroy_process_group(group)
    everybody = mine(F32, COUNT, 0.2)
    dist.all_reduce(everybody)
    check(everybody, total(F32, COUNT, 0.2), "of all")


begin()
globals()[sys.argv[1]]()
assert (calls() > 0) == HOOKED
end()
