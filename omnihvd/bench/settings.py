"""Settings of the peers; the benchmark finds the fastest one at each point.

Open MPI chooses its collectives by rules of its own. On slow links, and where ranks outnumber
cores, other collectives are faster, and so is yielding while a rank waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from omnihvd.bench.published import ALGORITHM, PARTS, RING

MPICH_ALGORITHM = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"

ALGORITHMS = {"recursive doubling": 3, "ring": 4, "segmented ring": 5, "Rabenseifner": 6}


@dataclass(frozen=True, eq=False)
class Setting:
    name: str  # in tables
    mca: Mapping[str, str] = field(default_factory=dict)  # Open MPI's parameters
    env: Mapping[str, str] = field(default_factory=dict)


def _open_mpi(waits: str, algorithm: str = "") -> Setting:
    mca = {"mpi_yield_when_idle": str(int(waits == "yielding"))}
    if algorithm == "shared memory":
        mca["coll_sm_priority"] = "100"
    elif algorithm:
        mca["coll_tuned_use_dynamic_rules"] = "1"
        mca["coll_tuned_allreduce_algorithm"] = str(ALGORITHMS[algorithm])
    return Setting(f"{waits}, {algorithm}" if algorithm else waits, mca)


AS_IT_IS = Setting("")  # as users have it
WAITS = (_open_mpi("yielding"), _open_mpi("polling"))
HOROVOD = (
    *WAITS,
    *(_open_mpi("yielding", algorithm) for algorithm in ALGORITHMS),
    _open_mpi("polling", "segmented ring"),
)
# PyTorch fixes Gloo's algorithm and connections; two threads sum parts of a tensor at once.
GLOO = (Setting("whole"), Setting("4 parts at once", env={PARTS: "4"}))
MPICH = (
    Setting("its own rules"),
    *(
        Setting(name, env={MPICH_ALGORITHM: algorithm, "MPIR_CVAR_DEVICE_COLLECTIVES": "none"})
        for name, algorithm in {
            "recursive doubling": "recursive_doubling",
            "ring": "ring",
            "Rabenseifner": "reduce_scatter_allgather",
        }.items()
    ),
)
SWITCHML = (Setting("", env={"OMNIHVD_WAY": "stream"}),)


def _published(waits: str, name: str, algorithm: str, parts: int = 1) -> Setting:
    words = f"{waits}, {name}" + f", {parts} parts a rank" * (parts > 1)
    return Setting(words, _open_mpi(waits).mca, {ALGORITHM: algorithm, PARTS: str(parts)})


SPARCML = (
    _published("yielding", "SSAR recursive doubling", "recursive"),
    _published("yielding", "SSAR split allgather", "sparse"),
    _published("yielding", "SSAR split allgather", "sparse", 8),
    _published("polling", "SSAR split allgather", "sparse", 8),
    _published("yielding", "DSAR split allgather", "dense", 8),
)
SPARCML_OF_DENSE = tuple(one for one in SPARCML if "SSAR split" in one.name)
PARALLAX = (
    *(_published("yielding", "servers", "sparse", parts) for parts in (1, 8)),
    _published("polling", "servers", "sparse", 8),
    *(
        Setting(setting.name, setting.mca, {ALGORITHM: RING})
        for setting in (
            _open_mpi("yielding", algorithm) for algorithm in ("segmented ring", "Rabenseifner")
        )
    ),
)


def settings_of(backend: str, one_host: bool) -> tuple[Setting, ...]:
    if backend in ("horovod", "mpi"):
        return (*HOROVOD, _open_mpi("yielding", "shared memory")) if one_host else HOROVOD
    return {
        "gloo": GLOO,
        "mpich": MPICH,
        "mpi-scatter": WAITS,
        "agsparse": WAITS,
        "agsparse-of-dense": WAITS,
        "switchml": SWITCHML,
        "sparcml": SPARCML,
        "sparcml-rows": SPARCML,
        "sparcml-of-dense": SPARCML_OF_DENSE,
        "parallax": PARALLAX,
    }.get(backend, (AS_IT_IS,))
