"""Tables of results of benchmarks/bench, and of latencies."""

from __future__ import annotations

from statistics import median

from benchmarks.bench.report import markdown, size_text
from benchmarks.tables.results import in_ms, load
from omnihvd.rates import rate_text

HEADS = {
    "omnihvd": "omnihvd under Horovod",
    "omnihvd-dedicated": "the same, dedicated aggregators",
    "omnihvd-torch": "omnihvd under torch.distributed",
    "gloo": "Gloo at its best",
    "horovod": "Horovod at its best",
    "mpi": "Open MPI at its best",
    "mpich": "MPICH at its best",
    "agsparse-of-dense": "allgather",
    "agsparse": "allgather, sparse from the start",
}
HOSTS4 = "hosts4-1gbit"


def hosts4() -> str:
    return by_density(["omnihvd", "omnihvd-torch", "gloo", "horovod"])


def allgathers() -> str:
    return by_density(["omnihvd", "omnihvd-dedicated", "agsparse-of-dense", "agsparse"])


def by_density(backends: list[str]) -> str:
    """Dense schemes take the same time at all densities."""
    found: dict[str, dict[float, str]] = {}
    for r in load(f"{HOSTS4}.json")["results"]:
        found.setdefault(r["backend"], {})[r["point"]["density"]] = in_ms(median(r["samples"]))
    cells = []
    for density in found["omnihvd"]:
        cells.append([f"{100 * density:g}%"])
        for backend in backends:
            dense = found[backend][1.0] if [*found[backend]] == [1.0] else ""
            cells[-1].append(found[backend].get(density, dense))
    return markdown(["non-zero", *(HEADS[b] for b in backends)], cells)


def peers() -> str:
    """MPI's own sums, without Horovod above them."""
    found: dict[tuple[int, float], dict[str, str]] = {}
    for r in load("hosts2-peers.json")["results"]:
        sums = found.setdefault((r["point"]["count"], r["point"]["density"]), {})
        sums[r["backend"]] = f"{1e3 * median(r['samples']):.1f}"
    backends = [name for name in HEADS if name in next(iter(found.values()))]
    cells = []
    for (count, density), sums in found.items():
        dense = found[count, 1.0]
        cells.append([size_text(4 * count), f"{100 * density:g}%"])
        cells[-1] += [sums.get(name, dense[name]) for name in backends]
    return markdown(["tensor", "non-zero", *(HEADS[name] for name in backends)], cells)


def scatters() -> str:
    """Reduce-scatters. Dense schemes take the same time at all densities."""
    cells = []
    for rate in ("1gbit", "10gbit"):
        found: dict[int, dict[str, dict[float, str]]] = {}
        for r in load(f"scatters-{rate}.json")["results"]:
            times = found.setdefault(r["point"]["count"], {}).setdefault(r["backend"], {})
            times[r["point"]["density"]] = f"{1e3 * median(r['samples']):.1f}"
        for count, sums in found.items():
            cells.append([rate_text(rate), size_text(4 * count)])
            cells[-1] += [sums[name][1.0] for name in ("gloo-scatter", "mpi-scatter")]
            cells[-1] += [sums["omnihvd-torch-scatter"][share] for share in (1.0, 0.1, 0.01)]
    heads = ["links", "tensor", "Gloo", "Open MPI's own", "omnihvd: 100%", "10%", "1% non-zero"]
    return markdown(heads, cells)


def new_memory() -> str:
    """The time in new memory over that in kept memory, for 100 MB in the map."""
    cells = []
    for name, part in load("map.json")["parts"].items():
        found: dict[tuple[str, float], dict[str, float]] = {}
        for r in part["results"]:
            point = r["point"]
            if point["count"] == 25_000_000:
                times = found.setdefault((r["backend"], point["density"]), {})
                times[point["memory"]] = median(r["samples"])
        ratios = {k: f"{t['new'] / t['kept']:.2f}" for k, t in found.items() if len(t) == 2}
        for backend in dict.fromkeys(backend for backend, _ in ratios):
            row = [ratios.get((backend, density), "") for density in (1.0, 0.4, 0.1, 0.01, 0.001)]
            rate, layout = name.split("-")
            hosts, ranks = layout.split("x")
            where = f"{hosts} host{'s' * (hosts != '1')}, {ranks} rank{'s' * (ranks != '1')} each"
            cells.append([where, rate.replace("none", ""), HEADS[backend], *row])
    return markdown(["", "links", "", "100%", "40%", "10%", "1%", "0.1% non-zero"], cells)
