"""Models of the six under PyTorch's DDP, with the batches, and so the losses, of worker.py.

torchrun --nproc-per-node 4 examples/models/ddp.py --model ncf vgg19 --omnireduce
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a group is made: see pytorch_ddp.py
import training
from registry import MODELS
from task import SIZES
from torch.nn.parallel import DistributedDataParallel


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(MODELS), nargs="+", required=True)
    parser.add_argument("--data", type=Path, help="a folder (sources.py)")
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--omnireduce", action="store_true")
    parser.add_argument("--json", type=Path, help="write losses by model here")
    return parser.parse_args()


def train(name: str, args: argparse.Namespace) -> list[float]:
    """Losses, means of the ranks."""
    task = MODELS[name](args.data, args.size, dist.get_rank(), dist.get_world_size())
    model = training.drawn_model(task, args.seed)
    # Normalization's means are each rank's own, as under Horovod.
    ddp = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = task.optimizer(model)
    trained = training.train(
        task, model, optimizer, lambda: None, args.seed, args.steps, forward=ddp
    )
    losses = torch.tensor(trained.losses)
    dist.all_reduce(losses)
    losses /= dist.get_world_size()
    if dist.get_rank() == 0:
        print(f"{name}, {task.source}: loss {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
    return losses.tolist()


def main() -> None:
    args = parse_arguments()
    if args.omnireduce:
        import omnihvd  # noqa: F401, before init_process_group()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    losses = {name: train(name, args) for name in args.model}
    if args.json and dist.get_rank() == 0:
        args.json.write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
