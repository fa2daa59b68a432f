"""On each rank: a first sum that cannot be, since one rank has no part in it.

Arguments: that rank, and why: `not imported`, `disabled`, `no shim` (omnihvd was built where there
was no MPI), or `dies` (when it is about to sum; then the third argument is a library:
its `die_at_sum` stands in for MPI_Allreduce). The others must be told soon, and at each later sum,
nobody's tensor may change, and the job must end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
other, why = rank == int(sys.argv[1]), sys.argv[2]
if other and why == "disabled":
    os.environ["OMNIHVD_ENABLE"] = "0"
if other and why == "no shim":
    from unittest import mock

    exists = Path.exists

    def has_no_shims(path: Path) -> bool:
        return not path.name.startswith("libomnihvd_") and exists(path)

    with mock.patch.object(Path, "exists", has_no_shims):
        import omnihvd
elif other and why == "dies":
    from omnihvd import _engine

    assert _engine.hook.install("/horovod/", "MPI_Allreduce", sys.argv[3], "die_at_sum")
elif not (other and why == "not imported"):
    import omnihvd  # noqa: F401

hvd.init()
x = torch.arange(1_000_000, dtype=torch.float32) % 100 + hvd.rank()
before = x.clone()


def watch() -> None:
    while True:
        time.sleep(0.5)
        if not torch.equal(x, before):
            print("somebody wrote into a tensor", flush=True)


threading.Thread(target=watch, daemon=True).start()
start = time.monotonic()
try:
    hvd.allreduce_(x, op=hvd.Sum, name="x")
except HorovodInternalError:
    seconds = time.monotonic() - start
    try:
        hvd.allreduce_(x, op=hvd.Sum, name="x")
    except HorovodInternalError:
        assert time.monotonic() - start < seconds + 5
        print(f"rank {rank} was told after {seconds:.1f} s", flush=True)
    raise  # as a script does that knows nothing of this: the job must end
raise SystemExit("summed as if nothing had happened")
