"""Two ranks train a small recommender by DDP, plain and with omnihvd, side by side.

    python -m omnihvd.demo [--steps N]

Needs PyTorch alone, and about 10 s. Fails unless both trainings have the same losses and omnihvd
made the sums.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import omnihvd

RANKS = 2
ROWS, WIDTH, BATCH = 200_000, 32, 256  # of the embedding; rows that a rank looks up in a step
TIME_OUT_S = 120
TOLERANCE = 1e-3  # of the losses, relative: sums in another order differ in their last bits


class DemoError(Exception):
    """A training failed, or omnihvd did not do what the demo shows."""


def train(rank: int, store: str, steps: int) -> dict[str, Any]:
    """One rank's part of a training. Returns its losses, seconds a step, and statistics."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(ROWS, WIDTH), torch.nn.Linear(WIDTH, 1))
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=RANKS)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=10.0)
    random = torch.Generator().manual_seed(rank)
    losses, seconds = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        rows = torch.randint(ROWS // 100, (BATCH, 4), generator=random)  # few rows are popular
        wanted = (rows.sum(1, keepdim=True) % 2).float()
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(parallel(rows), wanted)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        seconds.append(time.perf_counter() - begin)
    stats = omnihvd.stats()
    dist.destroy_process_group()
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"losses": losses, "seconds": seconds, "stats": stats, "gradient_bytes": gradients}


def run(with_omnihvd: bool, steps: int) -> list[dict[str, Any]]:
    """All ranks' results of one training."""
    env = {**os.environ, "OMNIHVD_ENABLE": str(int(with_omnihvd)), "OMNIHVD_LOG": "error"}
    program = [sys.executable, "-m", "omnihvd.demo", "--steps", str(steps)]
    with tempfile.TemporaryDirectory(prefix="omnihvd-demo-") as folder:
        ranks = [
            subprocess.Popen([*program, "--rank", str(rank), "--folder", folder], env=env)
            for rank in range(RANKS)
        ]
        try:
            end = time.monotonic() + TIME_OUT_S
            statuses = [rank.wait(max(0, end - time.monotonic())) for rank in ranks]
        except subprocess.TimeoutExpired:
            raise DemoError(f"the training has not ended after {TIME_OUT_S} s") from None
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if any(statuses):
            raise DemoError(f"the ranks ended with {statuses}; `omnihvd check` may say why")
        return [json.loads(Path(folder, str(rank)).read_text()) for rank in range(RANKS)]


def moved_bytes(stats: list[dict[str, Any]]) -> float:
    """The bytes that all ranks sent or copied for their sums."""
    return sum(one[n] for one in stats for n in ("bytes_sent", "bytes_copied", "library_bytes"))


def check_losses(plain: list[float], omni: list[float]) -> float:
    """Returns the largest relative difference. Raises DemoError if one is above TOLERANCE."""
    for step, (a, b) in enumerate(zip(plain, omni), 1):
        if not abs(a - b) <= TOLERANCE * abs(a):  # NaN differs, too
            raise DemoError(f"the losses differ at step {step}: {a} and, with OmniReduce, {b}")
    return max(abs(a - b) / abs(a) for a, b in zip(plain, omni))


def report(plain: list[dict[str, Any]], omni: list[dict[str, Any]]) -> None:
    """Prints both. Raises DemoError unless omnihvd made the sums and changed nothing."""
    all_stats = [result["stats"] for result in omni]
    for rank, stats in enumerate(all_stats):
        if not stats["calls"]:
            raise DemoError(
                f"omnihvd made no sum on rank {rank}; fallbacks: {stats['passed']}. "
                "`omnihvd check` says what is missing"
            )
    steps = len(plain[0]["losses"])
    dense = plain[0]["gradient_bytes"]
    ring = 2 * (RANKS - 1) / RANKS * dense
    moved = moved_bytes(all_stats) / steps / RANKS
    figures = [
        ("loss at the last step", *(f"{one[0]['losses'][-1]:.4f}" for one in (plain, omni))),
        ("gradients, MB a step", *[f"{dense / 1e6:.1f}"] * 2),
        ("moved by a rank, MB a step", f"{ring / 1e6:.1f}", f"{moved / 1e6:.2f}"),
        ("ms a step", *(f"{1e3 * median_step(one):.1f}" for one in (plain, omni))),
    ]
    print(f"{RANKS} ranks, one host, {steps} steps of a recommender under DDP")
    for name, without, with_it in [("", "plain", "omnihvd"), *figures]:
        print(f"{name:28}{without:>10}{with_it:>10}")
    check_losses(plain[0]["losses"], omni[0]["losses"])
    print(f"The losses of all {steps} steps agree.")
    print("Now yours: torchrun --nproc-per-node 2 -m omnihvd train.py")
    print("Will it pay? python -m omnihvd --report out/ train.py")


def median_step(results: list[dict[str, Any]]) -> float:
    return statistics.median(results[0]["seconds"][1:])  # the first connects the ranks


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m omnihvd.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=30, help="of each training (default: 30)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps: at least 2")
    if args.rank is None:
        try:
            import torch  # noqa: F401
        except ImportError:
            raise SystemExit("demo: PyTorch is missing: pip install torch") from None
        try:
            report(run(False, args.steps), run(True, args.steps))
        except DemoError as why:
            raise SystemExit(f"demo: {why}") from None
        return
    result = train(args.rank, str(args.folder / "store"), args.steps)
    (args.folder / str(args.rank)).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
