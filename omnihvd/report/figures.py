"""Derives figures from the ranks' samples: density, overlap between ranks, development over steps.

A `Measured` holds, for one parameter, the counts of all samples of all ranks. For any number of
ranks it answers how much the fullest rank would send, and how large the union is.
"""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np

from omnihvd.report import costs
from omnihvd.report.costs import Sizes
from omnihvd.report.density import (
    BLOCK_SIZES,
    GROUP,
    by_block,
    groups_of,
    rows_of,
    union_share,
    united_groups,
)
from omnihvd.report.samples import Sample, Seen

DEFAULT_BLOCK = 256
ENOUGH = 5  # steps, for a median
PARTS = 16  # a tensor in so many equal parts, to tell how evenly it is filled
DDP_BYTES, DDP_FIRST_BYTES = 25 << 20, 1 << 20  # of buckets
MOST_BYTES = 256 << 20  # of one parameter's counts that are examined together


@dataclass
class Measured:
    """The counts of one parameter. groups: (samples, groups) uint8; rows: (samples, rows) bool, or
    (samples, 0); steps, ranks: of each sample."""

    name: str
    shape: list[int]
    embedding: bool  # its gradients could be sparse tensors
    sparse: bool  # its gradients are
    element_bytes: int
    groups: Any
    rows: Any
    steps: Any
    ready_s: float
    world: int  # ranks of the job
    _masks: dict[int, Any] = field(default_factory=dict)

    @functools.cached_property
    def elements(self) -> int:
        return int(np.prod(self.shape)) if self.shape else 1

    @property
    def bytes(self) -> int:
        return self.elements * self.element_bytes

    @property
    def n_rows(self) -> int:
        return int(self.rows.shape[1])

    @property
    def row_bytes(self) -> float:
        return self.bytes / self.n_rows if self.n_rows else 0.0

    @property
    def is_table(self) -> bool:
        """Whether it is an embedding with mostly zero rows."""
        return self.embedding and self.n_rows > 1 and self.zero_rows > 0.5

    @functools.cached_property
    def element_density(self) -> float:
        return float(self.groups.sum(dtype=np.int64) / (len(self.groups) * max(self.elements, 1)))

    @functools.cached_property
    def zero_rows(self) -> float:
        return float(1 - self.rows.mean()) if self.n_rows else 0.0

    @functools.cached_property
    def steps_of_all(self) -> list[Any]:
        """Samples of the steps that all ranks have sampled, as arrays of their numbers."""
        if self.world < 2:
            return []
        found = [np.flatnonzero(self.steps == step) for step in np.unique(self.steps)]
        return [s for s in found if len(s) == self.world]

    def density(self, block_size: int) -> float:
        return float(self.mask(block_size).mean())

    def union(self, block_size: int, ranks: int) -> float:
        """The expected share of blocks that are not zero on any of `ranks` ranks."""
        return self._union_of(self.mask(block_size), ranks)

    def mask(self, block_size: int) -> Any:
        """(samples, blocks): which are not zero."""
        if block_size not in self._masks:
            self._masks[block_size] = by_block(self.groups, block_size) > 0
        return self._masks[block_size]

    def sizes(self, block_size: int, ranks: int) -> Sizes:
        """The sizes for this number of ranks, one a host."""
        b, element = block_size, self.element_bytes
        table = np.array([costs.packed_bytes(c, b, element) for c in range(b + 1)])
        blocks = by_block(self.groups, b)
        own = table[blocks].sum(1)
        union = self.union(b, ranks)
        n_blocks = blocks.shape[1]
        in_block = self._union_elements(ranks) / (union * n_blocks) if union else 0.0
        packed = costs.packed_bytes(min(in_block, b), b, element)
        whole = min(b * element, self.bytes)
        rows = self.rows.sum(1).mean() * self.row_bytes
        in_rows = self._union_of(self.rows, ranks) if self.n_rows else 0.0
        return Sizes(
            dense=self.bytes,
            fullest=min(float(own.mean()) * self.rank_skew, float(self.bytes)),
            union=min(union * n_blocks * packed, float(self.bytes)),
            union_blocks=min(union * n_blocks * whole, float(self.bytes)),
            blocks=n_blocks,
            rows=float(rows),
            union_rows=in_rows * self.bytes,
            row_bytes=self.row_bytes,
            element=element,
        )

    @functools.cached_property
    def rank_skew(self) -> float:
        """The fullest rank's share of non-zero groups over the mean of all, in the same step."""
        filled = (self.groups > 0).sum(1)
        ratios = [filled[s].max() / filled[s].mean() for s in self.steps_of_all if filled[s].any()]
        return float(np.mean(ratios)) if ratios else 1.0

    @functools.cached_property
    def part_skew(self) -> float:
        """The fullest of the tensor's 16 equal parts: its non-zero groups over the mean."""
        filled = (self.groups > 0).sum(0)
        if filled.size < PARTS or not filled.any():
            return 1.0
        parts = [part.sum() for part in np.array_split(filled, PARTS)]
        return float(max(parts) / np.mean(parts))

    def _union_of(self, mask: Any, ranks: int) -> float:
        if ranks == self.world and self.steps_of_all:
            return float(np.mean([mask[s].any(0).mean() for s in self.steps_of_all]))
        return union_share(mask.sum(0), mask.shape[0], ranks)

    def _union_elements(self, ranks: int) -> float:
        """Elements that are not zero on any of `ranks` ranks: groups, times their fill."""
        if ranks <= self.world and self.steps_of_all:
            several = self.steps_of_all[-1][:ranks]
        else:
            several = np.arange(min(ranks, len(self.groups)))
        united = united_groups(self.groups[several])
        in_union = united[united > 0]
        if in_union.size == 0:
            return 0.0
        full = min(1.0, float(in_union.mean()) / GROUP)
        full = 1 - (1 - full) ** (ranks / len(several))
        return self.union(GROUP, ranks) * united.size * GROUP * full


