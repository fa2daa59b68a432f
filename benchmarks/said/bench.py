"""What is said of results of `omnihvd bench`, and of latencies."""

from __future__ import annotations

import re
from statistics import mean, median

from benchmarks.said.results import Said, cpu, horovod, in_ms, load, ms, of, times
from omnihvd.bench.report import markdown, size_text
from omnihvd.rates import rate_text

HOROVOD_AND_TORCH = ("omnihvd", "omnihvd-torch")
HEADS = {
    "omnihvd": "under Horovod",
    "omnihvd-dedicated": "the same, dedicated",
    "omnihvd-torch": "under torch.distributed",
    "gloo": "Gloo at its best",
    "horovod": "Horovod at its best",
    "mpi": "Open MPI at its best",
    "mpich": "MPICH at its best",
    "agsparse-of-dense": "allgather",
    "agsparse": "allgather, sparse from the start",
}
HOSTS4 = "hosts4-1gbit"


def hosts4() -> str:
    """Dense schemes take the same time at all densities."""
    found: dict[str, dict[float, str]] = {}
    for r in load(f"{HOSTS4}.json")["results"]:
        found.setdefault(r["backend"], {})[r["point"]["density"]] = in_ms(median(r["samples"]))
    backends = sorted(found, key=[*HEADS, *found].index)
    cells = []
    for density in found["omnihvd"]:
        cells.append([f"{100 * density:g}%"])
        for backend in backends:
            dense = found[backend][1.0] if [*found[backend]] == [1.0] else ""
            cells[-1].append(found[backend].get(density, dense))
    return markdown(["non-zero", *(HEADS.get(b, b) for b in backends)], cells)


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


def of_the_bench() -> list[Said]:
    def one(template: str, *figures: str) -> Said:
        return Said("benchmarks/README.md", "targets.md", template, [*figures])

    over = {
        d: [of(HOSTS4, b, d)["over_limit"] for b in HOROVOD_AND_TORCH]
        for d in (1.0, 0.4, 0.1, 0.01, 0.001)
    }
    dense = [ratio for d in (1.0, 0.4, 0.1) for ratio in over[d]]
    at_1, at_tenth = ([f"{ratio:.1f}" for ratio in over[d]] for d in (0.01, 0.001))
    host1 = min(times("host1", "omnihvd", b) for b in ("gloo", horovod("host1")))
    in_common = [
        max(times("hosts4-patterns", b, "agsparse", d, p) for b in ("omnihvd", "omnihvd-dedicated"))
        for p in ("identical", "zipf")
        for d in (0.1, 0.01, 0.001)
    ]
    not_in_common = [times(HOSTS4, "omnihvd", "agsparse", d) for d in (0.1, 0.01)]
    not_in_common += [
        times("hosts4-patterns", "omnihvd", "agsparse", d, "disjoint") for d in (0.1, 0.01)
    ]
    few = (0.01, "elements")
    elements = [
        ms("hosts4-elements", "omnihvd", *few),
        cpu("hosts4-elements", "omnihvd", *few),
        ms("hosts4-elements", "agsparse", *few),
        cpu("hosts4-elements", "agsparse", *few),
        f"{times('hosts4-elements', 'omnihvd', 'agsparse', *few):.1f}",
        f"{times('hosts4-elements', 'omnihvd', 'agsparse-of-dense', *few):.1f}",
    ]
    eight = "hosts8-500mbit"
    both = [ms(f"streams-{n}", "omnihvd-torch", d) for n in (1, 2) for d in (1.0, 0.1)]
    codec, plain = of("hosts4-codecs", "omnihvd-natural"), horovod("hosts4-codecs")
    sent = mean(c["bytes_sent"] for c in codec["counters"])
    encrypted = [ms(f"encrypt-{n}", "omnihvd", d) for n in (0, 1) for d in (1.0, 0.1)]
    return [
        Said(
            "README.md",
            f"{HOSTS4}.json",
            "That is {} to {} times the limit (the wire bound, or one read of the tensors by all "
            "ranks) down to 10%, {} and {} times at 1%, {} and {} at 0.1%",
            [f"{min(dense):.2f}", f"{max(dense):.2f}", *at_1, *at_tenth],
        ),
        one("1%: {} times the limit under Horovod, {} under torch.distributed", *at_1),
        one(
            "({} times as fast, at {} times the limit, as Gloo at {})",
            f"{times(HOSTS4, 'omnihvd', 'gloo'):.3f}",
            *(f"{of(HOSTS4, b)['over_limit']:.2f}" for b in ("omnihvd", "gloo")),
        ),
        one("best peer on one host {}.", f"{host1:.3f}"),
        one("dense take {} ms with one engine thread a rank, 10% {} ms", *both[:2]),
        one("(`OMNIHVD_STREAMS=2`) {} and {} (", *both[2:]),
        one("Zipf: {} to {})", f"{min(in_common):.1f}", f"{max(in_common):.1f}"),
        one("10 and 1%: {} to {};", f"{min(not_in_common):.1f}", f"{max(not_in_common):.1f}"),
        one(
            "for four hosts: {} ms ({} processor seconds a GB), against {} ({}): {} times as fast, "
            "where 2 was the target, and {} times as fast as allgather",
            *elements,
        ),
        one(
            "take {} s/GB under Horovod and {} under torch.distributed, Gloo {}",
            *(cpu(HOSTS4, b) for b in (*HOROVOD_AND_TORCH, "gloo")),
        ),
        one("Dense and colocated {}: each", copies("1")),
        one("With sparse tensors more ({} at 10%)", copies("0.1")),
        one("At 10% it is {} and {}.", *(cpu(HOSTS4, b, 0.1) for b in HOROVOD_AND_TORCH)),
        one("Plain Horovod takes {},", cpu(HOSTS4, horovod(HOSTS4))),
        one(
            "{} times as fast as Gloo colocated ({} times the limit; {} processor seconds",
            f"{times(eight, 'omnihvd', 'gloo'):.2f}",
            f"{of(eight, 'omnihvd')['over_limit']:.2f}",
            cpu(eight, "omnihvd"),
        ),
        one("for eight hosts), {} dedicated", f"{times(eight, 'omnihvd-dedicated', 'gloo'):.2f}"),
        Said(
            "docs/codecs.md",
            "hosts4-codecs.json",
            "takes {} ms under Horovod, where Horovod alone takes {}, and {} ms under "
            "torch.distributed, where Gloo takes {}: {} and {} times as fast. {}% of the bytes "
            "travel that a ring sends for plain float32; the link alone takes {} ms",
            [
                *(ms("hosts4-codecs", b) for b in ("omnihvd-natural", plain)),
                *(ms("hosts4-codecs", b) for b in ("omnihvd-torch-natural", "gloo")),
                f"{times('hosts4-codecs', 'omnihvd-natural', plain):.1f}",
                f"{times('hosts4-codecs', 'omnihvd-torch-natural', 'gloo'):.1f}",
                f"{100 * sent / 150e6:.1f}",
                in_ms(sent / codec["link_rate"]),
            ],
        ),
        Said(
            "docs/architecture.md",
            "encrypt-0.json, encrypt-1.json",
            "{} / {} ms without, {} / {} with.",
            encrypted,
        ),
    ]


