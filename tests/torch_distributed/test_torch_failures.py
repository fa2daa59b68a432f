"""Ranks that die, come late or have no omnihvd; bad settings."""

from __future__ import annotations

import re

import pytest
from jobs import run


@pytest.mark.parametrize(("how", "way", "ranks"), [("async", "stream", 3), ("hook", "original", 2)])
def test_a_killed_rank_is_an_error_on_the_others(how: str, way: str, ranks: int) -> None:
    first, killed, *last = run("dies.py", ranks, how, env={"OMNIHVD_WAY": way}, check=False)
    assert killed.returncode == -9
    for ended in (first, *last):
        assert ended.returncode == 0, ended.output
        seconds = float(re.findall(r"^seconds: (\S+)", ended.output, re.M)[0])
        assert seconds < 15 and "later:" in ended.output, ended.output
        assert "no error" not in ended.output
        if way == "stream":
            assert re.search(r"^\d.* s: .*rank 1", ended.output, re.M), ended.output


def test_a_late_rank_is_an_error_after_the_groups_timeout() -> None:
    first, _ = run("dies.py", 2, "late", check=False)

    def seconds(of: str) -> float:
        found = re.search(of, first.output, re.M)
        assert found, first.output
        return float(found[1])

    missing = "rank 1 of 2 did not come to the first"
    assert 2 <= seconds(rf"^cold after (\S+) s: .*{missing}") < 15
    assert seconds(rf"^cold later after (\S+) s: .*{missing}") < 2  # it does not wait again
    assert 4 <= seconds(r"^(\d\S*) s: .*waiting for rank 1") < 30


def test_a_group_that_gloo_failed_does_not_wait_for_the_dead_rank() -> None:
    env = {"OMNIHVD_MIN_BYTES": "4096", "OMNIHVD_WAY": "original"}
    first, killed, last = run("dies_early.py", 3, env=env, check=False)
    assert killed.returncode == -9
    said = "an earlier collective of this process group has failed in Gloo (.+): make another group"
    for ended in (first, last):
        assert re.search(r"^Gloo after \d s: ", ended.output, re.M), ended.output
        for who in ("omnihvd", "omnihvd again"):
            assert re.search(rf"^{who} after [0-7] s: .*{said}", ended.output, re.M), ended.output


@pytest.mark.parametrize(
    ("way", "hosts", "number", "elements"),
    [
        ("stream", "ab", "SIGINT", 200_000),
        ("shared", "aa", "SIGINT", 200_000),
        ("stream", "abc", "SIGUSR1", 200_000),
        ("shared", "aaa", "SIGUSR1", 2_000),
        pytest.param("stream", "aabb", "SIGINT", 200_000, marks=pytest.mark.slow),  # two levels
    ],
)
def test_a_signals_exception_ends_a_sum_that_waits(
    way: str, hosts: str, number: str, elements: int
) -> None:
    own = {rank: {"OMNIHVD_HOST_ID": host} for rank, host in enumerate(hosts)}
    env = {"OMNIHVD_WAY": way}
    first, *others = run("interrupted.py", len(hosts), number, elements, own=own, env=env)
    name = "KeyboardInterrupt" if number == "SIGINT" else "PreemptedError"
    seconds = re.findall(rf"^{name} after (\S+) s", first.output, re.M)
    assert seconds and float(seconds[0]) < 15, first.output
    for ended in others:
        assert re.search(r"^failed: .*rank 0 \(a.*interrupted in a sum", ended.output, re.M), (
            ended.output
        )


def test_a_rank_that_leaves_is_an_error_on_those_who_wait_for_it() -> None:
    """Its connections end with the group."""
    _, *others = run("leaves.py", 3)
    for ended in others:
        seconds = re.findall(r"^after (\S+) s: .*Connection closed", ended.output, re.M)
        assert seconds and float(seconds[0]) < 5, ended.output


@pytest.mark.parametrize("way", ["stream", "shared", "original"])
def test_a_group_goes_on_after_what_gloo_refuses(way: str) -> None:
    for ended in run("refused.py", 3, env={"OMNIHVD_WAY": way}):
        assert "refused: " in ended.output and "all well" in ended.output, ended.output


def test_a_rank_without_omnihvd_is_named() -> None:
    without = {1: {"OMNIHVD_ENABLE": "0"}}
    first, _ = run(
        "trains.py",
        2,
        under=True,
        own=without,
        env={"OMNIHVD_JOIN_TIMEOUT": "4"},
        check=False,
    )
    assert first.returncode == 1
    missing = "rank 1 of 2 did not come to the making of a process group within {} s: it runs "
    warning, error = (first.output.find(missing.format(s) + "without omnihvd") for s in (3, 4))
    assert 0 <= warning < error, first.output


def test_wrong_settings_of_one_rank_end_all() -> None:
    for ended in run("wrong.py", 2, check=False):
        assert ended.returncode == 1
        assert "rank 1" in ended.output and "OMNIHVD_SLOTS" in ended.output, ended.output


@pytest.mark.parametrize("way", ["stream", "shared"])
def test_a_forked_child_ends_without_ending_the_rank(way: str) -> None:
    assert all("all well" in ended.output for ended in run("forks.py", 2, env={"OMNIHVD_WAY": way}))


def test_a_rank_may_be_late_for_any_sum() -> None:
    """The limit for exchanges between ranks that are all in a sum does not count for its begin."""
    for ended in run("late.py", 2, env={"OMNIHVD_JOIN_TIMEOUT": "3"}):
        assert "all well" in ended.output
