"""The steps of .ci/gpu, for a GPU that is lent for half an hour."""

from __future__ import annotations

import re
from pathlib import Path

SCRIPT = (Path(__file__).parents[2] / ".ci/gpu").read_text()


def test_what_matters_most_is_done_in_half_an_hour():
    limits = {name: int(s) for name, s in re.findall(r"\[([\w-]+)\]=(\d+)", SCRIPT)}
    order = re.search(r"^ORDER=\((.*?)\)", SCRIPT, re.M | re.S)[1].split()
    begins = [sum(limits[name] for name in order[:i]) for i in range(len(order) + 1)]
    assert begins[order.index("tests-union")] <= 300
    assert begins[order.index("tests-training") + 1] <= 1800
    assert max(limits.values()) < 480
    functions = re.findall(r"^([\w-]+)\(\) \{", SCRIPT, re.M)
    assert set(order) < set(limits) and set(limits) <= set(functions)
