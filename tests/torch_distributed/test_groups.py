"""Several process groups at once, whose first sums the ranks may begin in any order."""

from __future__ import annotations

import pytest
from jobs import run

ALL = {"OMNIHVD_MIN_BYTES": "0"}
AUTO = {"OMNIHVD_WAY": "auto"}


def check(how: str, ranks: int, groups: int, order: str, rounds: int, env: dict[str, str]) -> None:
    for ended in run("groups.py", ranks, how, groups, order, rounds, env=env, timeout=100):
        assert "all well" in ended.output


@pytest.mark.parametrize(
    ("how", "groups", "order", "env"),
    [
        ("async", 6, "another", AUTO),
        ("async", 2, "same", AUTO),
        ("threads", 3, "another", ALL),
        ("ddp", 2, "another", AUTO),
        ("hooks", 2, "another", AUTO),
    ],
)
def test_first_sums_in_any_order(how: str, groups: int, order: str, env: dict[str, str]) -> None:
    check(how, 2, groups, order, 2, env)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("env", [AUTO, {**AUTO, **ALL}], ids=["default", "all"])
@pytest.mark.parametrize("order", ["same", "another"])
@pytest.mark.parametrize(
    ("how", "ranks", "groups"),
    [
        *((how, 2, groups) for how in ("async", "threads") for groups in (2, 3, 6)),
        ("ddp", 4, 2),
        ("hooks", 4, 2),
    ],
)
def test_first_sums_in_any_order_often(
    how: str, ranks: int, groups: int, order: str, env: dict[str, str]
) -> None:
    check(how, ranks, groups, order, 10, env)
