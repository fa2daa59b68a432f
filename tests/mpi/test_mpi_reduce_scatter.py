"""MPI_Reduce_scatter and MPI_Reduce_scatter_block of C programs under the preloaded shim."""

from __future__ import annotations

from pathlib import Path

import pytest
from preloaded import NEEDS, run
from test_shim import on_hosts, summaries

pytestmark = NEEDS

# reduce_scatters.c sums 5 types at 3 densities, in place and not.
CASES = 5 * 3 * 2
SCATTERS, ALLREDUCES = CASES * 12, CASES
OTHERS = {"op": 1, "empty": 1}


@pytest.mark.parametrize(
    ("hosts", "way"),
    [("a", "auto"), ("abc", "auto"), ("aaa", "shared"), ("aab", "coded"), ("aaaa", "stream")],
)
def test_reduce_scatters(programs: Path, hosts: str, way: str) -> None:
    env = {"OMNIHVD_WAY": way}
    job = run([programs / "reduce_scatters"], len(hosts), env=env, env_of_rank=on_hosts(hosts))
    for summary in summaries(job):
        if hosts == "a":
            assert summary.taken == 0
        else:
            assert (summary.taken, summary.left) == (SCATTERS + ALLREDUCES, OTHERS)


@pytest.mark.parametrize("more", [{}, {"OMNIHVD_LEVELS": "2x2", "OMNIHVD_HIERARCHY": "off"}])
def test_left_to_mpi_where_sums_have_levels(programs: Path, more: dict[str, str]) -> None:
    env = {"OMNIHVD_WAY": "stream", **more}
    job = run([programs / "reduce_scatters"], 4, env=env, env_of_rank=on_hosts("aabb"))
    for summary in summaries(job):
        assert (summary.taken, summary.left) == (ALLREDUCES, {**OTHERS, "levels": SCATTERS})


def test_an_unavailable_rank_fails_the_others(programs: Path) -> None:
    job = run(
        [programs / "reduce_scatters"],
        2,
        env_of_rank={1: {"OMNIHVD_MIN_BYTES": "many"}},
        check=False,
        timeout=40,
    )
    assert "MPI_Reduce_scatter_block failed: rank 1: OMNIHVD_MIN_BYTES=many" in job.output
