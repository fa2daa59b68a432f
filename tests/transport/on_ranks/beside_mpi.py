"""UCX and MPI in one process, started in either order: python beside_mpi.py ucx|mpi

Both patch libc's mmap and its like, to notice when memory goes away. So while each moves data,
large buffers come and go.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if sys.argv[1] == "mpi":
    from mpi4py import MPI
from ends import End, patterned

end = End("ucx-any")
if sys.argv[1] == "ucx":
    from mpi4py import MPI

world = MPI.COMM_WORLD
addresses = world.allgather(end.transport.address())
peer = end.transport.connect(addresses[1 - world.rank])
expected = [patterned(i * 9973, i) for i in range(40)]
for i, message in enumerate(expected):
    end.send(peer, np.frombuffer(message, np.uint8))
    elements = 200_000 + 10_000 * i  # over malloc's threshold: each is mapped and unmapped
    mine = np.full(elements, world.rank + i, np.float32)
    total = np.empty_like(mine)
    world.Allreduce(mine, total)
    assert (total == 2 * i + 1).all()
    end.progress()
end.wait_until(lambda: len(end.messages) == len(expected) and len(end.sent) == len(expected))
assert end.messages == expected
end.transport.disconnect(peer)
world.Barrier()
end.transport = None
world.Barrier()
print("well", flush=True)
