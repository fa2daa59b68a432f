"""The codec without loss: what gradients become, how fast, and what sums of dense ones take.

    python benchmarks/lossless.py sizes
    sudo python benchmarks/lossless.py sums [--hosts 4] [--rate 1gbit] [--megabytes 100]

sizes: gradients of three trainings after some steps, and normal values, in every dtype of floats:
bytes of all blocks of 256 over those of the tensor, zero blocks left out, and the speed of a core
both ways, by each set of instructions. Writes results/lossless.json.

sums: tensors of normal values, on hosts with shaped links, by torch.distributed over Gloo without
omnihvd, with it streaming, and with the codec (OMNIHVD_WAY); medians of the slowest rank's times.
Results of the last two are compared, bit for bit. Writes results/lossless_sums.json.
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

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
sys.path.insert(0, str(ROOT))
from benchmarks.evaluation.tasks import Words  # noqa: E402
from benchmarks.standard_text import numbered_words  # noqa: E402

from bert import Layer  # noqa: E402  isort: skip

DTYPES = ("float32", "bfloat16", "float16", "float64")
SUMMED = ("float32", "bfloat16")
BLOCK, STEPS, RUNS = 256, 20, 5


class Layers(nn.Module):
    """BERT's layers, over words, some of them hidden."""

    def __init__(self, words: int, width: int = 256) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        self.layers = nn.ModuleList(Layer(width, 8) for _ in range(4))
        self.out = nn.Linear(width, words)

    def forward(self, numbers: Any) -> Any:
        x = self.words(numbers) + self.places.weight
        for layer in self.layers:
            x = layer(x, None)
        return self.out(x)


def bert(steps: int) -> nn.Module:
    """Trained to find hidden words of Python's standard library."""
    text = torch.tensor(numbered_words(4096)).unfold(0, 32, 32)
    model = Layers(4096)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        batch = text[torch.randint(len(text), (16,))]
        hidden = torch.rand(batch.shape) < 0.15
        outputs = model(batch.masked_fill(hidden, 0))
        optimizer.zero_grad()
        cross_entropy(outputs[hidden], batch[hidden]).backward()
        optimizer.step()
    return model


def cnn(steps: int) -> nn.Module:
    """Trained to find a patch's part of a photograph."""
    import matplotlib.image
    from matplotlib import cbook

    with cbook.get_sample_data("grace_hopper.jpg") as file:
        picture = torch.tensor(matplotlib.image.imread(file, "jpg") / 255.0, dtype=torch.float32)
    parts = [nn.Conv2d(3, 64, 3, 2), nn.BatchNorm2d(64), nn.ReLU()]
    for inner, outer in ((64, 128), (128, 256)):
        parts += [nn.Conv2d(inner, outer, 3, 2), nn.BatchNorm2d(outer), nn.ReLU()]
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(2304, 256), nn.ReLU(), nn.Linear(256, 16))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    places = [size - 32 for size in picture.shape[:2]]
    for _ in range(steps):
        corners = [torch.randint(place, (32,)) for place in places]
        batch = [picture[y : y + 32, x : x + 32].permute(2, 0, 1) for y, x in zip(*corners)]
        quarters = [corner * 4 // place for corner, place in zip(corners, places)]
        optimizer.zero_grad()
        cross_entropy(model(torch.stack(batch)), 4 * quarters[0] + quarters[1]).backward()
        optimizer.step()
    return model


def words(steps: int) -> nn.Module:
    """The language model of benchmarks/evaluation, with a full softmax."""
    task = Words(0, 2)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), task.rate)
    for step in range(steps):
        inputs, targets = task.batch(1, step)
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
    return model


