"""Samples PyTorch's gradients before anybody sums them.

In sampled steps each parameter has a hook that runs when its gradient is ready. It runs before the
hooks of Horovod and DDP, which are on the graph's node behind it. In all other steps only the
parameter with the last gradient has a hook, to tell when computing ends.
"""

from __future__ import annotations

import gc
import time
from types import ModuleType
from typing import Any, Callable

from omnihvd.intercept.optimizer_steps import OptimizerSteps
from omnihvd.report.density import GROUP, Counts, count, count_rows, packed
from omnihvd.report.sampler import Sampler
from omnihvd.report.samples import Gradient


class Source:
    """guard(function) runs it, and ends the report at an exception instead of the training."""

    def __init__(
        self, torch: ModuleType, sampler: Sampler, guard: Callable[[Callable[[], None]], None]
    ) -> None:
        self._torch, self._sampler, self._guard = torch, sampler, guard
        self._names: dict[int, str] = {}
        self._known = 0  # optimizers with named parameters
        self._hooks: list[Any] = []
        self._last: Any = None  # parameter with the last gradient
        self._steps = OptimizerSteps(
            lambda: guard(self._on_before), lambda: guard(self._on_step_ended)
        )

    def close(self) -> None:
        self._steps.close()
        for handle in self._hooks:
            handle.remove()

    # --- the optimizer's step ---------------------------------------------------------------------

    def _on_before(self) -> None:
        timing = self._sampler.timing
        if timing.backward_s:  # the innermost call is the last, and has the sums
            timing.wait_s = self._sampler.seconds() - timing.backward_s

    def _on_step_ended(self) -> None:
        timing = self._sampler.timing
        timing.rest_s = self._sampler.seconds() - timing.backward_s - (timing.wait_s or 0)
        for handle in self._hooks:
            handle.remove()
        self._hooks = []
        self._sampler.step_ended()
        if self._sampler.wants():
            begin = time.perf_counter()
            self._look()
            self._sampler.spent_s += time.perf_counter() - begin
        elif self._last is not None:
            self._hook(self._last, self._computed, lambda grad: self._computed())

    # --- gradients --------------------------------------------------------------------------------

    def _look(self) -> None:
        for parameter in self._steps.parameters():
            if parameter.requires_grad:
                self._hook(
                    parameter, self._accumulated, lambda grad, p=parameter: self._ready(p, grad)
                )

    def _hook(self, parameter: Any, accumulated: Any, ready: Any) -> None:
        """Hooks a gradient. ready: for PyTorch before 2.1, gets this backward pass's alone."""
        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            self._hooks.append(parameter.register_post_accumulate_grad_hook(accumulated))
        else:
            self._hooks.append(parameter.register_hook(ready))

    def _computed(self, *_: Any) -> None:
        self._sampler.timing.backward_s = self._sampler.seconds()

    def _accumulated(self, parameter: Any) -> None:
        self._ready(parameter, parameter.grad)

    def _ready(self, parameter: Any, gradient: Any) -> None:
        self._guard(lambda: self._on_ready(parameter, gradient))

    def _on_ready(self, parameter: Any, gradient: Any) -> None:
        sample = self._sampler.wants()
        if sample is None or gradient is None:
            return
        ready = self._sampler.seconds()
        begin = time.perf_counter()
        name = self._name_of(parameter)
        with self._torch.no_grad():
            counts = self._count(gradient)
        # Accumulated over several backward passes, the last one counts, as it is summed.
        sample.gradients.pop(name, None)
        sample.gradients[name] = Gradient(counts, ready)
        sample.backward_s, self._last = ready, parameter
        job = self._sampler.job
        job.framework, job.widths[name] = "torch", gradient.element_size()
        if gradient.is_sparse and name not in job.sparse:
            job.sparse.append(name)
        self._sampler.spent_s += time.perf_counter() - begin

    def _count(self, gradient: Any) -> Counts:
        torch = self._torch
        if gradient.is_sparse:
            rows, width = gradient.shape[0], gradient.numel() // max(gradient.shape[0], 1)
            values = gradient._values().float().cpu().numpy()
            return count_rows(rows, width, gradient._indices()[0].cpu().numpy(), values)
        n_rows = gradient.shape[0] if gradient.dim() > 1 else 1
        if gradient.device.type == "cpu":
            flat = gradient.detach().contiguous()
            if flat.dtype == torch.bfloat16:  # NumPy has none
                return count(flat.view(torch.int16).bitwise_and(0x7FFF).numpy(), n_rows)
            return count(flat.numpy(), n_rows)
        return self._count_on_device(gradient, n_rows)

    def _count_on_device(self, gradient: Any, n_rows: int) -> Counts:
        torch = self._torch
        nonzero = gradient.reshape(-1) != 0
        rows = nonzero.view(n_rows, -1).any(1).cpu().numpy() if n_rows > 1 else []
        padded = torch.nn.functional.pad(nonzero, (0, -nonzero.numel() % GROUP))
        groups = padded.view(-1, GROUP).sum(1, dtype=torch.uint8).cpu().numpy()
        import numpy as np

        return packed(nonzero.numel(), groups, np.asarray(rows, bool))

    # --- parameters and their names ---------------------------------------------------------------

    def _name_of(self, parameter: Any) -> str:
        if self._known != len(self._steps.optimizers):
            self._names = self._find_names()
            self._known = len(self._steps.optimizers)
        return self._names.get(id(parameter)) or f"parameter {len(self._names)}"

    def _find_names(self) -> dict[int, str]:
        """Names from the outermost modules; a parameter in no module is named by its number."""
        module = self._torch.nn.Module
        modules = [o for o in gc.get_objects() if issubclass(type(o), module)]
        inner = {id(child) for m in modules for child in m.children()}
        names: dict[int, str] = {}
        embeddings = (self._torch.nn.Embedding, self._torch.nn.EmbeddingBag)
        tables = {id(m.weight) for m in modules if isinstance(m, embeddings)}
        parallel = self._torch.nn.parallel.DistributedDataParallel
        for root in (m for m in modules if id(m) not in inner):
            if isinstance(root, parallel):
                self._sampler.job.fusion_bytes = int(getattr(root, "bucket_bytes_cap", 25 << 20))
                self._sampler.job.copies = not root.gradient_as_bucket_view
                root = root.module
            for name, parameter in root.named_parameters():
                names.setdefault(id(parameter), name)
        parameters, taken = self._steps.parameters(), set()
        for number, parameter in enumerate(parameters):
            name = names.get(id(parameter)) or f"parameter {number}"
            while name in taken:  # of several models
                name += "'"
            taken.add(name)
            names[id(parameter)] = name
        self._sampler.job.tables = [names[id(p)] for p in parameters if id(p) in tables]
        self._sampler.job.shapes.update({names[id(p)]: list(map(int, p.shape)) for p in parameters})
        return names
