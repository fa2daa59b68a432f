"""The statistics of this process: omnihvd.stats(), and figures of an interval.

`omnihvd stats` on the command line explains each name.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from typing import Any

from omnihvd import engine
from omnihvd.compression import counters
from omnihvd.compression.certificate import Products
from omnihvd.tools import terminal

CONTROL = "control"  # the reason of calls that sum no tensor
SHARES = ("density", "union_density", "sent_of_ring", "passed_share")
Figures = dict[str, Any]
ENTRY = r"^(\w+)[;,]?(?: {2,}|\n {18})(.*(?:\n {18}.*)*)"  # a name in the documentation of stats()


def stats(reset: bool = False) -> Figures:
    """omnihvd's figures in this process, since its start or the last `stats(reset=True)`.

    Sums by omnihvd. "Here" is this rank; 1 MB is 10^6 bytes. A share is from 0 to 1, and None where
    there was nothing to share.

    sent_of_ring      (bytes_sent + library_bytes) / ring_bytes: 0.1 is a tenth of the bytes that a
                      ring allreduce sends
    density           share of the blocks that were not zero here: what has to be sent
    union_density     share of the blocks that were not zero on any rank: what has to come back
    passed_share      share of the bytes in fallbacks to the original library: `passed` has the
                      reasons
    ring_bytes        2 (N-1)/N S: bytes that each of N ranks sends in a ring allreduce of S bytes;
                      half of that for a reduce-scatter. Where a host has several ranks, between
                      hosts only, as in the next two
    bytes_sent        bytes to other processes, as contributions and as sums, headers included;
    bytes_received    and from them, in messages_sent messages, of frames_sent frames; a frame is
                      for one slot of an aggregator in one round
    between_hosts_bytes
                      bytes that the fullest rank would have sent for sums over shared memory, if
                      each rank had a host of its own
    bytes_copied      bytes copied for these sums, into and out of messages, and in shared memory;
                      copies by the kernel do not count
    library_bytes     bytes that a ring sends for the original library's part of sums: unions of
                      blocks, or whole tensors
    ways              whole calls, by the algorithm of each sum: {way: {"calls", "bytes",
                      "seconds"}}. stream: non-zero blocks through aggregators; shared: the same in
                      one host's shared memory, with nothing sent; union: the blocks that are
                      non-zero on any rank, by the original library; original: the unchanged call;
                      coded: as stream, with packed exponents; inline: through an in-network
                      aggregator; plugin: by the algorithm of OMNIHVD_PLUGIN
    sparse            gradients that are sparse tensors: {"gradients": how many, "own_bytes": rows
                      here, each once, "gathered_bytes": rows of all ranks with their numbers, as
                      Horovod's allgather would receive them, "union_bytes": rows of any rank, which
                      were summed instead, "dense_bytes": all rows}. Lists of rows
                      (torch.distributed): "gathered_bytes" takes all ranks to have as many

    codecs            blocks sent under a codec (OmniReduce.natural() and others), or not sent only
                      because of shared memory, once for each receiver: {"blocks"; of them
                      "packed_blocks", which were smaller without the codec, and "plain_blocks",
                      which it could not encode (NaN, infinity); "bytes" as sent, "plain_bytes" as
                      float32}

    Sparse gradients count in sent_of_ring, ring_bytes, density and union_density with all their
    rows; rows that no rank has are zero blocks.

    Fallbacks to the original library.

    passed            {reason: {"calls", "bytes"}}. small: under OMNIHVD_MIN_BYTES; op and dtype: no
                      sum, or a type that omnihvd does not add; rows: sparse gradients with few rows
                      that ranks share: Horovod gathers them, duplicates merged; one rank, empty,
                      disabled (by OMNIHVD_ENABLE), device memory, captured (in a CUDA graph) and
                      others: as named. control: no tensors; Horovod's ranks agree on the
                      next reductions; not in passed_share

    All sums by omnihvd; where a host has several ranks, this rank's part of the streamed ones.

    calls             sums; `failures` of them ended in an error
    reduce_scatters   the reduce-scatters among the whole calls that `ways` counts
    bytes_in          bytes of their tensors
    blocks            blocks of their tensors, of OMNIHVD_BLOCK_SIZE elements; `nonzero_blocks` of
                      them were not zero here, `result_blocks` not zero on any rank (not counted
                      where the original library summed without a scan)
    seconds           from call to result, added up over all sums; sums may overlap
    messages_refused  messages from strangers, of other versions, or malformed
    datagrams         under OMNIHVD_TRANSPORT=udp or OMNIHVD_INLINE: {"sent", of them "again"
                      because the network lost them or seemed to; "received", of them "repeated",
                      which had come before (not counted with OMNIHVD_INLINE); "refused": short,
                      long, forged, old, or from strangers}
    naps              times that waiting threads of Horovod and Open MPI slept instead of polling;
    nap_seconds       the time for which they freed their cores, added up over threads
    compression       figures of lossy compressors: see omnihvd.compression.stats()
    """
    return _since_start.read(reset)


def log_dict(prefix: str = "omnihvd/") -> dict[str, float]:
    """The figures of stats() since the last log_dict(), flat, for loggers of experiments:
    {"omnihvd/sent_of_ring": 0.06, "omnihvd/ways/stream/calls": 12, ...}. Figures without a value
    are left out."""
    return dict(_flat(prefix, _since_logged.read(reset=True)))


def _flat(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for part, inside in value.items():
            yield from _flat(name + part + "/" * isinstance(inside, dict), inside)
    elif value is not None:
        yield name, value


def meanings() -> dict[str, str]:
    """One line on each name in stats(), from its docstring."""
    found = re.findall(ENTRY, inspect.getdoc(stats) or "", re.M)
    return {name: " ".join(text.split()) for name, text in found}


def explained(columns: int) -> str:
    """The docstring of stats(), wrapped to `columns`."""
    parts: list[str] = []
    at, doc = 0, inspect.getdoc(stats) or ""
    for entry in re.finditer(ENTRY, doc, re.M):
        parts += _paragraphs(doc[at : entry.start()], columns)
        name, indent = entry[1], " " * 18
        if len(name) >= len(indent):
            parts.append(name)
        first = f"{name:<18}" if len(name) < len(indent) else indent
        parts.append(terminal.fill(" ".join(entry[2].split()), columns, first, indent))
        at = entry.end() + 1
    return "\n".join([*parts, *_paragraphs(doc[at:], columns)])


def _paragraphs(between: str, columns: int) -> list[str]:
    """The text between two entries, and the empty lines around it."""
    texts = [" ".join(part.split()) for part in between.split("\n\n")]
    return "\n\n".join(terminal.fill(text, columns) for text in texts).split("\n")[:-1]


class Statistics:
    """The figures of stats() since this object was made or last reset (`since_start`: since the
    process began). Any number can exist side by side:

        step = omnihvd.Statistics()
        for batch in batches:
            train(batch)
            print(step.read(reset=True)["sent_of_ring"])
    """

    def __init__(self, since_start: bool = False) -> None:
        self._before = {} if since_start else _totals()

    def read(self, reset: bool = False) -> Figures:
        now, before = _totals(), self._before
        if reset:
            self._before = now
        return since(before, now)


def had_a_part(figures: Figures) -> bool:
    """Whether omnihvd made any sum, or a compressor or codec made a sum of its own."""
    intercepted = figures["calls"] + figures["sparse"]["gradients"]
    return bool(intercepted) or counters.has_own_sums()


def taken_bytes(figures: Figures) -> int:
    """The bytes of all tensors that omnihvd summed, sparse gradients with all their rows."""
    rows = figures["sparse"]
    whole = sum(way["bytes"] for way in figures["ways"].values())
    return int(whole + rows["dense_bytes"] - rows["union_bytes"])


def passed_bytes(figures: Figures) -> int:
    """The bytes of all tensors in fallbacks to the original library."""
    passed = figures["passed"].items()
    return sum(int(calls["bytes"]) for reason, calls in passed if reason != CONTROL)


def compression_figures(figures: Figures) -> Figures:
    """The figures of a compressor with a certificate or under delay control, by their names in
    logs; empty: none."""
    c, found = figures["compression"], {}
    if c["certified_steps"]:
        found = {"compression_cosine": c["cosine"], "compression_error": c["relative_error"]}
    if not c["controlled_steps"]:
        return found
    return {
        **found,
        "compression_ratio": c["ratio"],
        "compression_bandwidth": c["bandwidth"],
        "compression_delay": c["delay_seconds"],
        "compression_exposed": c["exposed_seconds"],
    }


def _totals() -> Figures:
    return {**engine.session.stats(), "compression": counters.stats()}


def since(before: Figures, now: Figures) -> Figures:
    """The difference between two of the engine's totals."""
    return _with_shares(_difference(now, before))


