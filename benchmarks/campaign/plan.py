"""A seed's job: ranks, hosts, settings, sums and faults. The same seed plans the same job."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

BACKENDS = ("engine", "communicator", "torch")
LAUNCHERS = ("mpirun", "horovodrun")  # backends of the jobs in launched.py
ELASTIC = "elastic"  # of the jobs in elastic.py
# Faults after which sums may fail. All others must leave every sum right.
FATAL = {"kill", "exit", "leave", "stop-long", "files", "memory", "aggregator", "full"}
# Faults after which the rank itself may end or fail, and nobody else.
OWN = {"kill", "exit", "leave", "stop-long", "files", "memory"}
TORCH_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")
NAMESPACES = {"full", "small-shm", "link"}  # faults that need namespaces of their own
SHM_BYTES = 64 << 20  # of /dev/shm
LAUNCHED_DTYPES = ("float32", "float64", "int32", "int64")  # MPI and horovod.torch have them
TIMEOUT_S = 1.5  # OMNIHVD_TIMEOUT of jobs in which a rank is stopped for long
AGAIN = 3  # sums of the group that the survivors form
SECRET = "the secret of a campaign"


@dataclass(frozen=True)
class Sum:
    op: str  # allreduce or reduce-scatter
    count: int  # elements; of a reduce-scatter: of each rank's share
    dtype: str
    density: float
    in_place: bool


@dataclass(frozen=True)
class Fault:
    kind: str
    rank: int  # -1: of no rank
    after: int  # results that the ranks have reported
    delay_s: float  # and so much later
    value: float = 0


@dataclass
class Job:
    seed: int
    backend: str
    hosts: str  # a letter for each rank
    groups: list[tuple[int, ...]]  # the first has all ranks; each is a thread of its ranks
    sums: list[list[Sum]]  # of each group
    env: dict[str, str]
    faults: list[Fault]
    again: bool  # whether the survivors form another group
    aggregator: str = ""  # "": none; "bind": dedicated; "udp": in-network
    memory_bytes: int = SHM_BYTES
    loss: float = 0  # share of the frames that the network loses
    late: float = 0  # share of the frames that the network holds back, so that others overtake them
    planted: str = field(default="", compare=False)  # a mistake that the oracle has to find
    replay: str = ""  # words that replay it, besides its seed

    @property
    def size(self) -> int:
        return len(self.hosts)

    def without_namespaces(self) -> Job:
        """The same job, but for the faults that need namespaces of its own."""
        faults = [fault for fault in self.faults if fault.kind not in NAMESPACES]
        return replace(self, loss=0, late=0, memory_bytes=SHM_BYTES, faults=faults)

    def describe(self) -> str:
        sums = [f"{len(own)} sums in ranks {group}" for group, own in zip(self.groups, self.sums)]
        faults = [
            f"{f.kind}{'' if f.rank < 0 else f' of rank {f.rank}'} {1000 * f.delay_s:.1f} ms after "
            f"{f.after} results ({f.value:g})"
            for f in self.faults
        ]
        return "; ".join(
            [
                f"seed {self.seed}: {self.backend}, hosts {self.hosts}",
                *sums,
                " ".join(f"{name}={value}" for name, value in sorted(self.env.items())),
                *([f"aggregator --{self.aggregator}"] if self.aggregator else []),
                *([f"/dev/shm of {self.memory_bytes} bytes"] if self.memory_bytes < 64e6 else []),
                *([f"loss {self.loss:g}"] if self.loss else []),
                *([f"late {self.late:g}"] if self.late else []),
                *faults,
                *(["again"] if self.again else []),
            ]
        )


def plan(seed: int, isolated: bool = True) -> Job:
    """isolated: whether the job has namespaces of its own. Without them a job is the same, but for
    the faults that need them."""
    prng = random.Random(seed)
    size = prng.choice((2, 2, 3, 3, 3, 4, 5))
    backend = prng.choices(BACKENDS, (5, 5, 2))[0]
    hosts = prng.choice(("a", "ab", "abc", "abcde")) * size
    hosts = prng.choice((hosts[:size], "".join(sorted(hosts[:size]))))
    env = settings(prng, backend)
    groups: list[tuple[int, ...]] = [tuple(range(size))]
    if backend != "torch":
        while len(groups) < 3 and prng.random() < 0.3:
            members = prng.sample(range(size), prng.randint(2, size))
            groups.append(tuple(sorted(members)))
    aggregator = ""
    if backend != "torch" and prng.random() < 0.2:
        inline = backend == "communicator" and "OMNIHVD_ARITHMETIC" not in env
        aggregator = prng.choice(("bind", "udp")) if inline else "bind"
        if aggregator == "udp":
            env = {k: v for k, v in env.items() if k != "OMNIHVD_LEVELS"}
            env["OMNIHVD_WAY"] = prng.choice(("auto", "stream"))
        env["OMNIHVD_SECRET"] = SECRET
    # Dedicated aggregators refuse reduce-scatters.
    scatters = aggregator != "bind" and "OMNIHVD_ARITHMETIC" not in env
    sums = [make_sums(prng, backend, env, scatters) for _ in groups]
    job = Job(seed, backend, hosts, groups, sums, env, [], prng.random() < 0.5, aggregator)
    _faults(prng, job)
    return job if isolated else job.without_namespaces()


def settings(prng: random.Random, backend: str) -> dict[str, str]:
    env: dict[str, str] = {}
    if backend != "engine":
        ways = ("auto", "auto", "stream", "shared", "union", "original", "coded")
        env["OMNIHVD_WAY"] = prng.choice(ways)
        env["OMNIHVD_MIN_BYTES"] = prng.choice(("0", "0", "4096"))
        env["OMNIHVD_HIERARCHY"] = prng.choice(("auto", "auto", "off"))
    streams = env.get("OMNIHVD_WAY", "stream") in ("stream", "auto")
    network = prng.random()
    if network < 0.25:
        env["OMNIHVD_TRANSPORT"] = "udp"
    elif network < 0.55:
        env["UCX_TLS"] = "tcp,self"
    if prng.random() < 0.3:
        env["OMNIHVD_STREAMS"] = prng.choice(("1", "2", "3"))
    if prng.random() < 0.3:
        env["OMNIHVD_SLOTS"] = prng.choice(("1", "2", "32"))
    if prng.random() < 0.3:
        env["OMNIHVD_MESSAGE_BYTES"] = prng.choice(("2048", "16384", "262144"))
    if prng.random() < 0.2:
        env["OMNIHVD_BLOCK_SIZE"] = prng.choice(("8", "33", "1024"))
    if prng.random() < 0.1:
        env["OMNIHVD_DETERMINISTIC"] = "1"
    if streams and prng.random() < 0.1:
        env["OMNIHVD_ARITHMETIC"] = "integer"
    if prng.random() < 0.2:
        env["OMNIHVD_SECRET"] = SECRET
        env["OMNIHVD_ENCRYPT"] = prng.choice(("0", "1"))
    return env


def make_sums(prng: random.Random, backend: str, env: dict[str, str], scatter: bool) -> list[Sum]:
    block = int(env.get("OMNIHVD_BLOCK_SIZE", "256"))
    message = int(env.get("OMNIHVD_MESSAGE_BYTES", "57344")) // 4
    borders = [0, 1, block - 1, block, block + 1, 64 * block, message - 1, message, message + 1]
    dtypes: tuple[str, ...] = LAUNCHED_DTYPES if backend in LAUNCHERS else TORCH_DTYPES
    if env.get("OMNIHVD_ARITHMETIC"):
        dtypes = ("float32",)
    sums = []
    for _ in range(prng.randint(4, 24)):
        kind = prng.random()
        if kind < 0.4:
            count = prng.choice(borders)
        elif kind < 0.96:
            count = int(10 ** prng.uniform(0, 5.2))
        else:
            count = prng.randint(500_000, 1_500_000)
        scatters = scatter and count and prng.random() < 0.15
        op = "reduce-scatter" if scatters else "allreduce"
        count = max(count, 1) if backend in ("torch", *LAUNCHERS) else count
        density = prng.choice((0, 0.01, 0.3, 1, 1))
        dtype = prng.choice((*dtypes, "float32", "float32"))
        sums.append(Sum(op, count, dtype, density, prng.random() < 0.5))
    return sums


def _faults(prng: random.Random, job: Job) -> None:
    results = sum(len(group) * len(own) for group, own in zip(job.groups, job.sums))

    def add(kind: str, rank: int | None = None, value: float = 0) -> None:
        target = prng.randrange(job.size) if rank is None else rank
        after = prng.randrange(results) if prng.random() < 0.85 else 0
        if job.backend == "torch":  # Gloo's own bootstrap waits 40 s for a rank that has ended
            after = max(after, job.size)
        job.faults.append(Fault(kind, target, after, prng.uniform(0, 0.01), value))

    for _ in range(prng.choice((0, 0, 4, 8, 16))):
        add("stop", value=10 ** prng.uniform(-3, -1))
    if prng.random() < 0.06:
        add("suspend", -1, 10 ** prng.uniform(-2, -0.5))
    if prng.random() < 0.15:
        add("fork", value=prng.choice((0, 1)))
    if job.env.get("OMNIHVD_TRANSPORT") == "udp" and prng.random() < 0.4:
        job.loss = prng.choice((0.005, 0.02, 0.05))
    if prng.random() < 0.1:
        job.memory_bytes = prng.choice((4096, 1 << 16, 1 << 20, 8 << 20))
        job.faults.append(Fault("small-shm", -1, 0, 0, job.memory_bytes))
    kind = prng.random()
    if kind < 0.45:
        add("kill")
    elif kind < 0.52:
        add("exit")
    elif kind < 0.57:
        add("leave")
    elif kind < 0.59:
        add("stop-long", value=TIMEOUT_S + 2)
        job.env["OMNIHVD_TIMEOUT"] = f"{TIMEOUT_S:g}"
    elif kind < 0.63:
        add("files", value=prng.randint(0, 60))
    elif kind < 0.65 and job.backend != "torch":
        add("memory", value=10 ** prng.uniform(6, 8.3))
    elif kind < 0.67:
        add("full", -1)
    elif job.aggregator and kind < 0.9:
        add("aggregator", -1)
    _more_faults(random.Random(f"more of {job.seed}"), job)
    prng = random.Random(f"late of {job.seed}")
    if job.env.get("OMNIHVD_TRANSPORT") == "udp" and prng.random() < 0.4:
        job.late = prng.choice((0.01, 0.05, 0.2))
    prng = random.Random(f"links of {job.seed}")
    if job.backend != "torch" and prng.random() < 0.15:
        for _ in range(prng.choice((1, 2, 4))):
            after, length = prng.randrange(results), 10 ** prng.uniform(-2.5, -0.3)
            job.faults.append(Fault("link", -1, after, prng.uniform(0, 0.01), length))


def _more_faults(prng: random.Random, job: Job) -> None:
    """More stops, and other ranks that are killed while the first one's end is told. By a PRNG of
    their own, so that the seeds that are tests keep their jobs."""
    results = sum(len(group) * len(own) for group, own in zip(job.groups, job.sums))
    least = job.size if job.backend == "torch" else 0
    for _ in range(prng.choice((0, 6, 12, 24))):
        after = max(prng.randrange(results), least)
        rank, delay, length = prng.randrange(job.size), prng.uniform(0, 0.01), prng.uniform(-3, -1)
        job.faults.append(Fault("stop", rank, after, delay, 10**length))
    killed = [fault for fault in job.faults if fault.kind == "kill"]
    if not killed and not {fault.kind for fault in job.faults} & FATAL and prng.random() < 0.3:
        after = max(prng.randrange(results), least)
        killed = [Fault("kill", prng.randrange(job.size), after, prng.uniform(0, 0.01))]
        job.faults += killed
    others = [rank for rank in range(job.size) if killed and rank != killed[0].rank]
    for rank in prng.sample(others, prng.randrange(len(others)) if others else 0):
        delay = killed[0].delay_s + 10 ** prng.uniform(-4, -0.3)
        job.faults.append(Fault("kill", rank, killed[0].after, delay))
