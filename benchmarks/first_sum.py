"""The time from nothing to the first sum under DDP, and omnihvd's part of it.

    .ci/wheel && python benchmarks/first_sum.py --wheel dist/omnihvd-*.whl [--runs 3]

In a new virtual environment, without a compiler, it installs PyTorch for CPUs (.ci/torch.txt), then
the wheel with its dependencies. Then two ranks under torchrun make one step of DDP with omnihvd,
and again without it and with it. pip uses its cache, so the network's speed is not measured. Writes
results/first_sum.json: seconds of each part, of each run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.command import machine  # noqa: E402

TIMEOUT = 600.0  # seconds, of each part
STEP = """
import os, sys
with_omnihvd = sys.argv[1] == "with"
if with_omnihvd:
    import omnihvd
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(1000, 1000, bias=False))
model(torch.full((1, 1000), dist.get_rank() + 1.0)).sum().backward()
assert (model.module.weight.grad == (dist.get_world_size() + 1) / 2).all()
if with_omnihvd:
    streamed = omnihvd.stats()["ways"]["stream"]["calls"]
    assert streamed == 1, omnihvd.stats()
dist.destroy_process_group()
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, required=True, help="made by .ci/wheel")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/first_sum.json")
    return parser.parse_args()


def timed(*words: object, folder: Path) -> float:
    """Seconds that a command took, without a compiler on the PATH."""
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "HTTP", "SSL_"))}
    env = {"HOME": os.environ.get("HOME", "/"), "PATH": str(folder / "bin"), "OMP_NUM_THREADS": "1"}
    begin = time.monotonic()
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder.parent,
        env={**kept, **env, "OMNIHVD_WAY": "stream"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
    )
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(map(str, words))}\n{done.stdout}")
    return time.monotonic() - begin


def one_run(wheel: Path) -> dict[str, float]:
    """Seconds of each part."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "env")
        python = folder / "bin/python"
        pip = [python, "-m", "pip", "install", "-q", "--only-binary=:all:"]
        script = folder.parent / "step.py"
        script.write_text(STEP)
        torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        taken = {"environment": timed(sys.executable, "-m", "venv", folder, folder=folder)}
        taken["pytorch"] = timed(*pip, "-r", ROOT / ".ci/torch.txt", folder=folder)
        taken["omnihvd"] = timed(*pip, wheel.resolve(), folder=folder)
        taken["first_step"] = timed(*torchrun, script, "with", folder=folder)
        # Both with their files in the page cache.
        taken["step_without"] = timed(*torchrun, script, "without", folder=folder)
        taken["step_with"] = timed(*torchrun, script, "with", folder=folder)
        return taken


def main() -> None:
    args = parse_arguments()
    runs = []
    for _ in range(args.runs):
        runs.append(one_run(args.wheel))
        print({part: round(seconds, 1) for part, seconds in runs[-1].items()}, flush=True)
    result = {"machine": machine(), "wheel": args.wheel.name, "runs": runs}
    args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
