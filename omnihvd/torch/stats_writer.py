"""omnihvd's figures in TensorBoard, step by step."""

from __future__ import annotations

from typing import Any

from omnihvd.statistics import Statistics, passed_bytes, taken_bytes

SHARES = ("density", "union_density", "sent_of_ring", "passed_share")


class StatsWriter:
    """Writes the figures of each `every` steps to a torch.utils.tensorboard.SummaryWriter, or what
    else has add_scalar(name, value, step). Under "omnihvd/": density, union_density, sent_of_ring
    and passed_share as in omnihvd.stats() (none where there was nothing to share), and, for one
    step, gradient_bytes, bytes_sent and sum_seconds. With a compressor under delay control also
    compression_ratio and compression_bandwidth (bytes/s) and, for one step, compression_delay and
    compression_exposed (seconds of sums, and for which training waited).

    optimizer: a torch.optim.Optimizer, Horovod's or any other, whose steps are counted; without
    one, call step() yourself, as Lightning's callbacks do."""

    def __init__(self, writer: Any, optimizer: Any = None, every: int = 10) -> None:
        self._writer, self._every = writer, max(1, every)
        self._step = self._written = 0
        self._figures = Statistics()
        self._depth = 0  # Horovod's optimizer steps inside its own step
        self._handles: list[Any] = []
        if optimizer is not None:
            self._handles = [
                optimizer.register_step_pre_hook(self._on_before),
                optimizer.register_step_post_hook(self._on_after),
            ]

    def _on_before(self, *_: Any) -> None:
        self._depth += 1

    def _on_after(self, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self.step()

    def step(self, step: int | None = None) -> None:
        """A step has ended; its number, if it is not the next one."""
        self._step = self._step + 1 if step is None else step
        steps = self._step - self._written
        if steps < self._every:
            return
        self._written = self._step
        figures = self._figures.read(reset=True)
        for name in SHARES:
            if figures[name] is not None:
                self._writer.add_scalar(f"omnihvd/{name}", figures[name], self._step)
        totals = {
            "gradient_bytes": taken_bytes(figures) + passed_bytes(figures),
            "bytes_sent": figures["bytes_sent"] + figures["library_bytes"],
            "sum_seconds": figures["seconds"],
        }
        compression = figures["compression"]
        if compression["controlled_steps"]:
            for name in ("ratio", "bandwidth"):
                if compression[name] is not None:
                    value = compression[name]
                    self._writer.add_scalar(f"omnihvd/compression_{name}", value, self._step)
            totals["compression_delay"] = compression["delay_seconds"]
            totals["compression_exposed"] = compression["exposed_seconds"]
        for name, value in totals.items():
            self._writer.add_scalar(f"omnihvd/{name}", value / steps, self._step)

    def close(self) -> None:
        """No longer counts the optimizer's steps; the writer stays open."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
