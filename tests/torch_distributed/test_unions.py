"""DDP's hook that sums unions of blocks by PyTorch's operators, here on the CPU."""

from __future__ import annotations

import pytest
from jobs import run


@pytest.mark.parametrize(
    ("what", "ranks", "env"),
    [
        ("sums", 1, {}),
        ("sums", 3, {}),
        ("sums", 2, {"OMNIHVD_ENABLE": "0"}),  # Gloo alone sums
        ("trains", 3, {"OMNIHVD_ENABLE": "0"}),
    ],
)
def test_averages(what: str, ranks: int, env: dict[str, str]) -> None:
    for ended in run("unions.py", ranks, what, env=env):
        assert "all well" in ended.output


def test_a_rank_that_dies_fails_the_backward_pass_of_the_others() -> None:
    ended = run("unions.py", 3, "dies", check=False, timeout=60)
    for rank in (0, 2):
        assert ended[rank].returncode != 0 and "Error" in ended[rank].output
