"""Two ranks sum a gradient, and rank 1 fails on purpose (docs/failures-to-try.md)."""

import os
import signal
import subprocess
import sys
import tempfile
import time


def start(case: str) -> None:
    """Starts two ranks, which sum as between hosts, and ends rank 1 when rank 0 has ended."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMNIHVD_WAY": "stream"}
        program = [sys.executable, __file__, case, f"file://{folder}/store"]
        ranks = [subprocess.Popen(program, env={**env, "RANK": rank}) for rank in "01"]
        ranks[0].wait()
        ranks[1].kill()


def run(case: str, store: str) -> None:
    rank = int(os.environ["RANK"])
    if not (case == "forget" and rank == 1):
        import omnihvd  # noqa: F401
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store, rank=rank, world_size=2)
    gradient = torch.ones(200_000)
    dist.all_reduce(gradient)  # all is well so far
    if rank == 1:
        if case == "hang":
            time.sleep(600)
        elif case == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif case == "leave":
            sys.exit()
        elif case == "differ":
            gradient = torch.ones(100_000)
    dist.all_reduce(gradient)


if len(sys.argv) == 2:
    start(sys.argv[1])
else:
    try:
        run(*sys.argv[1:])
    except RuntimeError as why:
        sys.stdout.write(f"rank {os.environ['RANK']}: {why}\n")  # in one write, unlike print()
