"""Each call of CUDA and NCCL that a sum on the union of the blocks consists of, fails once."""

from __future__ import annotations

import re

import pytest
from nccl_job import run
from processes import Ended

UNION = {"OMNIHVD_GPU": "union", "OMNIHVD_GPU_CHUNK_BYTES": "65536"}


@pytest.mark.parametrize(("who", "which"), [("one", "first"), ("all", "first"), ("one", "later")])
def test_no_hang_and_no_wrong_sum(doubles, who, which):
    check(run(doubles, "failing_calls.py", 2, who, which, env=UNION))


@pytest.mark.parametrize("which", ["first", "later"])
def test_no_hang_and_no_wrong_sum_on_two_levels(doubles, which):
    env = {**UNION, "OMNIHVD_HIERARCHY": "on"}
    check(run(doubles, "failing_calls.py", 4, "one", which, ranks_per_host=2, env=env))


def check(ranks: list[Ended]) -> None:
    for rank in ranks:
        assert "all well" in rank.output, rank.output
    said = ranks[1].output
    failed = re.findall(r"^\d+: (\w.*): an error$", said, re.MULTILINE)
    assert len(failed) > 10, said
    # The failed call is named; at times a peer's failure, too.
    assert said.count("ncclAllReduce failed: ") >= len(failed), said