def _difference(now: Any, before: Any) -> Any:
    if isinstance(now, dict):
        return {name: _difference(now[name], before.get(name, {})) for name in now}
    return now - (before or 0)


def _with_shares(figures: Figures) -> Figures:
    """Adds the shares that follow from the totals, as the engine's own summary line does."""
    taken, passed = taken_bytes(figures), passed_bytes(figures)
    rows = figures["sparse"]
    summed = taken - (rows["dense_bytes"] - rows["union_bytes"])
    growth = taken / summed if summed else 1.0  # by the rows that no rank has
    ring, blocks = figures["ring_bytes"] * growth, figures["blocks"] * growth
    return {
        "sent_of_ring": _share(figures["bytes_sent"] + figures["library_bytes"], ring),
        "density": _share(figures["nonzero_blocks"], blocks),
        "union_density": _share(figures["result_blocks"], blocks),
        "passed_share": _share(passed, taken + passed),
        **figures,
        "seconds": sum(way.get("seconds", 0.0) for way in figures["ways"].values()),
        "ring_bytes": round(ring),
        "compression": _with_means(figures.get("compression", {})),
    }


def _with_means(compression: Figures) -> Figures:
    """Adds the means over steps under delay control, and over those with a certificate."""
    part = compression.get
    names = ("certified_true", "certified_received", "certified_both")
    seen = Products(*(part(name, 0) for name in names))
    return {
        **compression,
        "ratio": _share(part("ratios", 0), part("controlled_steps", 0)),
        "bandwidth": _share(part("delay_bytes", 0), part("delay_seconds", 0)),
        "cosine": seen.cosine(),
        "relative_error": seen.relative_error(),
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


_since_start = Statistics(since_start=True)
_since_logged = Statistics(since_start=True)


def main(arguments: list[str]) -> int:
    """`omnihvd stats`: what the names in the statistics mean."""
    parser = argparse.ArgumentParser(prog="omnihvd stats", description=main.__doc__)
    parser.parse_args(arguments)
    print(explained(terminal.width() or terminal.USUAL))
    return 0
