"""The map: where omnihvd is faster than its peers, over links, ranks, sizes and densities.

    sudo python benchmarks/map.py [--only PART ...] [--missing] [--backends NAME ...]

A part is a network: RATE-HOSTSxRANKS, such as 10gbit-4x2: 4 hosts with 2 ranks on each, links of
10 Gbit/s. In a part each backend is launched once for all its points, with few samples of each, in
bounded time, and three times more, in turns with the others and with more samples, for tensors of
10 MB or less, whose times vary the most; all parts take about two hours on 2 cores.
After each part, results/map.json has its raw samples, map.md the ratios to what omnihvd replaces
and to the best of all (over 1: omnihvd is faster) and the processor time of each backend, and
map.png draws the first. --only redoes parts, by name or pattern ('10gbit-*'), --backends some
backends of them, and keeps the others' results; --missing measures what is not there.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from omnihvd.bench.backends import Hosts, Job  # noqa: E402
from omnihvd.bench.command import machine  # noqa: E402
from omnihvd.bench.lab import SHARE_CORES  # noqa: E402
from omnihvd.bench.patterns import Point  # noqa: E402
from omnihvd.bench.report import DENSE, markdown, summarize  # noqa: E402

RESULTS = Path(__file__).parent / "results"
RATES = ("1gbit", "5gbit", "10gbit", "none")
LAYOUTS = ((2, 1), (4, 1), (2, 2))  # hosts, ranks on each
LAYOUTS_OF_MANY = ((8, 1), (4, 2))  # in which Open MPI alone takes minutes on 2 cores
RATES_OF_MANY = ("1gbit", "10gbit")
SIZES = (262_144, 1_000_000, 10_000_000, 100_000_000)  # bytes
DENSITIES = (1.0, 0.4, 0.1, 0.01, 0.001)
DENSITIES_OF_MANY = (1.0, 0.1, 0.01)  # where 8 ranks take turns on the cores
OURS = ("omnihvd", "omnihvd-torch")
BACKENDS = (*OURS, *DENSE)
TARGET = 0.97  # of the speed of what is replaced, everywhere


class Comparison(NamedTuple):
    title: str
    ours: str
    peers: tuple[str, ...]


# The first two: what a user has without omnihvd.
UNDER_HOROVOD = Comparison(
    "Under Horovod, against Horovod over Open MPI, the faster of its default and its ring",
    "omnihvd",
    ("horovod", "horovod-ring"),
)
UNDER_TORCH = Comparison("Under torch.distributed, against Gloo", "omnihvd-torch", ("gloo",))
COMPARISONS = (
    UNDER_HOROVOD,
    UNDER_TORCH,
    Comparison("Under Horovod, against the best of all", "omnihvd", DENSE),
)

# Of each point and launch: samples for a median where they are short, at least one where not.
SAMPLES, MAX_SECONDS = 8, 1.5
SMALL, LAUNCHES_OF_SMALL, SAMPLES_OF_SMALL = 10_000_000, 4, 32  # bytes
LAUNCH_TIMEOUT_S = 240.0


class Part(NamedTuple):
    rate: str  # "none": unshaped
    hosts: int
    per_host: int

    @property
    def name(self) -> str:
        return f"{self.rate}-{self.hosts}x{self.per_host}"

    @property
    def layout(self) -> str:
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        return f"{hosts}, {self.per_host} rank{'s' * (self.per_host > 1)} a host"


# On one host there is no link, and one rate stands for all.
PARTS = [
    Part("none", 1, 2),
    Part("none", 1, 4),
    *(Part(rate, *layout) for rate in RATES for layout in LAYOUTS),
    *(Part(rate, *layout) for rate in RATES_OF_MANY for layout in LAYOUTS_OF_MANY),
]


def points_of(backend: str, ranks: int) -> list[Point]:
    """Large ones last. Dense schemes take the same time at all densities."""
    densities = (1.0,) if backend in DENSE else DENSITIES if ranks < 8 else DENSITIES_OF_MANY
    return [Point(size // 4, density) for size in SIZES for density in densities]


# --- measuring --------------------------------------------------------------------------------


def measure(part: Part, backends: Sequence[str], share_cores: bool) -> list[dict[str, Any]]:
    """Results of all backends; of those that fail, what that launch measured is lost."""
    ranks = part.hosts * part.per_host
    rate = None if part.rate == "none" else part.rate
    network = Hosts(ranks, rate, per_host=part.per_host, share_cores=share_cores)
    answers: dict[str, list[dict[str, Any]]] = {backend: [] for backend in backends}
    try:
        link = network.link_rate(seconds=1)
        for launch in range(LAUNCHES_OF_SMALL):
            for backend in backends:
                start = time.monotonic()
                points = points_of(backend, ranks)
                if launch > 0:
                    points = [point for point in points if point.bytes <= SMALL]
                samples = SAMPLES_OF_SMALL if launch > 0 else SAMPLES
                job = Job(backend, points, 0, samples, LAUNCH_TIMEOUT_S, MAX_SECONDS)
                try:
                    answers[backend] = pooled(answers[backend] + network.launch(job))
                except subprocess.SubprocessError as why:
                    print(f"  {backend}: {why}", file=sys.stderr, flush=True)
                print(f"  {backend}: {time.monotonic() - start:.0f} s", flush=True)
    finally:
        network.close()
    return [
        summarize(backend, answer, ranks, link, part.per_host)
        for backend in backends
        for answer in answers[backend]
    ]


def pooled(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the answers about one point, one: with the samples of all, and the mean of their times."""
    found: dict[str, list[dict[str, Any]]] = {}
    for answer in answers:
        found.setdefault(json.dumps(answer["point"]), []).append(answer)
    together = []
    for those in found.values():
        samples = [sample for answer in those for sample in answer["samples"]]
        cpu = sum(answer["cpu_s"] * len(answer["samples"]) for answer in those) / len(samples)
        together.append({**those[0], "samples": samples, "cpu_s": cpu})
    return together


