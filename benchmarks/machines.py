"""The rates of hosts that share one machine's cores, for the report's predictions of such hosts."""

from __future__ import annotations

from omnihvd.report.costs import Machine, ring


def measured_machine(
    latency: float, zeros: float, ones: float, copied: float, size: float, ranks: int, looks: bool
) -> Machine:
    """The hosts are all busy at once, and no core is spare. The arguments are seconds on unshaped
    links: latency, of a small sum; zeros and ones, of sums of `size` bytes, all zero and all
    non-zero; copied, of a copy. looks: whether sums search for zeros."""
    scan = size / max(zeros - latency, 1e-6) if looks else Machine(0).scan
    moved = 2 * ring(size, ranks)  # sent and received, of a dense tensor in either way
    move = moved / max(ones - latency - (size / scan if looks else 0), 1e-6)
    return Machine(0, scan, move, latency, copy=size / copied, spare_cores=False)
