"""The first sum on a communicator: bounded, clear and harmless where the ranks are not alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launch import Job
from preloaded import NEEDS, run

pytestmark = NEEDS
SOON = {"OMNIHVD_JOIN_TIMEOUT": "2"}


def failures(job: Job, ranks: set[int], begun: bool = False) -> list[str]:
    """The error that each of these ranks reports, once, though each of its calls fails. `begun`: so
    is the sum, so that their buffers may hold anything."""
    written = {int(rank) for rank in re.findall(r"wrote into the buffer of rank (\d)", job.output)}
    assert not written - (ranks if begun else set()), job.output
    told = []
    for rank in sorted(ranks):
        assert f"rank {rank} got the failure" in job.ranks[rank], job.output
        errors = re.findall("omnihvd error .*?MPI_Allreduce failed: (.*)", job.ranks[rank])
        assert len(errors) == 1, errors
        told.append(errors[0])
    return told


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_a_rank_without_the_shim_is_named_by_all_others(programs: Path, absent: int) -> None:
    env = {"OMNIHVD_JOIN_TIMEOUT": "4"} if absent == 1 else SOON  # a warning comes after 3 s
    job = run([programs / "meeting", "nothing", str(absent)], 3, env, without=[absent], check=False)
    warned = f"waiting for 3 s for rank {absent} to show that it runs omnihvd"
    assert (warned in job.output) == (absent == 1), job.output
    for told in failures(job, {0, 1, 2} - {absent}):
        assert told.startswith(f"rank {absent} runs without omnihvd, so that no rank can use it: ")
        assert "mpirun -x LD_PRELOAD" in told


@pytest.mark.parametrize("absent", [0, 2])
def test_the_others_may_use_a_communicator_of_their_own(programs: Path, absent: int) -> None:
    job = run([programs / "meeting", "apart", str(absent)], 3, SOON, without=[absent])
    for rank in {0, 1, 2} - {absent}:
        assert "sums taken: 1, of" in job.ranks[rank]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_before_the_first_sum_is_named(programs: Path, victim: int) -> None:
    options = ["--enable-recovery"]
    command = [programs / "meeting", "dies", str(victim)]
    job = run(command, 3, SOON, options=options, check=False, timeout=40)
    for told in failures(job, {0, 1, 2} - {victim}):
        assert re.search(rf"waited \d s for rank {victim} of 3 ", told)
        assert told.endswith("(OMNIHVD_JOIN_TIMEOUT allows more time)")


def test_a_rank_may_come_late(programs: Path) -> None:
    job = run([programs / "meeting", "late", "1"], 3, {"OMNIHVD_STALL_WARNING": "1"})
    warnings = re.findall("omnihvd warning .*", job.output)
    assert warnings and all("for rank 1 of 3 " in line for line in warnings)


def test_ranks_that_are_stopped_do_not_wait_meanwhile(programs: Path) -> None:
    run([programs / "meeting", "stopped", "1"], 3, {"OMNIHVD_JOIN_TIMEOUT": "4"})


@pytest.mark.parametrize("what", ["listens", "fortran"])
def test_receives_that_take_any_message_get_none_of_ours(programs: Path, what: str) -> None:
    run([programs / "meeting", what, "0"], 3)


SIZES = r": rank 2 \(\S+\) sums 50000 float32, rank 0 \(\S+\) sums 200000 float32"
SIZES_THERE = r": rank \d \(\S+\) sums \d+ float32, rank \d \(\S+\) sums \d+ float32"


@pytest.mark.parametrize("least", ["1", "300000"])
def test_first_sums_that_differ_are_named_with_both_sides(programs: Path, least: str) -> None:
    # Fewer elements may be fewer than are taken: that rank would leave them to MPI, and hang there.
    command = [programs / "meeting", "differs", "2"]
    job = run(command, 3, {"OMNIHVD_MIN_BYTES": least}, check=False)
    for told in failures(job, {0, 1, 2}):
        assert re.search(SIZES, told)


def test_later_sums_that_differ_are_named_with_both_sides(programs: Path) -> None:
    job = run([programs / "meeting", "differs", "2", "200000"], 3, check=False)
    for told in failures(job, {0, 1, 2}, begun=True):
        assert re.search(SIZES_THERE, told) and "rank 2" in told and "50000 float32" in told


@pytest.mark.parametrize(
    ("before", "told_of"),
    [
        ("100", "rank 2 of 3 .* in a call that is left to MPI"),
        ("200000", r"rank 2 \(\S+\), which is in an allreduce of 200000 bytes, left to MPI"),
    ],
    ids=["not connected", "connected"],
)
def test_a_rank_that_is_in_mpi_instead_is_named(programs: Path, before: str, told_of: str) -> None:
    env = {"OMNIHVD_MIN_BYTES": "300000", "OMNIHVD_TIMEOUT": "1"}
    job = run([programs / "meeting", "differs", "2", before], 3, env, check=False)
    for told in failures(job, {0, 1}, begun=before == "200000"):
        assert re.search(told_of, told), told


@pytest.mark.parametrize("disabled", [1, 2])
def test_one_disabled_rank_follows_rank_0(programs: Path, disabled: int) -> None:
    """Rank 2 is rank 0 of some of the program's communicators, which then are MPI's."""
    job = run([programs / "comms"], 3, env_of_rank={disabled: {"OMNIHVD_ENABLE": "0"}})
    taken = [int(re.findall(r"sums taken: (\d+)", output)[-1]) for output in job.ranks]
    assert taken == {1: [30, 20, 30], 2: [15, 5, 15]}[disabled], job.output


def test_a_rank_whose_engine_cannot_start_is_named(programs: Path) -> None:
    env = {1: {"UCX_TLS": "nonsense"}}
    job = run([programs / "meeting", "nothing", "1"], 3, env_of_rank=env, check=False)
    for told in failures(job, {0, 1, 2}):
        assert told.startswith("omnihvd cannot start on rank 1: UCX found nothing")
