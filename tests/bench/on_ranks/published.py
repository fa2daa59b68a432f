"""Each rank: sums by SparCML's algorithms and by Parallax, of tensors of many shapes."""

import itertools
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))
from benchmarks.bench import published
from omnihvd.bench.patterns import BLOCK, Point, is_total, part

COUNTS = (1, 7, 60 * BLOCK + 3)
DENSITIES = (0.0, 0.1, 1.0)
PATTERNS = ("random", "elements")
BACKENDS = (
    published.SparCml,
    published.SparCmlOfRows,
    published.SparCmlOfDense,
    published.Parallax,
)

os.environ[published.ALGORITHM] = "sparse"
peers = [kind() for kind in BACKENDS]
world = peers[0].mpi.COMM_WORLD


def check(peer: published.SparCml, point: Point) -> None:
    x = part(point, world.rank, world.size)
    peer.prepare(x, point)
    for _ in range(2):  # a sum leaves nothing behind for the next
        peer.restore()
        peer.reduce()
        assert is_total(peer.result(), point, world.size), (peer.algorithm, peer.parts, point)


for peer, pattern, count, density in itertools.product(peers, PATTERNS, COUNTS, DENSITIES):
    for peer.algorithm, peer.parts in (("sparse", 1), ("sparse", 3), ("dense", 1), ("dense", 2)):
        check(peer, Point(count, density, pattern))
    peer.algorithm = published.RING if isinstance(peer, published.Parallax) else "recursive"
    check(peer, Point(count, density, pattern))

# Bytes: lists for a tenth that all ranks have; for the whole, those of a ring.
count, size = 1000 * BLOCK, world.size
for peer, (density, numbers) in itertools.product(peers, ((0.1, True), (1.0, False))):
    peer.algorithm, peer.parts, peer.sent = "sparse", 1, 0
    check(peer, Point(count, density, "identical"))
    width = 1 if peer is peers[0] else BLOCK
    whole = world.allreduce(peer.sent) / 2
    assert whole == 2 * (size - 1) * density * count * 4 * (1 + numbers / width), (peer, whole)

for peer in peers:
    peer._free()
peers[0].mpi.Finalize()
