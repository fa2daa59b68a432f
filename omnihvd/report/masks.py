"""Masks: which groups of 32 consecutive elements of gradients have one that is not zero.

A file of masks is a NumPy archive (.npz) that says what a sum would carry, and nothing of values:

    names     str (tensors,): the parameters, in the order in which gradients become ready
    elements  int64 (tensors,): of each
    ranks     int32 (samples,): the rank of each sample
    steps     int32 (samples,): and its step; samples are in the order of steps, then of ranks
    bits      uint8 (samples, bytes): a bit for each group, the first in the highest bit of a byte
              (numpy.packbits); each tensor begins a new group, so its last may be shorter
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from omnihvd.report.density import GROUP, by_block, groups_of
from omnihvd.report.samples import Seen, Unusable
from omnihvd.tools.whole_file import whole_file


class Masks(NamedTuple):
    """The content of a file."""

    names: Any
    elements: Any
    ranks: Any
    steps: Any
    bits: Any

    @property
    def groups(self) -> int:
        """The groups of all tensors together."""
        return int((-(-self.elements // GROUP)).sum())

    def presence(self, samples: int, block_size: int) -> Any:
        """Bools (samples, blocks): which blocks of so many elements are not zero, if one buffer has
        all tensors. Beyond the file's samples the first ones follow again."""
        chosen = np.arange(samples) % len(self.bits)
        bits = np.unpackbits(self.bits[chosen], axis=1, count=self.groups)
        return by_block(bits, block_size) > 0


def save(path: Path, elements: Mapping[str, int], samples: Iterable[tuple[int, int, Any]]) -> None:
    """Writes a file. elements: of each tensor, in order; samples: step, rank, and the counts of
    each tensor's groups by its name (none: all zero). OSError that names the file."""
    rows = []
    for step, rank, counts in samples:
        groups = [
            counts[name] > 0 if name in counts else np.zeros(-(-size // GROUP), bool)
            for name, size in elements.items()
        ]
        rows.append((step, rank, np.packbits(np.concatenate(groups))))
    rows.sort(key=lambda row: row[:2])
    steps, ranks, bits = zip(*rows)
    with whole_file(path) as file:
        np.savez_compressed(
            file,
            names=np.array(list(elements)),
            elements=np.array(list(elements.values()), np.int64),
            ranks=np.array(ranks, np.int32),
            steps=np.array(steps, np.int32),
            bits=np.stack(bits),
        )


def export(seen: list[Seen], elements: Mapping[str, int], path: Path) -> None:
    """Writes the masks of all samples of a report. elements: as save() has them."""

    def counts_of(gradients: Any) -> dict[str, Any]:
        fit = {n: g.counts for n, g in gradients.items() if g.counts.elements == elements.get(n)}
        return {name: groups_of(counts) for name, counts in fit.items()}

    samples = [(s.step, one.job.rank, s.gradients) for one in seen for s in one.samples]
    save(path, elements, ((step, rank, counts_of(g)) for step, rank, g in samples))


def load(path: Path) -> Masks:
    """Unusable if it is no file of masks."""
    try:
        with np.load(path) as file:
            return Masks(*(file[name] for name in Masks._fields))
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as why:
        text = f"{path} is no file of masks (omnihvd report FOLDER --masks FILE): {why}"
        raise Unusable(text) from why
