"""On each rank: a library named as PyTorch's calls NCCL; omnihvd is imported, nothing preloaded.
Its calls go through omnihvd, those of others do not."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from gpu_rank import *

import omnihvd
from omnihvd import engine
from omnihvd.intercept import nccl

torch = ctypes.CDLL(sys.argv[1])
torch.all_reduce.argtypes = [
    ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
    ctypes.c_void_p, ctypes.c_void_p,
]  # fmt: skip
assert nccl._hook_if_all_ask(engine.hook.loaded_libraries(nccl.TORCH), lambda answer: "")
assert nccl.is_hooked(sys.argv[1])

use_device()
stream, comm = Stream(), Communicator("all")
x = Array(np.ones(10_000, np.float32))
assert comm.allreduce(stream, x, x, "float32") == SUCCESS  # not from the hooked library
stream.wait()
assert (in_nccl(), omnihvd.stats()["calls"]) == (1, 0)
for number in (2, 3):
    done = torch.all_reduce(
        x.address, x.address, 10_000, TYPES["float32"], SUM, comm.handle, stream.handle
    )
    assert done == SUCCESS
    stream.wait()
    assert (x.host == SIZE**number).all()
assert omnihvd.stats()["calls"] == 2
comm.destroy()
print("all well")