# --- what comes of it -------------------------------------------------------------------------


def by_point(results: list[dict[str, Any]]) -> dict[tuple[str, int, float], dict[str, Any]]:
    """By backend, bytes and density; a dense scheme's one result stands for all densities."""
    found = {}
    for r in results:
        point = Point(**r["point"])
        for density in DENSITIES if r["backend"] in DENSE else (point.density,):
            found[r["backend"], point.bytes, density] = r
    return found


def ratios(results: list[dict[str, Any]], what: Comparison) -> dict[tuple[int, float], float]:
    """By bytes and density: the best peer's time over omnihvd's."""
    found = by_point(results)
    answer = {}
    for size in SIZES:
        for density in DENSITIES:
            peers = [
                found[b, size, density]["median_s"]
                for b in what.peers
                if (b, size, density) in found
            ]
            if peers and (what.ours, size, density) in found:
                answer[size, density] = min(peers) / found[what.ours, size, density]["median_s"]
    return answer


def size_text(size: int) -> str:
    return f"{size / 1e6:g} MB" if size >= 1e6 else f"{size / 1024:g} KiB"


def density_text(density: float) -> str:
    return f"{100 * density:g}%"


def ratio_table(parts: dict[str, list[dict[str, Any]]], what: Comparison) -> str:
    header = ["links", "layout", "tensor", *map(density_text, DENSITIES), "best peer", "its ms"]
    rows = []
    for part in PARTS:
        results = parts.get(part.name, [])
        found, ratio = by_point(results), ratios(results, what)
        for size in SIZES:
            peers = {
                b: found[b, size, 1.0]["median_s"] for b in what.peers if (b, size, 1.0) in found
            }
            if not peers:
                continue
            best = min(peers, key=lambda b: peers[b])
            cells = [f"{ratio[size, d]:.2f}" if (size, d) in ratio else "" for d in DENSITIES]
            rows.append([part.rate, part.layout, size_text(size), *cells, best])
            rows[-1].append(f"{1e3 * peers[best]:.1f}")
    return markdown(header, rows)


def cpu_table(parts: dict[str, list[dict[str, Any]]]) -> str:
    """Processor seconds of all ranks for a GB of tensor, where it is the data that costs."""
    columns = [(b, density) for b in OURS for density in DENSITIES] + [(b, 1.0) for b in DENSE]
    header = ["links", "layout", "tensor"]
    header += [f"{b} {density_text(d)}" if b in OURS else b for b, d in columns]
    rows = []
    for part in PARTS:
        found = by_point(parts.get(part.name, []))
        for size in SIZES[-2:]:
            if not any((b, size, d) in found for b, d in columns):
                continue
            cells = [found.get((b, size, d), {}).get("cpu_s_per_gb") for b, d in columns]
            rows.append([part.rate, part.layout, size_text(size)])
            rows[-1] += ["" if cell is None else f"{cell:.1f}" for cell in cells]
    return markdown(header, rows)


def verdict(parts: dict[str, list[dict[str, Any]]], what: Comparison) -> str:
    all_ratios = {
        (part.name, size, density): ratio
        for part in PARTS
        for (size, density), ratio in ratios(parts.get(part.name, []), what).items()
    }
    if not all_ratios:
        return "nothing was measured"
    good = sum(ratio >= TARGET for ratio in all_ratios.values())
    worst = min(all_ratios, key=lambda key: all_ratios[key])
    name, size, density = worst
    return (
        f"{good} of {len(all_ratios)} points at {TARGET} times its speed or more; the worst, "
        f"{all_ratios[worst]:.2f}: {name}, {size_text(size)}, {density_text(density)}"
    )