def copies(density: str) -> str:
    """Of the first table of targets.md that has them, hosts4-1gbit's."""
    lines = [line.split(" | ") for line in load("targets.md").splitlines()]
    header = next(line for line in lines if line[-1] == "omnihvd-torch copies |")
    row = next(line for line in lines if line[1:4] == ["100 MB float32", "random", density])
    return row[header.index("omnihvd copies")]


def of_latency() -> list[Said]:
    found = re.findall(
        r"omnihvd-torch \| (\S+) \S+ \| ([\d.]+)% \| (.*) \|$", load("latency.md"), re.M
    )
    at = {(size, share): [*map(float, r.split(" | "))] for size, share, r in reversed(found)}
    whole, framework, _, look, _, rounds, _, limit = at["100", "0.1"]  # of 2 hosts, the first
    *_, four_look = [r for size, share, r in found if (size, share) == ("100", "0.1")]

    def one(template: str, *figures: float) -> Said:
        text = [f"{figure:.1f}" for figure in figures]
        return Said("benchmarks/README.md", "latency.md", template, text)

    return [
        one("0.1% of 100 MB takes {} ms, {} times the limit, where", whole, whole / limit),
        one("{} ms of them look for the non-zero blocks, where the limit has {}", look, limit),
        one("plain read; {} are rounds behind the look, and {} PyTorch's", rounds, framework),
        one("1 MB dense takes {} ms, of which {} look", at["1", "100.0"][0], at["1", "100.0"][3]),
        one("1% non-zero {} ms, {} of it outside", *at["262.1", "1.0"][:2]),
        Said(
            "benchmarks/README.md",
            "latency.md",
            "look at 100 MB four times in {} ms",
            [f"{float(four_look.split(' | ')[3]):.0f}"],
        ),
    ]
