"""The MPI shim preloaded into MPI programs: C programs and mpi4py, which know nothing of it."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from launch import STREAM, Job, launch
from preloaded import NEEDS, run

HERE = Path(__file__).parent
pytestmark = NEEDS

# sums.c sums each of its types, sizes and densities, in place and not.
ELEMENT_BYTES = [4, 8, 1, 1, 1, 1, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 2, 2, 2]
COUNTS = [1, 2, 255, 256, 257, 768, 5000, 100003]
SUMS = len(ELEMENT_BYTES) * len(COUNTS) * 6


@dataclass
class Summary:
    """A rank's log at MPI_Finalize."""

    taken: int
    megabytes_sent: float
    left: dict[str, int]


def summaries(job: Job, differs: str = "") -> list[Summary]:
    """One of each rank. Nobody may have complained, but rank 0 of a setting that differs."""
    found = []
    for rank, output in enumerate(job.ranks):
        if differs and rank == 0:
            output, said = re.subn(f".*warning.* {differs} is .* which all ranks use.*", "", output)
            assert said == 1
        assert not re.search(r"omnihvd (warning|error)|UCX +ERROR|Fatal", output), output
        line = re.search(
            r"sums taken: (\d+)(?:,.* s; sent ([\d.]+) MB.*?)?"
            r"(?:; left to MPI: (\d+), [\d.]+% of the bytes \((.*)\))?\n",
            output,
        )
        assert line, output
        items = [item.split(" ", 1) for item in (line[4] or "").split(", ") if item]
        left = {why: int(calls) for calls, why in items}
        assert sum(left.values()) == int(line[3] or 0)
        found.append(Summary(int(line[1]), float(line[2] or 0), left))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_sums(programs: Path, ranks: int) -> None:
    for summary in summaries(run([programs / "sums"], ranks)):
        if ranks == 1:
            assert (summary.taken, summary.left) == (0, {"one rank": SUMS})
        else:
            assert (summary.taken, summary.left) == (SUMS, {})


@pytest.mark.parametrize("way", ["union", "original", "auto", "shared", "coded"])
@pytest.mark.parametrize("hosts", ["aa", "aaa", "abab"])
def test_sums_in_other_ways(programs: Path, way: str, hosts: str) -> None:
    env = {"OMNIHVD_WAY": way}
    job = run([programs / "sums"], len(hosts), env=env, env_of_rank=on_hosts(hosts))
    for summary in summaries(job):
        assert (summary.taken, summary.left) == (SUMS, {})
    streams = way == "coded" or (way in ("auto", "shared") and len(set(hosts)) > 1)
    assert ("joined a group" in job.output) == streams


def test_mpi_makes_the_sums_of_who_ends_later(programs: Path) -> None:
    job = run([programs / "at_the_end"], 3)
    assert [summary.taken for summary in summaries(job)] == [1, 1, 1]
    assert job.output.count("summed at the end") == 3


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_leaves_the_rest_to_mpi(programs: Path, ranks: int) -> None:
    left = {"op": 5, "dtype": 1, "inter-communicator": 1, "one rank": 1, "empty": 1}
    for summary in summaries(run([programs / "others"], ranks)):
        assert (summary.taken, summary.left) == (2, left)


def driver(folder: Path) -> Path:
    """A library that stands in for CUDA's driver."""
    made = folder / "libcuda.so.1"
    source = HERE / "doubles" / "libcuda.c"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source, "-o", made]
    subprocess.run(command, check=True, timeout=60)
    return made