def measured(seen: list[Seen]) -> list[Measured]:
    """All parameters that had a gradient, in the order in which gradients become ready."""
    job = seen[0].job
    by_name: dict[str, list[tuple[int, Any]]] = {}
    for one in seen:
        for sample in one.samples:
            for name, gradient in sample.gradients.items():
                by_name.setdefault(name, []).append((sample.step, gradient))
    found = []
    for name, samples in by_name.items():
        sizes = [gradient.counts.elements for _, gradient in samples]
        elements = statistics.mode(sizes)  # TensorFlow may not know the number of rows at first
        samples = [s for s, size in zip(samples, sizes) if size == elements]
        most = max(2, MOST_BYTES // max(elements // 32, 1))
        samples = samples[:: -(-len(samples) // most)]
        found.append(
            Measured(
                name,
                job.shapes.get(name) or [elements],
                name in job.tables,
                any(name in one.job.sparse for one in seen),
                job.widths.get(name, job.element_bytes),
                np.stack([groups_of(g.counts) for _, g in samples]),
                np.stack([rows_of(g.counts) for _, g in samples]),
                np.array([step for step, _ in samples]),
                statistics.median(g.ready_s for _, g in samples),
                job.ranks,
            )
        )
    return sorted(found, key=lambda m: m.ready_s)


def ddp_buckets(parameters: list[Measured], most_bytes: int) -> list[list[Measured]]:
    """DDP's buckets after its first step. A bucket is full when it has reached `most_bytes`; if
    that is DDP's default, the first one is full at 1 MB."""
    buckets: list[list[Measured]] = [[]]
    limit = DDP_FIRST_BYTES if most_bytes == DDP_BYTES else most_bytes
    for parameter in parameters:
        if sum(p.bytes for p in buckets[-1]) >= limit:
            buckets.append([])
            limit = most_bytes
        buckets[-1].append(parameter)
    return buckets


def buffers(parameters: list[Measured], most_bytes: int, cycle_s: float) -> list[list[Measured]]:
    """Horovod's fused buffers: gradients that become ready within a cycle, in order, up to
    `most_bytes`. A larger gradient has a buffer of its own."""
    fused: list[list[Measured]] = []
    for parameter in parameters:
        last = fused[-1] if fused else []
        fits = sum(p.bytes for p in last) + parameter.bytes <= most_bytes
        if last and fits and parameter.ready_s - last[0].ready_s <= cycle_s:
            last.append(parameter)
        else:
            fused.append([parameter])
    return fused


def job_buffers(seen: list[Seen], parameters: list[Measured]) -> list[list[Measured]]:
    """The buffers that Horovod, by its defaults, or DDP would make."""
    job = seen[0].job
    if job.library == "DDP":
        return ddp_buckets(parameters, job.fusion_bytes or DDP_BYTES)
    return buffers(parameters, job.fusion_bytes or 128 << 20, 1e-3)


def copied_bytes(seen: list[Seen], buffers_: list[list[Measured]]) -> float:
    """Bytes that DDP copies once all gradients are ready: the last gradient into its bucket, and
    all buckets back. Horovod copies only fused gradients, which is little."""
    if not seen[0].job.copies:
        return 0.0
    return buffers_[-1][-1].bytes + sum(p.bytes for b in buffers_ for p in b)


@dataclass
class Timing:
    """The parts of a step, in seconds. backward: until the last gradient; wait: for sums, in the
    job as it ran; rest: the optimizer's; alone: a step with free sums."""

    step: float
    backward: float
    wait: float | None
    rest: float

    @property
    def alone(self) -> float:
        return self.backward + self.rest


def timing(seen: list[Seen]) -> Timing:
    """Medians over steps, if possible over steps without sampling. A sum begins when the last rank
    has its gradient: the others' wait for that rank counts as computing, not as summing."""
    step = statistics.median([one.job.step_s for one in seen])
    rows: dict[int, list[list[float]]] = {}
    for one in seen:
        for number, *seconds in one.job.timings:
            rows.setdefault(int(number), []).append(seconds)
    quiet = [ranks for ranks in rows.values() if len(ranks) == len(seen)]
    if len(quiet) >= ENOUGH:
        backward = statistics.median(max(b for b, _, _ in ranks) for ranks in quiet)
        rest = statistics.median(statistics.mean(r for _, _, r in ranks) for ranks in quiet)
        return _timing(seen, step, backward, rest)
    by_step: dict[int, list[Sample]] = {}
    for one in seen:
        for sample in one.samples:
            by_step.setdefault(sample.step, []).append(sample)
    complete = [samples for samples in by_step.values() if len(samples) == len(seen)]
    shares: list[tuple[float, float]] = []  # of a step: until the last gradient, the optimizer's
    for samples in complete or by_step.values():
        known = [(s, s.backward_s + s.wait_s + s.rest_s) for s in samples if s.wait_s is not None]
        if known:
            slowest = max(s.backward_s / all_ for s, all_ in known)
            rest = statistics.mean(s.rest_s / all_ for s, all_ in known)
            shares.append((slowest, min(rest, 1 - slowest)))
    if not shares:  # TensorFlow: the wait is invisible
        return Timing(step, step, None, 0.0)
    backward = step * statistics.median(share for share, _ in shares)
    rest = step * statistics.median(share for _, share in shares)
    return _timing(seen, step, backward, rest)


def _timing(seen: list[Seen], step: float, backward: float, rest: float) -> Timing:
    wait = max(step - backward - rest, 0.0)
    if seen[0].job.ranks == 1:  # there was no sum to wait for: the time went elsewhere
        return Timing(step, backward, 0.0, rest + wait)
    return Timing(step, backward, wait, rest)


def total(parameters: list[Measured], ranks: int) -> dict[str, Any]:
    """The density of all parameters together, on one rank and on any."""
    size = sum(p.bytes for p in parameters)

    def mean(value: Callable[[Measured], float]) -> float:
        return sum(value(p) * p.bytes for p in parameters) / size if size else 0.0

    density = {str(b): mean(lambda p, b=b: p.density(b)) for b in BLOCK_SIZES}  # type: ignore
    union = {str(b): mean(lambda p, b=b: p.union(b, ranks)) for b in BLOCK_SIZES}  # type: ignore
    own, of_any = density[str(DEFAULT_BLOCK)], union[str(DEFAULT_BLOCK)]
    return {
        "element_density": mean(lambda p: p.element_density),
        "density": density,
        "union": union,
        "union_over_mean": of_any / own if own else None,
    }


def summary_of(p: Measured, ranks: int) -> dict[str, Any]:
    """The report's figures of one parameter."""
    return {
        "name": p.name,
        "shape": p.shape,
        "bytes": p.bytes,
        "sparse_tensor": p.sparse,
        "samples": len(p.groups),
        **total([p], ranks),
        "zero_rows": p.zero_rows if p.n_rows else None,
        "rank_skew": p.rank_skew,
        "part_skew": p.part_skew,
        "ready_s": p.ready_s,
    }


def development(parameters: list[Measured]) -> list[dict[str, Any]]:
    """Density of the whole gradient in the sampled steps: the mean over the ranks."""
    steps = sorted({int(step) for p in parameters for step in p.steps})
    found = []
    for step in steps:
        nonzero = blocks = 0.0
        for p in parameters:
            chosen = p.steps == step
            if chosen.any():
                mask = p.mask(DEFAULT_BLOCK)
                nonzero += float(mask[chosen].mean()) * mask.shape[1]
                blocks += mask.shape[1]
        found.append({"step": step, "density": nonzero / blocks if blocks else 0.0})
    return found
