"""On each rank: a sum of ranks with other block sizes than rank 0's. The words: those ranks."""

from __future__ import annotations

import os
import sys

if os.environ["RANK"] in sys.argv[1:]:
    os.environ["OMNIHVD_BLOCK_SIZE"] = "32"

import numpy as np
from gpu_rank import *

COUNT = 100_003

use_device(RANK % 2)
stream, comm = Stream(), Communicator("all")
index = np.arange(COUNT)
x = Array(((index % 7 == 0) * (RANK + 1 + index % 5)).astype(np.float32))
assert comm.allreduce(stream, x, x, "float32") == SUCCESS
stream.wait()
expected = (index % 7 == 0) * (SIZE * (SIZE + 1) / 2 + SIZE * (index % 5))
np.testing.assert_array_equal(x.host, expected)
barrier("summed")
comm.destroy()
print("all well")