def gradients() -> dict[str, torch.Tensor]:
    found = {"normal values": torch.randn(4_000_000)}
    for make in (words, bert, cnn):
        model = make(STEPS)
        found[make.__name__] = torch.cat(
            [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        )
    return found


def sizes() -> dict[str, Any]:
    sys.path.append(str(ROOT / "build" / "tests"))
    from _engine_tests import codec

    torch.manual_seed(1)
    results: dict[str, Any] = {"sizes": {}, "speeds": {}}
    for name, gradient in gradients().items():
        whole = gradient[: len(gradient) // BLOCK * BLOCK].view(-1, BLOCK)
        dense = whole[whole.any(1)].flatten()
        row = {}
        for dtype in DTYPES:
            given = dense.to(getattr(torch, dtype))
            bits = given.view(torch.int16).numpy() if dtype == "bfloat16" else given.numpy()
            row[dtype] = codec.measure_lossless(bits, BLOCK)[0] / bits.nbytes
            if name == "normal values":
                results["speeds"][dtype] = {
                    implementation: speed(codec, bits[: 1 << 18], implementation)
                    for implementation in codec.implementations()
                }
        results["sizes"][name] = row
        print(f"{name}: " + ", ".join(f"{d} {r:.3f}" for d, r in row.items()), flush=True)
    for dtype, speeds in results["speeds"].items():
        text = ", ".join(f"{name} {up:.1f} / {down:.1f}" for name, (up, down) in speeds.items())
        print(f"{dtype}, GB/s to encode / decode: {text}")
    return results


def speed(codec: Any, bits: np.ndarray, implementation: str) -> list[float]:
    """GB/s, both ways: the best of some runs, in the processor's cache."""
    runs = [codec.measure_lossless(bits, BLOCK, implementation)[1:] for _ in range(20)]
    return [bits.nbytes / min(run[way] for run in runs) / 1e9 for way in (0, 1)]


def rank(way: str, megabytes: float, output: str) -> None:
    """One rank of a job: sums, and what the result was."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    if way:
        import omnihvd.torch  # noqa: F401
    os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
    os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
    dist.init_process_group("gloo")
    me, answers = dist.get_rank(), {}
    for dtype in SUMMED:
        of = getattr(torch, dtype)
        generator = torch.Generator().manual_seed(me)
        original = torch.randn(int(megabytes * 1e6) // of.itemsize, generator=generator).to(of)
        samples = []
        for _ in range(RUNS + 2):
            tensor = original.clone()
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            slowest = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            samples.append(float(slowest))
        bits = tensor.view(torch.uint8).numpy().tobytes()
        answers[dtype] = {"samples": samples[2:], "sum": hash_of(bits)}
    if me == 0:
        Path(output).write_text(json.dumps(answers))
    dist.barrier()
    dist.destroy_process_group()


def hash_of(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def sums(args: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.bench.lab import Lab

    results: dict[str, Any] = {}
    with Lab(args.hosts, rate=args.rate) as lab, tempfile.TemporaryDirectory() as folder:
        meeting = {"MASTER_ADDR": lab.hosts[0].name, "MASTER_PORT": "29511"}
        for way in ("", "stream", "coded"):
            output = Path(folder) / f"answers{way}"
            settings = {"OMNIHVD_WAY": way, "OMNIHVD_DETERMINISTIC": "1"} if way else {}
            lab.mpirun(
                [sys.executable, __file__, "rank", way, str(args.megabytes), str(output)],
                env={
                    **meeting, **settings, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"],
                },
                timeout=args.timeout,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
            results[way or "gloo"] = json.loads(output.read_text())
            times = {d: statistics.median(a["samples"]) for d, a in results[way or "gloo"].items()}
            print(way or "gloo", {d: f"{1000 * t:.0f} ms" for d, t in times.items()}, flush=True)
    for dtype in SUMMED:
        assert results["stream"][dtype]["sum"] == results["coded"][dtype]["sum"], dtype
        gloo, coded = (
            statistics.median(results[way][dtype]["samples"]) for way in ("gloo", "coded")
        )
        print(f"{dtype}: {gloo / coded:.2f} times as fast as Gloo")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("sizes")
    command = commands.add_parser("sums")
    command.add_argument("--hosts", type=int, default=4)
    command.add_argument("--rate", default="1gbit", help="of each link, each way")
    command.add_argument("--megabytes", type=float, default=100)
    command.add_argument("--timeout", type=float, default=300, help="seconds, of each run")
    command = commands.add_parser("rank")
    command.add_argument("arguments", nargs=3)
    args = parser.parse_args()
    if args.command == "rank":
        way, megabytes, output = args.arguments
        rank(way, float(megabytes), output)
        return
    from benchmarks.bench.command import machine

    measured = sizes() if args.command == "sizes" else sums(args)
    asked = {k: v for k, v in vars(args).items() if k != "command"}
    name = "lossless.json" if args.command == "sizes" else "lossless_sums.json"
    (RESULTS / name).write_text(json.dumps({**machine(), **asked, **measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
