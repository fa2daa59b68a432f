"""Small sums, made in the caller's thread: of the ranks of a host, and between hosts."""

from __future__ import annotations

import re

import pytest
from jobs import run

AUTO = {"OMNIHVD_WAY": "auto"}
APART = {rank: {"OMNIHVD_HOST_ID": f"host {rank}"} for rank in range(4)}


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_sums(ranks: int) -> None:
    for ended in run("small_sums.py", ranks, "memory", env=AUTO):
        assert "all well" in ended.output


def test_smaller_ones_are_the_librarys_if_a_setting_says_so() -> None:
    for ended in run("small_sums.py", 2, "memory", env={**AUTO, "OMNIHVD_MIN_BYTES": "5000"}):
        assert "all well" in ended.output


@pytest.mark.parametrize("how", ["hosts", "full"])
def test_sums_without_memory(how: str) -> None:
    """Ranks of two hosts; and of one host, where one may write no such file: a full /dev/shm."""
    own = {1: {"OMNIHVD_HOST_ID": "another"}} if how == "hosts" else {}
    env = {**AUTO, "UCX_TLS": "tcp"}  # UCX, too, fails without memory
    for ended in run("small_sums.py", 2, how, env=env, own=own):
        assert "all well" in ended.output


@pytest.mark.parametrize(
    ("what", "env"), [("taken", {}), ("left", {"OMNIHVD_MIN_BYTES": str(256 << 10)})]
)
def test_between_hosts_the_backend_makes_only_the_first(what: str, env: dict[str, str]) -> None:
    for ended in run("few_small_sums.py", 3, what, env={**AUTO, **env}, own=APART):
        assert "all well" in ended.output


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_sums_between_hosts(ranks: int) -> None:
    env = {**AUTO, "OMNIHVD_MIN_BYTES": "1"}  # none is left to Gloo
    for ended in run("small_sums.py", ranks, "hosts", env=env, own=APART):
        assert "all well" in ended.output


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("dies", r"rank 2 \(.*\) has ended|lost the connection to rank 2"),
        ("count", "101 float32"),
        ("dtype", "100 int32"),
        ("large", "100000 float64"),
    ],
)
def test_a_rank_that_differs_is_named(how: str, said: str, apart: bool) -> None:
    env = {**AUTO, "OMNIHVD_MIN_BYTES": "1"}
    ended = run("small_failures.py", 3, how, env=env, own=APART if apart else {}, check=False)
    for rank, output in enumerate(each.output for each in ended):
        if how == "dies" and rank == 2:
            continue
        told = re.search(r"^told after (\S+) s: (.*)", output, re.M)
        assert told and float(told[1]) < 15, output
        # A rank in its first large sum connects over Gloo. Gloo tells it that the others end.
        if how != "large" or rank != 2:
            assert re.search(said, told[2]) and "rank 2" in told[2], output
        assert "later after" in output and "no error" not in output, output