@pytest.mark.parametrize("scatters", [[], ["reduce-scatters"]], ids=["", "reduce-scatters"])
@pytest.mark.parametrize(
    ("where", "taken"),
    [("dhdd", 0), ("hdhd", 4), ("hhdh", 4)],
    ids=["of all at first", "of all later", "of one"],
)
def test_device_memory(
    programs: Path, tmp_path: Path, where: str, taken: int, scatters: list[str]
) -> None:
    words = [programs / "device_memory", driver(tmp_path), where, *scatters]
    if where == "hdhd":
        job = run(words, 2, {"COPY_FAILS": "1"}, check=False, timeout=30)
        said = "a buffer in a GPU's memory cannot be copied: cuMemcpy failed with 700"
        assert said in job.output
    for summary in summaries(run(words, 2, timeout=30)):
        left = {"one rank": 10} | ({"device memory": 4 - taken} if taken < 4 else {})
        assert (summary.taken, summary.left) == (taken, left)


def test_a_rank_that_cannot_copy_its_part_fails_all(programs: Path, tmp_path: Path) -> None:
    """Else its next sum would be taken for this one by the others."""
    job = run([programs / "device_memory", driver(tmp_path), "fails"], 2, check=False, timeout=60)
    for rank in range(2):
        assert f"rank {rank} got both failures" in job.ranks[rank], job.output


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_communicators(programs: Path, ranks: int) -> None:
    for rank, summary in enumerate(summaries(run([programs / "comms"], ranks))):
        alone = ranks == 2 or (ranks == 3 and rank == 1)  # of its half
        assert (summary.taken, summary.left) == ((20, {"one rank": 10}) if alone else (30, {}))


def test_threshold_is_that_of_rank_0(programs: Path) -> None:
    job = run(
        [programs / "sums"],
        3,
        env={"OMNIHVD_MIN_BYTES": "10"},
        env_of_rank={0: {"OMNIHVD_MIN_BYTES": "20000"}},
    )
    small = 6 * sum(size * count < 20000 for size in ELEMENT_BYTES for count in COUNTS)
    for summary in summaries(job, "OMNIHVD_MIN_BYTES"):
        assert (summary.taken, summary.left) == (SUMS - small, {"small": small})


def test_disabled_on_rank_0(programs: Path) -> None:
    job = run([programs / "sums"], 2, env_of_rank={0: {"OMNIHVD_ENABLE": "0"}})
    for summary in summaries(job, "OMNIHVD_ENABLE"):
        assert (summary.taken, summary.left) == (0, {"disabled": SUMS})


# --- several ranks a host -----------------------------------------------------------------------


def on_hosts(hosts: str) -> dict[int, dict[str, str]]:
    """A letter for each rank: the host that it believes to be on."""
    return {rank: {"OMNIHVD_HOST_ID": f"host-{host}"} for rank, host in enumerate(hosts)}


@pytest.mark.parametrize("program", ["sums", "comms", "others"])
@pytest.mark.parametrize("hosts", ["aabb", "abba", "aaabbb"])
def test_two_levels(programs: Path, hosts: str, program: str) -> None:
    job = run([programs / program], len(hosts), env_of_rank=on_hosts(hosts))
    assert len(summaries(job)) == len(hosts)


@pytest.mark.parametrize("arithmetic", ["switchml", "fpisa"])
def test_two_levels_in_other_numbers(programs: Path, arithmetic: str) -> None:
    env = {"OMNIHVD_ARITHMETIC": arithmetic}
    job = run([programs / "sums"], 4, env=env, env_of_rank=on_hosts("aabb"))
    assert all(f"sums taken: {SUMS}," in output for output in job.ranks)
    others = rf"sums of float64 are made of floats: OMNIHVD_ARITHMETIC={arithmetic} is of float32"
    assert job.output.count(others) == 1


def test_two_levels_send_less(programs: Path) -> None:
    def sent(**env: str) -> float:
        job = run([programs / "sums"], 4, env=env, env_of_rank=on_hosts("aabb"))
        assert f"a group of {2 if env['OMNIHVD_HIERARCHY'] == 'auto' else 4} ranks" in job.output
        return sum(summary.megabytes_sent for summary in summaries(job))

    # At most 2 of 4 ranks' blocks leave a host, and half of them stay with the own aggregator.
    assert sent(OMNIHVD_HIERARCHY="auto") < 0.5 * sent(OMNIHVD_HIERARCHY="off")


