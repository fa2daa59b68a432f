"""Bytes of a sum on servers with several GPUs, by all algorithms and in both orders: compress
first, or reduce inside the servers first. Uses tests/nccl's stand-ins for CUDA and NCCL: no GPU, no
times.

    python benchmarks/gpu_levels.py [--hosts 2] [--gpus 3] [--blocks 2048] [--densities 0.01 0.1]

Ranks are processes here. NCCL's bytes are a ring's for the same input: inside a server on that
server's communicators, else between servers. The engine's bytes, of unions that exceed their room,
are counted as it sends them to other processes. Each GPU has its own random blocks. Unions have
room for a quarter more, and NCCL moves that, too. Times of the same algorithms:
benchmarks/nccl_gpu.py --ways, under torchrun.

Under codecs (omnihvd/torch/coded_sums.py) bytes follow from the messages' sizes. Compress first:
the hook among all ranks. Reduce first: NCCL's reduce-scatter inside servers, the hook among the
ranks with the same place in their servers, NCCL's allgather inside servers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / name) for name in ("", "nccl", "kernels"))]

BLOCK, SUMS = 256, 140  # plans follow 64 sums later
WAYS = {
    "original": {"OMNIHVD_GPU": "original"},
    "union": {"OMNIHVD_GPU": "union", "OMNIHVD_HIERARCHY": "off"},
    "union, two levels": {"OMNIHVD_GPU": "union", "OMNIHVD_HIERARCHY": "on"},
}
Bytes = dict[str, float]


def ring(ranks: int, nbytes: float) -> float:
    """Bytes that each rank sends in a ring's reduce-scatter, or allgather, of `nbytes`."""
    return nbytes * (ranks - 1) / ranks


# --- on each rank -------------------------------------------------------------------------------


def rank_main(hosts: int, blocks: int, density: float) -> None:
    """Prints what one sum gave NCCL and the engine, once the unions' capacity is known."""
    import numpy as np
    from gpu_rank import LIBRARY, RANK, SIZE, SUCCESS, Array, Communicator, Stream, use_device

    import omnihvd

    names = ("ncclAllReduce", "marks", "ncclAllGather", "ncclReduceScatter")
    keys = [f"{name} of {ranks}" for name in names for ranks in (SIZE, SIZE // hosts, hosts)]

    def given() -> dict[str, int]:
        found = {key: LIBRARY.double_nccl_bytes(key.encode()) for key in keys}
        return {**found, "engine": int(omnihvd.stats()["bytes_sent"])}

    use_device()
    filled = [np.random.default_rng([7, rank]).random(blocks) < density for rank in range(SIZE)]
    mine = np.repeat(filled[RANK], BLOCK).astype(np.float32)
    total = np.repeat(np.sum(filled, axis=0), BLOCK)
    stream, comm, x = Stream(), Communicator("all"), Array(mine)
    for _ in range(SUMS):
        before = given()
        x.host[:] = mine
        assert comm.allreduce(stream, x, x, "float32") == SUCCESS
        stream.wait()
        assert (x.host == total).all()
    moved = {key: number - before[key] for key, number in given().items()}
    union, here = np.logical_or.reduce(filled).sum(), int(filled[RANK].sum())
    print("moved", json.dumps({**moved, "union": int(union), "own": here}))
    comm.destroy()


# --- all of them --------------------------------------------------------------------------------


def where_they_go(moved: dict[str, int], hosts: int, gpus: int, engine: float) -> Bytes:
    """`moved`: of one rank; engine: of all ranks."""
    ranks, inside, between = hosts * gpus, 0.0, engine / hosts

    def of(name: str, n: int) -> float:
        times = 2 if name in ("ncclAllReduce", "marks") else 1
        nbytes = moved[f"{name} of {n}"] * (n if name == "ncclAllGather" else 1)
        return times * ring(n, nbytes)

    for name in ("ncclAllReduce", "marks", "ncclAllGather", "ncclReduceScatter"):
        inside += of(name, gpus)
        between += gpus * of(name, hosts)
        whole = of(name, ranks)  # each link of a ring carries as much, one of a server's is a cable
        inside, between = inside + whole, between + whole
    return {"NVLink, a GPU": inside, "network, a server": between}


def measured(hosts: int, gpus: int, blocks: int, densities: list[float]) -> list[list[str]]:
    import nccl_job

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(folder) / "kernels"
        kernels.mkdir()
        doubles = nccl_job.build(Path(folder), kernels)
        for density in densities:
            for way, env in WAYS.items():
                words = ("--rank", hosts, blocks, density)
                ended = nccl_job.run(
                    doubles, str(Path(__file__).resolve()), hosts * gpus, *map(str, words),
                    ranks_per_host=gpus, env={"OMNIHVD_GPU_CHUNK_BYTES": "65536", **env},
                    timeout=300,
                )  # fmt: skip
                lines = [line for e in ended for line in e.output.splitlines()]
                moved = [json.loads(line[6:]) for line in lines if line.startswith("moved ")]
                engine = sum(m["engine"] for m in moved)
                found = where_they_go(moved[0], hosts, gpus, engine)
                rows.append([f"{density:.0%}", way, *(f"{n / 1e3:.1f}" for n in found.values())])
    return rows


def coded(hosts: int, gpus: int, blocks: int) -> list[list[str]]:
    """The rows of two codings, from their messages' sizes."""
    from omnihvd import engine
    from omnihvd.kernels.codes import parcel_bytes

    rows, whole = [], 4.0 * BLOCK * blocks
    for name in ("natural", "sign"):
        codec = engine.codec.Codec(name)
        up, down = codec.coding(), codec.coding(sums=True)

        def hook(ranks: int, of: int, codings: tuple[tuple[int, int], ...] = (up, down)) -> float:
            """Bytes that each rank sends: to each other rank one message up, and one down."""
            own = -(-of // ranks)
            return (ranks - 1) * sum(parcel_bytes(each, own, BLOCK) for each in codings)

        every = hook(hosts * gpus, blocks)
        far = every * (hosts - 1) * gpus / (hosts * gpus - 1)  # of those, to other servers
        part = hook(hosts, -(-blocks // gpus))
        near = [every - far, 2 * ring(gpus, whole)]
        for order, inside, between in zip(
            ("compress first", "reduce first"), near, (gpus * far, gpus * part)
        ):
            rows.append([name, order, f"{inside / 1e3:.1f}", f"{between / 1e3:.1f}"])
    return rows


def table(first: str, second: str, rows: list[list[str]]) -> None:
    print(f"\n| {first} | {second} | KB on NVLink, a GPU | KB on the network, a server |")
    print("|---|---|---|---|")
    for row in rows:
        print("|", " | ".join(row), "|")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2, help="servers")
    parser.add_argument("--gpus", type=int, default=3, help="of each; not as many as servers")
    parser.add_argument("--blocks", type=int, default=2048, help="of 256 float32, of the tensor")
    parser.add_argument("--densities", type=float, nargs="+", default=[0.01, 0.1])
    args = parser.parse_args()
    if args.hosts == args.gpus:
        parser.error("communicators are told apart by their sizes: other numbers, please")
    table("density", "way", measured(args.hosts, args.gpus, args.blocks, args.densities))
    table("codec", "order", coded(args.hosts, args.gpus, args.blocks))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        sys.path.insert(0, os.environ["PYTHONPATH"].split(os.pathsep)[0])
        rank_main(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    else:
        main()
