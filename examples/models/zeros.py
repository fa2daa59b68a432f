"""How many zeros gradients have: by elements, by blocks, and of the ranks' sum.

One process has the batches of all ranks, one after the other, and sums their gradients: so it
trains as they would, and no network is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import training
from registry import MODELS
from torch import Tensor, nn

from omnihvd.report import density
from omnihvd.report import masks as report_masks

BLOCK = 256  # elements, counted from a parameter's start


def shares(tensors: Iterable[Tensor]) -> tuple[float, float]:
    """The share of zero elements, and of zero blocks."""
    elements = nonzero = blocks = full = 0
    for tensor in tensors:
        flat = tensor.reshape(-1) != 0
        elements, nonzero = elements + flat.numel(), nonzero + int(flat.sum())
        padded = nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
        blocks, full = blocks + len(padded), full + int(padded.any(1).sum())
    return 1 - nonzero / max(elements, 1), 1 - full / max(blocks, 1)


def groups(gradient: Tensor) -> Any:
    """How many of each 32 elements are not zero."""
    return density.groups_of(density.count(gradient.contiguous().numpy()))


def _training(task: Any, model: nn.Module, steps: int) -> Callable[[], None]:
    """The optimizer's step after a backward pass. It needs the model's memory again, or twice."""
    optimizer = task.optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: task.rate(n / steps))

    def follow() -> None:
        optimizer.step()
        schedule.step()

    return follow


def measure(
    name: str,
    data: Path | None,
    size: str,
    ranks: int,
    steps: int,
    seed: int = 0,
    tell: Callable[[int], None] = lambda step: None,
    masks: Path | None = None,
) -> dict[str, Any]:
    """masks: a file for those of all gradients that are looked at (omnihvd/report/masks.py).

    Means over the second half of the steps (of less than 4 steps: all), and over the ranks.

    zeros, zero_blocks: of a rank's gradient; sum_zeros, sum_zero_blocks: of the ranks' sum;
    table_share, table_zeros: embeddings' share of all elements, and of zeros in them; rest_zeros:
    of zeros elsewhere."""
    tasks = [MODELS[name](data, size, rank, ranks) for rank in range(ranks)]
    model = training.drawn_model(tasks[0], seed)
    follow = _training(tasks[0], model, steps) if steps > 1 else lambda: None
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    tables |= {id(p) for n, p in model.named_parameters() if n.startswith("softmax.")}
    parameters = [p for p in model.parameters() if p.requires_grad]
    names = {n: p for n, p in reversed(list(model.named_parameters())) if p.requires_grad}
    seen: list[dict[str, float]] = []
    counted: list[tuple[int, int, dict[str, Any]]] = []
    for step in range(steps):
        look = steps < 4 or step >= steps // 2
        total: list[Tensor] = []
        for rank, task in enumerate(tasks):
            model.zero_grad()
            task.loss(model, task.batch(seed, step)).backward()
            own = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            if look and masks:
                counted.append(
                    (
                        step,
                        rank,
                        {n: groups(g) for n, p in names.items() if (g := p.grad) is not None},
                    )
                )
            if look:
                zeros, blocks = shares(own)
                in_tables = shares(p.grad for p in parameters if id(p) in tables)[0]
                elsewhere = shares(p.grad for p in parameters if id(p) not in tables)[0]
                seen.append({"zeros": zeros, "zero_blocks": blocks})
                seen[-1] |= {"table_zeros": in_tables, "rest_zeros": elsewhere}
            total = [a.add_(b) for a, b in zip(total, own)] if total else own
        if look:
            zeros, blocks = shares(total)
            seen.append({"sum_zeros": zeros, "sum_zero_blocks": blocks})
        for parameter, gradient in zip(parameters, total):
            parameter.grad = gradient.div_(ranks)
        follow()
        tell(step + 1)
    if masks:
        report_masks.save(masks, {n: p.numel() for n, p in names.items()}, counted)
    elements = sum(p.numel() for p in parameters)
    means = {"table_share": sum(p.numel() for p in parameters if id(p) in tables) / elements}
    for key in {key for entry in seen for key in entry}:
        values = [entry[key] for entry in seen if key in entry]
        means[key] = sum(values) / len(values)
    return {
        **{"model": name, "size": size, "ranks": ranks, "steps": steps},
        **{"batch_size": tasks[0].batch_size, "source": tasks[0].source},
        **{"bytes": 4 * elements, **means},
    }
