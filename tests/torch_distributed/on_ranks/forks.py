"""On each rank: a child that is forked off between sums is told that it cannot sum, and its end is
no end of the rank."""

from __future__ import annotations

import atexit
import os

import torch
import torch.distributed as dist

import omnihvd.torch  # noqa: F401

dist.init_process_group("omnihvd")


def check() -> None:
    ones = torch.ones(200_000)
    dist.all_reduce(ones)
    assert (ones == dist.get_world_size()).all()


check()
child = os.fork()
if child == 0:
    try:
        check()
    except RuntimeError as why:
        assert "forked off" in str(why), why
        atexit._run_exitfuncs()
        os._exit(5)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
check()
dist.destroy_process_group()
print("all well")
