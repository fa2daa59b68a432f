"""Several process groups at once. Ranks may begin their first sums in any order."""

from __future__ import annotations

import re

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


@pytest.mark.parametrize("way", ["auto", "stream"])
def test_a_callback_may_wait_for_another_sum(way: str) -> None:
    for ended in run("callbacks.py", 2, env={"OMNIHVD_WAY": way}):
        assert "all well" in ended.output


@pytest.mark.parametrize("way", ["stream", "shared", "original"])
def test_time_outs_may_be_set_later(way: str) -> None:
    first, _ = run("timeouts.py", 2, env={"OMNIHVD_WAY": way})
    told = re.findall(r"^(of_\w+) (\d+)\.\d s: (.*)$", first.output, re.M)
    assert [late for late, *_ in told] == ["of_c10d", "of_group", "of_sum", "of_c10d"], first.output
    assert all(2 <= int(seconds) < 15 for _, seconds, _ in told), first.output
    named = told if way != "original" else told[-1:]  # Gloo names nobody
    assert all("rank 1" in why for *_, why in named), first.output


def test_groups_end_that_ddp_outlives() -> None:
    """Gloo's threads need Python's lock to end."""
    for ended in run("ends.py", 2, 12, env=AUTO, timeout=40):
        assert "all well" in ended.output


def test_groups_from_before_the_import_stay_gloos_which_rank_0_says() -> None:
    ended = run("imported_late.py", 2)
    assert all("all well" in one.output for one in ended)
    said = [one.output.count("imported after init_process_group()") for one in ended]
    assert said == [1, 0], ended


def test_a_setting_goes_before_shorter_time_outs() -> None:
    first, _ = run("timeouts.py", 2, env={"OMNIHVD_WAY": "stream", "OMNIHVD_TIMEOUT": "4"})
    told = re.findall(r"^of_\w+ (\d+\.\d) s: (.*)$", first.output, re.M)
    assert len(told) == 4, first.output
    assert all(4 <= float(seconds) < 15 and "rank 1" in why for seconds, why in told), told