@pytest.mark.parametrize(
    ("hosts", "obstacle"),
    [
        ("aaa", "all on one host"),
        ("aab", "different numbers"),
        ("abc", "each is on a host of its own"),
    ],
)
def test_one_level_says_why(programs: Path, hosts: str, obstacle: str) -> None:
    job = run([programs / "sums"], 3, env_of_rank=on_hosts(hosts))
    assert job.output.count(obstacle) == 1
    assert [summary.taken for summary in summaries(job)] == [SUMS] * 3
    insisting = run(
        [programs / "sums"], 3, {"OMNIHVD_HIERARCHY": "on"}, env_of_rank=on_hosts(hosts)
    )
    assert re.search(f"omnihvd warning .*{obstacle}", insisting.output)


# --- failures -----------------------------------------------------------------------------------


def failed_ranks(job: Job) -> list[int]:
    return sorted(int(rank) for rank in re.findall(r"rank (\d+) got the failure", job.output))


@pytest.mark.parametrize("hosts", ["abc", "aabb"])
def test_a_dead_rank_fails_the_others(programs: Path, hosts: str) -> None:
    last = len(hosts) - 1
    job = run(
        [programs / "failure", "die"],
        len(hosts),
        env_of_rank=on_hosts(hosts),
        options=["--enable-recovery"],
        check=False,
        timeout=40,
    )
    assert failed_ranks(job) == list(range(last))
    for output in job.ranks[:last]:
        assert "MPI_Allreduce failed: " in output
    # Ranks that shared something with it: in two levels its host's, and those with its place.
    shared = (1, 2) if hosts == "aabb" else (0, 1)
    for rank in shared:
        name = f"rank {last}" if hosts == "abc" or rank == 2 else "ranks 1, 3, counted from 0: "
        assert re.search(f"omnihvd error .*MPI_Allreduce failed: .*{name}", job.ranks[rank])


# As omnihvd is shipped, where it makes small sums in memory that the ranks share.
SHIPPED = {"OMNIHVD_WAY": "auto", "OMNIHVD_MIN_BYTES": ""}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_small_sums(programs: Path, ranks: int) -> None:
    job = run([programs / "small_sums"], ranks, SHIPPED)
    for rank, summary in enumerate(summaries(job)):
        alone = (ranks + 1 - rank % 2) // 2 == 1  # in its half
        left = {"one rank": 400 if ranks == 1 else 200} if alone else {}
        assert (summary.taken, summary.left) == (400 - sum(left.values()), left)


@pytest.mark.parametrize(
    ("how", "said"), [("die", r"rank 2 \(.*\) has ended"), ("differ", "sums 101 float64")]
)
def test_a_rank_that_fails_small_sums_is_named(programs: Path, how: str, said: str) -> None:
    job = run(
        [programs / "small_sums", how],
        3,
        SHIPPED,
        options=["--enable-recovery"],
        check=False,
        timeout=40,
    )
    assert failed_ranks(job) == ([0, 1] if how == "die" else [0, 1, 2])
    for rank in failed_ranks(job):
        assert re.search(f"omnihvd error .*MPI_Allreduce failed: .*{said}", job.ranks[rank])


def test_a_bad_setting_on_one_rank_fails_all_with_its_name(programs: Path) -> None:
    # Without recovery, mpirun ends the others as soon as one leaves without MPI_Finalize.
    job = run(
        [programs / "failure"],
        3,
        env_of_rank={1: {"OMNIHVD_MIN_BYTES": "many"}},
        options=["--enable-recovery"],
        check=False,
    )
    assert failed_ranks(job) == [0, 1, 2]
    for output in job.ranks:
        assert "MPI_Allreduce failed: rank 1: OMNIHVD_MIN_BYTES=many" in output


