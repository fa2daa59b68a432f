"""Tensors beyond 4 GiB: offsets and counts have 64 bits everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from groups import all_well, in_threads

COUNT = (1 << 30) + (1 << 28) + 3  # 5 GiB of float32
# Around what overflows 31 and 32 bits of bytes and elements, and the last element.
PLACES = [0, (1 << 29) - 1, 1 << 29, (1 << 30) - 1, 1 << 30, COUNT - 1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_more_than_4_gib() -> None:
    def work(rank: int, group: Any) -> None:
        x = np.zeros(COUNT, np.float32)  # pages that nobody writes take no memory
        for i, place in enumerate(PLACES):
            x[place] = 10 * i + rank + 1
        group.allreduce(x, x)
        for i, place in enumerate(PLACES):
            assert x[place] == 2 * 10 * i + 3
        assert np.count_nonzero(x) == len(PLACES)

    all_well(in_threads(2, work, timeout_s=200))