def plot(parts: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """A heat map of ratios for each network: blue where omnihvd is faster, red where slower."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = {part: ratios(parts.get(part.name, []), UNDER_HOROVOD) for part in PARTS}
    rates = [rate for rate in RATES if any(found[p] for p in PARTS if p.rate == rate)]
    layouts = dict.fromkeys((p.hosts, p.per_host) for p in PARTS if found[p])
    figure, grid = pyplot.subplots(
        len(rates),
        len(layouts),
        figsize=(3 * len(layouts) + 1, 2.2 * len(rates) + 0.6),
        squeeze=False,
        layout="constrained",
    )
    for row, rate in zip(grid, rates):
        for axes, layout in zip(row, layouts):
            part = Part(rate, *layout)
            if found.get(part):
                image = _heat_map(axes, part, found[part])
            else:
                axes.axis("off")
    figure.suptitle(
        "Times as fast as plain Horovod (bold: slower)\nfloat32, random non-zero blocks; x: their "
        "share, y: tensor",
        fontsize=9,
    )
    bar = figure.colorbar(image, ax=grid, shrink=0.8)
    bar.set_ticks([-2, -1, 0, 1, 2], labels=["1/4", "1/2", "1", "2", "4"])
    figure.savefig(path, dpi=110)


def _heat_map(axes: Any, part: Part, ratio: dict[tuple[int, float], float]) -> Any:
    cells = [[ratio.get((size, d), math.nan) for d in DENSITIES] for size in SIZES]
    logs = [[math.log2(cell) for cell in line] for line in cells]
    image = axes.imshow(logs, cmap="RdBu", vmin=-2, vmax=2, aspect="auto")
    for y, line in enumerate(cells):
        for x, cell in enumerate(line):
            axes.text(
                x,
                y,
                "" if math.isnan(cell) else f"{cell:.2f}" if cell < 9.5 else f"{cell:.0f}",
                ha="center",
                va="center",
                fontsize=8,
                fontweight="bold" if cell < TARGET else "normal",
                color="white" if abs(logs[y][x]) > 1.4 else "black",
            )
    links = "" if part.hosts == 1 else "unshaped; " if part.rate == "none" else part.rate + "; "
    axes.set_title(links + part.layout, fontsize=8)
    axes.set_xticks(range(len(DENSITIES)), map(density_text, DENSITIES), fontsize=7)
    axes.set_yticks(range(len(SIZES)), map(size_text, SIZES), fontsize=7)
    return image


def write(content: dict[str, Any], output: Path) -> None:
    """The JSON file, the tables and the plot."""
    parts = content["parts"]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=1))
    text = "Made by `benchmarks/map.py`; how many times as fast, by the share of non-zero blocks.\n"
    for what in COMPARISONS:
        text += f"\n## {what.title}\n\n{verdict(parts, what)}.\n\n{ratio_table(parts, what)}\n"
    text += (
        "\n## Processor seconds, user and system, of all ranks together, while they reduce a GB of "
        f"tensors\n\n{cpu_table(parts)}\n"
    )
    output.with_suffix(".md").write_text(text)
    if any(ratios(results, UNDER_HOROVOD) for results in parts.values()):
        plot(parts, output.with_suffix(".png"))


def chosen(only: list[str] | None, missing: bool, have: dict[str, Any]) -> list[Part]:
    parts = [p for p in PARTS if not only or any(fnmatch.fnmatch(p.name, o) for o in only)]
    return [p for p in parts if not (missing and p.name in have)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="PART", help="names or patterns of parts")
    parser.add_argument("--missing", action="store_true", help="only parts without results")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--list", action="store_true", help="name the parts, and measure nothing")
    parser.add_argument("--share-cores", action="store_true", help=SHARE_CORES)
    parser.add_argument("--output", type=Path, default=RESULTS / "map.json")
    args = parser.parse_args()
    content: dict[str, Any] = {"configuration": {}, "parts": {}}
    if args.output.exists():
        content = json.loads(args.output.read_text())
    parts = chosen(args.only, args.missing, content["parts"])
    if args.list:
        print("\n".join(part.name for part in parts))
        return
    if os.geteuid() != 0:
        parser.error("hosts with links need root")
    if args.only and not parts and not args.missing:
        parser.error(f"no part is called {' '.join(args.only)}; --list names them")
    for i, part in enumerate(parts, 1):
        print(f"== {part.name} ({i} of {len(parts)})", flush=True)
        start = time.monotonic()
        kept = [
            result
            for result in content["parts"].get(part.name, [])
            if result["backend"] not in args.backends
        ]
        content["parts"][part.name] = kept + measure(part, args.backends, args.share_cores)
        content["configuration"][part.name] = {
            **machine(),
            "share_cores": args.share_cores,
            "seconds": round(time.monotonic() - start),
        }
        write(content, args.output)
    write(content, args.output)
    for what in COMPARISONS:
        print(f"{what.title}: {verdict(content['parts'], what)}")


if __name__ == "__main__":
    main()
