"""Begins a rank of the library that a script is for."""

from __future__ import annotations

from datetime import timedelta

import torch


def begin(library: str) -> tuple[int, int]:
    """library: "torch" (Gloo) or "horovod". Returns this rank, and how many there are."""
    torch.set_num_threads(1)
    if library == "torch":
        import torch.distributed as dist

        import omnihvd.torch  # noqa: F401

        dist.init_process_group("gloo", timeout=timedelta(seconds=40))
        return dist.get_rank(), dist.get_world_size()
    import horovod.torch as hvd

    hvd.init()
    return hvd.rank(), hvd.size()
