"""Runs a rank as if it had a host of its own, so that several may share a GPU.

    torchrun --nproc-per-node 4 benchmarks/bench/one_gpu.py train.py ...
    mpirun -np 4 python benchmarks/bench/one_gpu.py train.py ...

NCCL refuses two ranks with one GPU, unless they say that they are on different hosts; it then
connects them by sockets, here on the loopback device. For tests, and for measurements where GPUs
are few: the ranks' kernels take turns on the GPU.
"""

from __future__ import annotations

import os
import socket
import sys

from omnihvd.launchers import ALL, process_rank


def environment(rank: int) -> dict[str, str]:
    host = f"gpu-shared-by-rank-{rank}"
    return {
        "NCCL_HOSTID": host,
        "OMNIHVD_HOST_ID": host,
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def environments(ranks: int) -> list[dict[str, str]]:
    """The environments of all ranks of a job, with torch.distributed's variables."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    return [
        {**master, **environment(rank), "RANK": str(rank), "LOCAL_RANK": "0"}
        for rank in range(ranks)
    ]


def main() -> None:
    rank, names = process_rank(), ", ".join(launcher.rank for launcher in ALL)
    if rank is None or len(sys.argv) < 2:
        sys.exit(f"{__doc__}\nNeeds a script, and the rank in one of {names}.")
    os.environ.update(environment(rank))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
