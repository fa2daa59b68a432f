"""The language model of the PyTorch examples: text, batches, layers, and a run's report.

An LSTM over the words of Python's own standard library (or a file), some 28,000 of them. A step
touches the few words of its batch, so that the gradients of the two embedding tables are dense
tensors in which more than 98% of the rows are zero. The softmax is sampled, with a new sample on
each rank and step (Jean et al., "On Using Very Large Target Vocabulary for Neural Machine
Translation", 2015, eq. 10).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the training's arguments, common to all libraries."""
    parser.add_argument("--text", type=Path, help="a file (default: the standard library's .py)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences a rank")
    parser.add_argument("--sequence", type=int, default=32, help="words a sequence")
    parser.add_argument("--width", type=int, default=256, help="of the embeddings and the LSTM")
    parser.add_argument("--samples", type=int, default=512, help="words drawn for the softmax")
    parser.add_argument("--learning-rate", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=10, help="steps")
    parser.add_argument("--json", type=Path, help="where rank 0 writes losses, times and bytes")


def load_text(path: Path | None) -> tuple[Tensor, int]:
    """The words of the text as numbers, the most frequent word 0, and how many words there are."""
    return load_texts([path] if path else [])


def load_texts(files: Sequence[Path]) -> tuple[Tensor, int]:
    """The same of several files; of none: of the standard library's."""
    files = files or sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    words = re.findall(r"\w+|[^\w\s]", text)
    vocabulary = {word: i for i, (word, _) in enumerate(Counter(words).most_common())}
    return torch.tensor([vocabulary[word] for word in words]), len(vocabulary)


def batches(words: Tensor, batch_size: int, sequence: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields inputs and targets, (sequence, batch_size) each, over and over."""
    columns = words[: len(words) // batch_size * batch_size].view(batch_size, -1).t().contiguous()
    if len(columns) <= sequence:
        raise SystemExit(
            f"the text is too short: {len(words)} words a rank, where one batch takes "
            f"{batch_size * (sequence + 1)}"
        )
    while True:
        for start in range(0, len(columns) - sequence, sequence):
            block = columns[start : start + sequence + 1]
            yield block[:-1], block[1:]


class SampledSoftmax(nn.Module):
    """Cross entropy over the target and a sample of the words, drawn log-uniformly by rank."""

    def __init__(self, words: int, width: int, samples: int, generator: torch.Generator) -> None:
        super().__init__()
        # Frequencies fall about as 1 / rank (Zipf): P(word <= k) = log(k + 2) / log(words + 1).
        numbers = torch.arange(1, words + 1, dtype=torch.float64)
        probability = torch.log1p(1 / numbers) / math.log(words + 1)
        self.weight = nn.Parameter(torch.empty(words, width).uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(probability.log().float())
        self.samples = samples
        self.generator = generator  # on the CPU: the same sample on any device
        # log of the probability to be among the samples, without repeats
        self.log_drawn: Tensor
        log_drawn = torch.log(-torch.expm1(samples * torch.log1p(-probability)))
        self.register_buffer("log_drawn", log_drawn.float())

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        """hidden: (n, width), target: (n,). Returns the mean loss."""
        words = len(self.bias)
        uniform = torch.rand(self.samples, generator=self.generator, dtype=torch.float64)
        drawn = torch.expm1(uniform * math.log(words + 1)).long().clamp_(max=words - 1)
        drawn = drawn.unique().to(hidden.device)
        # One look-up for both, so that each table's gradient is made once.
        rows = torch.cat([target, drawn])
        weight = functional.embedding(rows, self.weight)
        offset = self.bias[rows] - self.log_drawn[rows]
        n = len(target)
        true = (hidden * weight[:n]).sum(1) + offset[:n]
        other = torch.addmm(offset[n:], hidden, weight[n:].t())
        other = other.masked_fill(target[:, None] == drawn, -torch.inf)  # counted in true
        return (torch.logsumexp(torch.cat([true[:, None], other], 1), 1) - true).mean()


class LanguageModel(nn.Module):
    def __init__(self, words: int, width: int, softmax: SampledSoftmax) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width)
        self.softmax = softmax

    def forward(
        self, words: Tensor, target: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """words, target: (sequence, batch). Returns the mean loss and the LSTM's last state."""
        hidden, state = self.lstm(self.embedding(words), state)
        return self.softmax(hidden.flatten(0, 1), target.flatten()), state


def share_of(words: Tensor, rank: int, size: int) -> Tensor:
    """The part of the text that a rank trains on."""
    share = len(words) // size
    return words[rank * share : (rank + 1) * share]


def build(args: argparse.Namespace, vocabulary: int, rank: int) -> LanguageModel:
    """The same weights on all ranks, and a generator of samples for each."""
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed + 1 + rank)
    softmax = SampledSoftmax(vocabulary, args.width, args.samples, generator)
    return LanguageModel(vocabulary, args.width, softmax)


def gradient_bytes(model: nn.Module) -> int:
    """Gradient bytes of a rank and step, if the gradients are dense."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def clock(device: str) -> float:
    """Seconds, when all that was begun on the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def print_size(vocabulary: int, model: nn.Module) -> None:
    megabytes = gradient_bytes(model) / 1e6
    print(f"{vocabulary:,} words, {megabytes:.1f} MB of gradients a step", flush=True)


def print_progress(
    args: argparse.Namespace, step: int, loss: float, step_seconds: list[float]
) -> None:
    recent = step_seconds[-args.log_every :]
    seconds = sum(recent) / len(recent)
    print(f"step {step}/{args.steps}  loss {loss:.4f}  {seconds:.3f} s/step", flush=True)


def report_mean(args: argparse.Namespace, losses: list[float], stats: dict[str, Any]) -> None:
    """The mean over torch.distributed's ranks: rank 0 prints it, and writes it to args.json."""
    mean = torch.tensor(losses)
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    all_stats: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_stats, stats)
    if dist.get_rank() == 0:
        print(f"loss {mean[0]:.4f} to {mean[-1]:.4f} in {args.steps} steps", flush=True)
        if args.json:
            args.json.write_text(json.dumps({"losses": mean.tolist(), "stats": all_stats}))
