"""Settings of all peers; the benchmark finds the fastest one at each point."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bench.published import ALGORITHM, RING
from omnihvd.bench.settings import ALGORITHMS, AS_IT_IS, PARTS, Setting, open_mpi

MPICH_ALGORITHM = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"

WAITS = (open_mpi("yielding"), open_mpi("polling"))
HOROVOD = (
    *WAITS,
    *(open_mpi("yielding", algorithm) for algorithm in ALGORITHMS),
    open_mpi("polling", "segmented ring"),
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
SCATTER = {**open_mpi("yielding").mca, "coll_tuned_use_dynamic_rules": "1"}
SCATTERS = (  # of MPI_Reduce_scatter_block
    *WAITS,
    *(
        Setting(
            f"yielding, {name}",
            {**SCATTER, "coll_tuned_reduce_scatter_block_algorithm": str(number)},
        )
        for number, name in enumerate(("linear", "doubling", "halving", "butterfly"), 1)
    ),
)
SWITCHML = (Setting("", env={"OMNIHVD_WAY": "stream"}),)


def _published(waits: str, name: str, algorithm: str, parts: int = 1) -> Setting:
    words = f"{waits}, {name}" + f", {parts} parts a rank" * (parts > 1)
    return Setting(words, open_mpi(waits).mca, {ALGORITHM: algorithm, PARTS: str(parts)})


SPARCML = (
    _published("yielding", "SSAR recursive doubling", "recursive"),
    _published("yielding", "SSAR split allgather", "sparse"),
    _published("yielding", "SSAR split allgather", "sparse", 8),
    _published("polling", "SSAR split allgather", "sparse", 8),
    _published("yielding", "DSAR split allgather", "dense", 8),
)
SPARCML_OF_DENSE = tuple(one for one in SPARCML if "SSAR" in one.name)
PARALLAX = (
    *(_published("yielding", "servers", "sparse", parts) for parts in (1, 8)),
    _published("polling", "servers", "sparse", 8),
    *(
        replace(open_mpi("yielding", algorithm), env={ALGORITHM: RING})
        for algorithm in ("segmented ring", "Rabenseifner")
    ),
)


def settings_of(backend: str, one_host: bool) -> tuple[Setting, ...]:
    if backend in ("horovod", "mpi"):
        return (*HOROVOD, open_mpi("yielding", "shared memory")) if one_host else HOROVOD
    return {
        "gloo": GLOO,
        "mpich": MPICH,
        "mpi-scatter": SCATTERS,
        "agsparse": WAITS,
        "agsparse-of-dense": WAITS,
        "switchml": SWITCHML,
        "sparcml": SPARCML,
        "sparcml-rows": SPARCML,
        "sparcml-of-dense": SPARCML_OF_DENSE,
        "parallax": PARALLAX,
    }.get(backend, (AS_IT_IS,))