def test_a_rank_without_memory_fails_the_sum_and_not_the_process(programs: Path) -> None:
    small_blocks = {"OMNIHVD_WAY": "union", "OMNIHVD_BLOCK_SIZE": "8"}  # needs 250 kB for its bits
    job = run([programs / "failure", "memory"], 2, small_blocks, check=False)
    assert failed_ranks(job) == [0, 1]
    assert job.output.count("MPI_Allreduce failed: this process has no more memory") == 2


def test_a_sum_on_the_union_needs_no_memory(programs: Path) -> None:
    """Else a rank without memory would leave the others in MPI."""
    segments = {  # Open MPI's other sums need as much memory as they sum
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": "5",
        "OMPI_MCA_coll_tuned_allreduce_algorithm_segmentsize": "1000000",
    }
    job = run([programs / "failure", "memory", "enough"], 3, {"OMNIHVD_WAY": "union", **segments})
    for rank in job.ranks:
        assert not re.search(r"omnihvd (warning|error)", rank)


def test_a_failure_is_fatal_unless_the_program_says_otherwise(programs: Path) -> None:
    job = run([programs / "sums"], 2, {"OMNIHVD_MIN_BYTES": "many"}, check=False, timeout=40)
    assert job.returncode != 0
    assert "MPI_Allreduce failed: " in job.output
    assert "sum of" not in job.output  # the program itself found nothing: it was ended before


# --- mpi4py -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_mpi4py_preloaded(ranks: int) -> None:
    pytest.importorskip("mpi4py")
    job = run([HERE / "on_ranks" / "mpi4py_allreduce.py", "preloaded"], ranks)
    for summary in summaries(job):
        if ranks == 1:
            assert summary.taken == 0
        else:
            assert summary.taken >= 36
            assert summary.left["op"] == 1


@pytest.mark.parametrize("ranks", [2, 3])
def test_mpi4py_hooked(ranks: int) -> None:
    pytest.importorskip("mpi4py")
    env = {**STREAM, "OMNIHVD_MIN_BYTES": "1", "OMNIHVD_LOG": "info"}
    job = launch([HERE / "on_ranks" / "mpi4py_allreduce.py", "hooked"], ranks, env=env)
    for output in job.ranks:
        assert re.search("sums taken: (36|72),", output)
        assert "OMNIHVD_MIN_BYTES=many" in output


def test_a_process_may_leave_without_mpi_finalize() -> None:
    pytest.importorskip("mpi4py")
    script = HERE / "on_ranks" / "mpi4py_allreduce.py"
    job = run([script, "exits"], 3, check=False, timeout=40)
    for output in job.ranks:
        assert not re.search("omnihvd (warning|error)|[Ss]egmentation|terminate", output), output


# MPI over sockets gets on only inside its calls.
SOCKETS = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}


@pytest.mark.parametrize("way", ["stream", "shared"])
def test_a_programs_own_messages_get_on_while_a_rank_waits(way: str) -> None:
    pytest.importorskip("mpi4py")
    script = HERE / "on_ranks" / "own_messages.py"
    job = run([script], 2, env={**SOCKETS, "OMNIHVD_WAY": way}, timeout=40)
    assert all("all well" in output for output in job.ranks)


@pytest.mark.parametrize("way", ["stream", "shared"])
def test_a_time_out_ends_the_job(way: str) -> None:
    """Also where the late rank waits in MPI for ever."""
    pytest.importorskip("mpi4py")
    script = HERE / "on_ranks" / "own_messages.py"
    env = {**SOCKETS, "OMNIHVD_WAY": way, "OMNIHVD_TIMEOUT": "2"}
    job = run([script, "never"], 2, env=env, check=False, timeout=40)
    assert job.returncode != 0 and "OMNIHVD_TIMEOUT" in job.output
    assert "MPI_Finalize has waited 2 s for other ranks (OMNIHVD_TIMEOUT)" in job.output
    assert re.search("waiting for rank 1", job.output)
