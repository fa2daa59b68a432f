"""docs/failures-to-try.md: each command fails as the page shows."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest
from processes import run_beside

ROOT = Path(__file__).parents[2]
SHOWN = dict(
    re.findall(
        r"^    ([^\n]*examples/failures\.py \w+)\n\n```text\n(.*?)^```",
        (ROOT / "docs/failures-to-try.md").read_text(),
        re.M | re.S,
    )
)


# These parts depend on the process that notices first, and how.
VARYING = [
    (r", which has not begun it", ""),
    (r"(lost the connection to rank \d \(host\)): .*", r"\1"),
    (r"message from rank \d \(host\): ", ""),
    (r"(rank 0 \(host\) sums \d+ \w+), (rank 1 \(host\) sums \d+ \w+)$", r"\2, \1"),
]


def masked(text: str) -> str:
    text = text.replace(socket.gethostname(), "host")
    for pattern, instead in VARYING:
        text = re.sub(pattern, instead, text, flags=re.M)
    return text


@pytest.fixture(scope="module")
def outputs() -> dict[str, str]:
    """All commands', which run beside each other."""
    here = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    shell = [command.replace("python ", f"{sys.executable} ") for command in SHOWN]
    words = [["bash", "-ec", f"cd {ROOT}\n{command}"] for command in shell]
    ended = run_beside(words, [here] * len(words), timeout=100)
    return {command: masked(one.output) for command, one in zip(SHOWN, ended)}


def test_all_cases_are_on_the_page() -> None:
    script = (ROOT / "examples/failures.py").read_text()
    cases = set(re.findall(r'case == "(\w+)"', script))
    assert len(cases) == 5 and {command.split()[-1] for command in SHOWN} == cases


@pytest.mark.timeout(120)
@pytest.mark.parametrize("command", SHOWN, ids=lambda command: command.split()[-1])
def test_a_failure_says_what_the_page_shows(command: str, outputs: dict[str, str]) -> None:
    for line in masked(SHOWN[command]).splitlines():
        assert line in outputs[command].splitlines(), outputs[command]
