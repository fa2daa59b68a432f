"""On one rank: the benchmark of host functions runs."""

from __future__ import annotations

import sys

from gpu_rank import *

sys.path.insert(0, sys.argv[1])
from host_function import host_function_seconds

use_device()
assert 0 < host_function_seconds(Stream().handle.value, 20) < 1
print("all well")
