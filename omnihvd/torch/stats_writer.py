"""omnihvd's figures in TensorBoard, step by step."""

from __future__ import annotations

from typing import Any

from omnihvd.intercept.optimizer_steps import Nesting
from omnihvd.statistics import SHARES, Statistics, compression_figures, passed_bytes, taken_bytes

OF_ONE_STEP = (
    *("gradient_bytes", "bytes_sent", "sum_seconds"),
    *("compression_delay", "compression_exposed"),
)


class StatsWriter:
    """Writes omnihvd's figures to TensorBoard after every `every` steps.

    writer: a torch.utils.tensorboard.SummaryWriter, or another object with add_scalar(name, value,
    step). Names begin with "omnihvd/". density, union_density, sent_of_ring and passed_share are as
    in omnihvd.stats(), and left out where there was nothing to share. gradient_bytes, bytes_sent
    and sum_seconds are means for one step. A compressor with a certificate adds compression_cosine
    and compression_error; under delay control compression_ratio, compression_bandwidth (bytes/s)
    and, for one step, compression_delay (seconds of sums) and compression_exposed (seconds in which
    training waited for them).

    optimizer: a torch.optim.Optimizer, Horovod's or any other; its steps are counted. Without one,
    call step() yourself, as Lightning's callbacks do."""

    def __init__(self, writer: Any, optimizer: Any = None, every: int = 10) -> None:
        self._writer, self._every = writer, max(1, every)
        self._step = self._written = 0
        self._figures = Statistics()
        self._nesting = Nesting()
        self._handles: list[Any] = []
        if optimizer is not None:
            self._handles = [
                optimizer.register_step_pre_hook(self._on_before),
                optimizer.register_step_post_hook(self._on_after),
            ]

    def _on_before(self, *_: Any) -> None:
        self._nesting.begin()

    def _on_after(self, *_: Any) -> None:
        if self._nesting.end() == 0:
            self.step()

    def step(self, step: int | None = None) -> None:
        """Counts the end of a step. step: its number, if it is not the next one."""
        self._step = self._step + 1 if step is None else step
        steps = self._step - self._written
        if steps < self._every:
            return
        self._written = self._step
        figures = self._figures.read(reset=True)
        values = {name: figures[name] for name in SHARES} | compression_figures(figures)
        values["gradient_bytes"] = taken_bytes(figures) + passed_bytes(figures)
        values["bytes_sent"] = figures["bytes_sent"] + figures["library_bytes"]
        values["sum_seconds"] = figures["seconds"]
        for name, value in values.items():
            if value is not None:
                value = value / steps if name in OF_ONE_STEP else value
                self._writer.add_scalar(f"omnihvd/{name}", value, self._step)

    def close(self) -> None:
        """Stops counting the optimizer's steps; the writer stays open."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
