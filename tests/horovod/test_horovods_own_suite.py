"""Horovod's own tests end alike without omnihvd and with it.

They lie in Horovod's repository and in no package: HOROVOD_SOURCE names a checkout of the release
that is installed. docs/compatibility.md has the last run.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
from launch import launch

ON_RANKS = Path(__file__).parent / "on_ranks"
RANKS = 2
JOB_S = 900.0
# Tests of barriers measure 5 s from when a rank leaves a sum, which another has left before.
# TensorFlow's whole file takes longer than JOB_S on two busy cores: the sums that omnihvd makes.
CHOSEN = {
    "torch": ["-k", "not barrier_op"],
    "tensorflow": ["-k", "allreduce_cpu or reducescatter_cpu"],
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * JOB_S + 60)]


def run(file: Path, *options: str) -> tuple[dict[str, list[str]], int]:
    """Outcomes of each test, on one rank after the other, and the sums that omnihvd made."""
    words = ["python", "-m", "pytest", "-p", "outcomes", "-p", "no:cacheprovider", "--tb=short"]
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ON_RANKS)])
    folder = ["-wdir", str(file.parents[1])]  # Horovod's conftest.py lies there
    env = {"PYTHONPATH": path}
    command = [*words, "-q", *options, file]
    job = launch(command, RANKS, options=folder, env=env, timeout=JOB_S, check=False)
    said = [re.findall(r"^outcomes: (.*)$", output, re.MULTILINE) for output in job.ranks]
    assert [len(lines) for lines in said] == [1] * RANKS, job.output[-10_000:]
    ranks = [json.loads(line) for (line,) in said]
    names = ranks[0]["outcomes"]
    failed = sorted(name for name in names if names[name] == "failed")
    print(file.name, *options, Counter(names.values()), *failed, f"sums: {ranks[0]['calls']}")
    outcomes = {name: [rank["outcomes"].get(name) for rank in ranks] for name in names}
    return outcomes, ranks[0]["calls"]


@pytest.mark.parametrize("framework", [*CHOSEN])
def test_each_test_ends_as_without_omnihvd(framework: str) -> None:
    source = os.environ.get("HOROVOD_SOURCE")
    if not source:
        pytest.skip("needs a checkout of Horovod, which HOROVOD_SOURCE names")
    pytest.importorskip(f"horovod.{framework}", exc_type=ImportError)
    folder = Path(source).resolve()
    init = folder / "horovod" / "__init__.py"
    release = metadata.version("horovod").partition("+")[0]
    assert f"'{release}'" in init.read_text(), f"{init} is not of {release}, which is installed"
    file = folder / "test" / "parallel" / f"test_{framework}.py"
    plain, without = run(file, *CHOSEN[framework])
    mine, calls = run(file, *CHOSEN[framework], "-p", "omnihvd")
    assert without == 0 and calls > 10, "omnihvd summed in the first run, or not in the second"
    assert sum(outcomes == ["passed"] * RANKS for outcomes in plain.values()) > 10
    assert {
        name: (plain[name], mine.get(name)) for name in plain if mine.get(name) != plain[name]
    } == {}
    assert mine.keys() == plain.keys()
