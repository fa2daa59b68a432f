"""On each rank: Horovod's allreduce of all dtypes, densities, sizes, in place or not."""

from __future__ import annotations

import re
from pathlib import Path

import horovod.torch as hvd
import torch
from closed_form import BLOCK, part, total

import omnihvd
from omnihvd.engine import session

# All that Horovod sums for PyTorch.
DTYPES = [torch.float16, torch.float32, torch.float64, torch.int32, torch.int64]
SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1]
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
LARGE = 2_000_003  # several rounds in each slot


def check(count: int, density: float, dtype: torch.dtype, in_place: bool) -> None:
    x = part(hvd.rank(), count, density, dtype)
    before = x.clone()
    name = f"{dtype} {count} {density} {in_place}"
    y = (hvd.allreduce_ if in_place else hvd.allreduce)(x, op=hvd.Sum, name=name)
    expected = total(list(range(hvd.size())), count, density, dtype)
    assert torch.equal(y, expected), name
    assert torch.equal(x, expected if in_place else before), name
    # Over Gloo Horovod itself has written there first.
    news = y.nbytes > 4 << 20 and not in_place and hvd.size() > 1 and hvd.mpi_enabled()
    if news and HUGE_PAGES.exists():
        assert "hg" in flags_of_memory(y.data_ptr() + y.nbytes // 2), name


def flags_of_memory(address: int) -> list[str]:
    """The kernel's, of the mapping with this address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if mapping := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(mapping[1], 16) <= address < int(mapping[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("no such address")


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    cases = [(n, d, t) for t in DTYPES for n in SIZES for d in (0, 1)]
    cases += [(100_003, d, t) for t in DTYPES for d in (0, 0.01, 0.4, 1)]
    cases += [(LARGE, d, torch.float32) for d in (0, 0.01, 0.4, 1)]
    cases += [(LARGE, 0.01, torch.float16)]
    taken = 0
    for count, density, dtype in cases:
        for in_place in (False, True):
            check(count, density, dtype, in_place)
            taken += count > 0
    stats = omnihvd.stats()
    if hvd.size() == 1:
        assert stats["calls"] == 0, stats
    else:
        assert stats["calls"] == taken, (taken, stats)
        assert stats["failures"] == 0 and stats["messages_refused"] == 0, stats
        assert sum(way["calls"] for way in stats["ways"].values()) == taken, stats
        # The exchanges of Horovod's controllers are no sums that were left to MPI.
        if hvd.mpi_enabled():
            assert stats["passed"].pop("control")["calls"] > 0
        assert set(stats["passed"]) == {"empty"}, stats
        assert stats["passed_share"] == 0 and stats["sent_of_ring"] < 1
        sent = stats["ways"]["shared"]["calls"] < taken
        assert (stats["sent_of_ring"] > 0) == (stats["bytes_sent"] + stats["library_bytes"] > 0)
        assert (stats["sent_of_ring"] > 0) == sent
        line = session.summary("MPI")  # says the same
        assert line.startswith(f"sums taken: {taken}, of ")
        shared = stats["ways"]["shared"]["calls"]
        assert (f" {shared} over shared memory" in line) == (shared > 0), line
        assert ("would send " in line) == (shared > 0), line
        assert 0 < stats["seconds"] == sum(way["seconds"] for way in stats["ways"].values())
        moved = sum(stats[f"{name}_bytes"] for name in ("library", "between_hosts"))
        would = (moved + stats["bytes_sent"]) / stats["ring_bytes"]
        assert f"send {would:.1%} of a ring between hosts; " in line or not shared, line
        assert f"sent {stats['sent_of_ring']:.1%} of a ring; " in line or shared, line
        assert f" {stats['density']:.1%} here, {stats['union_density']:.1%} on any" in line, line
    print("all well", flush=True)


main()
