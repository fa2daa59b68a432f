"""Limits of time that two sides share, or a text tells: one table has them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from omnihvd import inline, patience
from omnihvd.engine import session

ROOT = Path(__file__).parents[2]
LIMITS = session.time_limits()


def test_names_and_values() -> None:
    assert len(LIMITS) == 11 and all(limit > 0 for limit in LIMITS.values())


def test_python_has_the_same_where_it_needs_no_engine() -> None:
    assert LIMITS["stop"] == patience.LONGEST_STEP_S
    given = inspect.signature(inline.Worker.__init__).parameters["patience_s"]
    assert given.default == LIMITS["aggregator"]


def test_the_setting_tells_them() -> None:
    text = next(text for name, *_, text in session.setting_docs() if name == "OMNIHVD_JOIN_TIMEOUT")
    told = [float(found) for found in re.findall(r"(\d+) s\b", text)]
    assert told == [LIMITS[name] for name in ("join_roll", "join_program", "join")]


@pytest.mark.parametrize(
    ("document", "text", "names"),
    [
        ("failure", r"MPI_Init, if .* \| (\d+) s \| (\d+) s \|", "join_warning join_roll"),
        ("failure", r"Horovod's first sum .* \| (\d+) s \| (\d+) s \|", "join_warning join_roll"),
        ("failure", r"another MPI pro.* \| (\d+) s \| (\d+) s \|", "join_warning join_program"),
        ("failure", r"are known to run .* Horovod (\d+) s, others (\d+) s", "join join_program"),
        ("failure", r"the making of .* \| (\d+) s \| (\d+) s \|", "join_warning join"),
        ("failure", r"check --job. \| none \| (\d+) s", "join_check"),
        ("in-network", r"A peer that does not answer for (\d+) s", "udp_first"),
        ("in-network", r"A peer on another host fails (\d+) s after", "udp_silence"),
        ("in-network", r"or after (\d+) s if its host vanished", "aggregator"),
        ("in-network", r"come end after (\d+) s of sums \(.patience_s.\)", "aggregator"),
        ("troubleshooting", r"first allreduce on a communicator within (\d+) s", "join_roll"),
        ("troubleshooting", r"within (\d+) s: it runs without omnihvd", "join"),
        ("troubleshooting", r"the rank after (\d+) s, an error after (\d+)", "join_warning join"),
        ("troubleshooting", r"waited (\d+) s for rank 2 of 8", "join"),
    ],
)  # fmt: skip
def test_documents_tell_them(document: str, text: str, names: str) -> None:
    found = re.search(text, (ROOT / "docs" / f"{document}.md").read_text())
    assert found, text
    assert [float(number) for number in found.groups()] == [LIMITS[n] for n in names.split()]


def test_no_text_of_the_engine_has_a_number_of_its_own() -> None:
    """Texts take them from the table."""
    for path in (ROOT / "omnihvd/csrc").rglob("*.cc"):
        if "nccl" not in path.parts:
            assert not re.search(r'"[^"\n]* \d+ s\b[^"\n]*"', path.read_text()), path
