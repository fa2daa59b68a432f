"""A word-level LSTM language model, trained by Horovod.

    horovodrun -np 4 python examples/pytorch_language_model.py --compression omnireduce

The text is that of Python's own standard library (or --text), some 28,000 words. A step touches the
few words of its batch, so that the gradients of the two embedding tables are dense tensors in which
more than 98% of the rows are zero. The softmax is sampled, with a new sample on each rank and step
(Jean et al., "On Using Very Large Target Vocabulary for Neural Machine Translation", 2015, eq. 10).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import Tensor, nn
from torch.nn import functional


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="a file (default: the standard library's .py)")
    parser.add_argument("--compression", choices=["none", "fp16", "omnireduce"], default="none")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences a rank")
    parser.add_argument("--sequence", type=int, default=32, help="words a sequence")
    parser.add_argument("--width", type=int, default=256, help="of the embeddings and the LSTM")
    parser.add_argument("--samples", type=int, default=512, help="words drawn for the softmax")
    parser.add_argument("--learning-rate", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--log-every", type=int, default=10, help="steps")
    parser.add_argument("--json", type=Path, help="where rank 0 writes losses, times and bytes")
    return parser.parse_args()


def load_text(path: Path | None) -> tuple[Tensor, int]:
    """The words of the text as numbers, the most frequent word 0, and how many words there are."""
    files = [path] if path else sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
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
        # log of the probability to be among the samples, of which repeats are dropped
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


def main() -> None:
    args = parse_arguments()
    if args.compression == "omnireduce":
        import omnihvd  # before hvd.init()

        compression = omnihvd.OmniReduce
    else:
        compression = getattr(hvd.Compression, args.compression)
    hvd.init()
    if args.device == "cuda":
        torch.cuda.set_device(hvd.local_rank())
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))
    torch.manual_seed(args.seed)

    words, vocabulary = load_text(args.text)
    share = len(words) // hvd.size()
    words = words[hvd.rank() * share : (hvd.rank() + 1) * share].to(args.device)
    data = batches(words, args.batch_size, args.sequence)

    generator = torch.Generator().manual_seed(args.seed + 1 + hvd.rank())
    softmax = SampledSoftmax(vocabulary, args.width, args.samples, generator)
    model = LanguageModel(vocabulary, args.width, softmax).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression
    )
    gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    if hvd.rank() == 0:
        print(
            f"{vocabulary:,} words, {gradient_bytes / 1e6:.1f} MB of gradients a step", flush=True
        )

    def clock() -> float:
        if args.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    state = None
    losses, step_seconds, wait_seconds = [], [], []
    for step in range(1, args.steps + 1):
        start = clock()
        optimizer.zero_grad()
        loss, state = model(*next(data), state)
        loss.backward()
        computed = clock()
        optimizer.synchronize()  # what is left of the allreduce; step() would do it too
        reduced = clock()
        with optimizer.skip_synchronize():
            optimizer.step()
        state = tuple(part.detach() for part in state)
        losses.append(loss.item())
        step_seconds.append(clock() - start)
        wait_seconds.append(reduced - computed)

        if step % args.log_every == 0 or step == args.steps:
            mean = hvd.allreduce(torch.tensor(losses[-1]), name="loss").item()
            if hvd.rank() == 0:
                recent = step_seconds[-args.log_every :]
                seconds = sum(recent) / len(recent)
                print(
                    f"step {step}/{args.steps}  loss {mean:.4f}  {seconds:.3f} s/step", flush=True
                )

    if args.json:
        report = {
            "ranks": hvd.size(),
            "compression": args.compression,
            "seed": args.seed,
            "gradient_bytes": gradient_bytes,  # a rank and step
            "losses": hvd.allreduce(torch.tensor(losses), name="losses").tolist(),  # mean of ranks
            "step_seconds": step_seconds,  # of rank 0, as the next one
            "wait_seconds": wait_seconds,  # for the allreduce, after the backward pass
        }
        if args.compression == "omnireduce":
            report["stats"] = hvd.allgather_object(omnihvd.stats())  # by rank
        if hvd.rank() == 0:
            args.json.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
