"""Samples of a rank's gradients, in memory and as a file."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from omnihvd.intercept import horovod_library, torch_gloo
from omnihvd.launchers import process_rank
from omnihvd.report.density import Counts
from omnihvd.tools.whole_file import whole_file

PATTERN = "rank-*.npz"
PAGE, FIGURES = "report.html", "report.json"


class Unusable(ValueError):
    """There is no data for a report; the message says why, and what to do."""


@dataclass
class Gradient:
    """A parameter's gradient in one step. ready_s: seconds from the step's begin until it was
    ready."""

    counts: Counts
    ready_s: float


@dataclass
class Sample:
    """The sample of one step. gradients: by parameter, in the order of readiness. Seconds, less the
    cost of sampling: backward_s, from the step's begin to its last gradient; wait_s, from there
    until the optimizer had the sums (None: unknown); rest_s, the optimizer's."""

    step: int
    gradients: dict[str, Gradient] = field(default_factory=dict)
    backward_s: float = 0.0
    wait_s: float | None = None
    rest_s: float = 0.0

    def bytes(self) -> int:
        """The memory that it takes."""
        return sum(len(g.counts.groups) + len(g.counts.rows) for g in self.gradients.values())


@dataclass
class Job:
    """Facts about the job and this process."""

    rank: int = 0
    ranks: int = 1
    host: str = ""
    framework: str = ""  # torch or tensorflow
    library: str = "none"  # Horovod, DDP, or none
    fusion_bytes: int = 0  # of a fused buffer or bucket, at most
    copies: bool = False  # between gradients and buckets, each of them
    element_bytes: int = 4  # where `widths`, which older files lack, has no parameter
    widths: dict[str, int] = field(default_factory=dict)  # bytes of an element, by parameter
    steps: int = 0
    step_s: float = 0.0  # median of the steps without sampling
    cost_share: float = 0.0  # share of all time spent on sampling
    shapes: dict[str, list[int]] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)  # parameters of embeddings
    sparse: list[str] = field(default_factory=list)  # parameters with sparse tensors as gradients
    # Steps without sampling: number, and backward_s, wait_s, rest_s as in a Sample.
    timings: list[list[float]] = field(default_factory=list)


@dataclass
class Seen:
    job: Job
    samples: list[Sample]


def save(seen: Seen, folder: Path) -> Path:
    """Writes, or replaces, this rank's file. OSError that names it."""
    blobs: list[bytes] = []
    samples = []
    for sample in seen.samples:
        gradients = {}
        for name, gradient in sample.gradients.items():
            c = gradient.counts
            numbers = (c.elements, c.nonzero, c.n_rows, c.nonzero_rows)
            gradients[name] = [*numbers, len(c.groups), len(c.rows), gradient.ready_s]
            blobs += [c.groups, c.rows]
        samples.append({**vars(sample), "gradients": gradients})
    head = json.dumps({"job": vars(seen.job), "samples": samples}).encode()
    path = folder / f"rank-{seen.job.rank:04d}-of-{seen.job.ranks:04d}.npz"
    with whole_file(path) as file:
        blob = np.frombuffer(b"".join(blobs), np.uint8)
        np.savez(file, head=np.frombuffer(head, np.uint8), blob=blob)
    return path


def load(path: Path) -> Seen:
    """Reads a rank's file. Unusable if it is none."""
    try:
        with np.load(path) as file:
            head, blob = json.loads(bytes(file["head"])), bytes(file["blob"])
        samples, at = [], 0
        for stored in head["samples"]:
            gradients = {}
            for name, numbers in stored["gradients"].items():
                elements, nonzero, n_rows, nonzero_rows, n_groups, n_bits, ready = numbers
                groups, rows = blob[at : at + n_groups], blob[at + n_groups :][:n_bits]
                at += n_groups + n_bits
                counts = Counts(elements, nonzero, n_rows, nonzero_rows, groups, rows)
                gradients[name] = Gradient(counts, ready)
            samples.append(Sample(**{**stored, "gradients": gradients}))
        return Seen(Job(**head["job"]), samples)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as why:
        raise Unusable(f"{path} is no file of omnihvd's report: {why}") from why


def load_all(folders: list[Path]) -> list[Seen]:
    """Reads all ranks' files in the folders, in order. Unusable when there are none, or they belong
    to different jobs."""
    found: dict[int, Seen] = {}
    for folder in folders:
        for path in sorted(folder.glob(PATTERN)):
            seen = load(path)
            found[seen.job.rank] = seen
    if not found:
        where = " and ".join(map(str, folders))
        raise Unusable(
            f"no rank's samples are in {where}: run `python -m omnihvd --report {where} train.py`"
        )
    if len({seen.job.ranks for seen in found.values()}) > 1:
        raise Unusable("the files are of jobs with different numbers of ranks: use a new folder")
    return [found[rank] for rank in sorted(found)]


def remove_all(folder: Path) -> None:
    """Removes the files of an earlier job. OSError where that fails."""
    for path in [*folder.glob(PATTERN), folder / PAGE, folder / FIGURES]:
        with contextlib.suppress(FileNotFoundError):  # another rank was faster
            path.unlink()


def job_of_process(job: Job) -> None:
    """Fills in facts from Horovod, torch.distributed or the launcher."""
    job.host = socket.gethostname()
    job.rank = process_rank() or 0
    for horovod in horovod_library.initialized():
        job.rank, job.ranks, job.library = horovod.rank(), horovod.size(), "Horovod"
        job.fusion_bytes = int(os.environ.get("HOROVOD_FUSION_THRESHOLD") or 128 << 20)
    c10d = sys.modules.get(torch_gloo.MODULE)
    if job.library == "none" and c10d and c10d.is_initialized():
        job.rank, job.ranks, job.library = c10d.get_rank(), c10d.get_world_size(), "DDP"
