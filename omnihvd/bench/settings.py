"""Settings of what omnihvd replaces; the benchmark finds the fastest one at each point.

Open MPI chooses its collectives by rules of its own. On slow links, and where ranks outnumber
cores, other collectives are faster, and so is yielding while a rank waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PARTS = "BENCH_PARTS"  # in how many parts a tensor is summed at once

ALGORITHMS = {"recursive doubling": 3, "ring": 4, "segmented ring": 5, "Rabenseifner": 6}


@dataclass(frozen=True, eq=False)
class Setting:
    name: str  # in tables
    mca: Mapping[str, str] = field(default_factory=dict)  # Open MPI's parameters
    env: Mapping[str, str] = field(default_factory=dict)


def open_mpi(waits: str, algorithm: str = "") -> Setting:
    mca = {"mpi_yield_when_idle": str(int(waits == "yielding"))}
    if algorithm == "shared memory":
        mca["coll_sm_priority"] = "100"
    elif algorithm:
        mca["coll_tuned_use_dynamic_rules"] = "1"
        mca["coll_tuned_allreduce_algorithm"] = str(ALGORITHMS[algorithm])
    return Setting(f"{waits}, {algorithm}" if algorithm else waits, mca)


AS_IT_IS = Setting("")  # as users have it
YIELDING = (open_mpi("yielding"), open_mpi("yielding", "segmented ring"))
