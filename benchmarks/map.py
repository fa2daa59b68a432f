"""The map: where omnihvd is faster than its peers, over links, ranks, sizes and densities.

    sudo python benchmarks/map.py [--only PART ...] [--missing]

A part is a network: RATE-HOSTSxRANKS, such as 10gbit-4x1: 4 hosts with a rank on each, links of 10
Gbit/s. Most are such that cores are not what is measured: 2 hosts, a core for each, or links that
are slow for the cores that hosts share; the tables say where ranks are more than cores. In a part
all backends take turns at each point (benchmarks/bench/turns.py), each peer in its fastest setting
there. Tensors of up to 1 MB are summed in a new job each round, since two jobs alike may differ by
a factor there. Tensors of 100 MB have new memory in each sum, as gradients have, and kept memory,
too, where that is soon measured. All parts take about 70 minutes on 2 cores.
After each part, results/map.json has its raw samples, map.md the ratios to what omnihvd replaces
and to the best of all (over 1: omnihvd is faster), of medians and of the first ten sums' means, and
the processor time; map.png draws the first. A second job of Gloo's shows how far two jobs alike
differ where sums are short. --missing goes on where a run has ended, and measures again what
another commit has measured; --only measures parts by name or pattern ('10gbit-*').
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.backends import Hosts  # noqa: E402
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.report import markdown, summarize  # noqa: E402
from benchmarks.bench.turns import Plan, measure  # noqa: E402
from omnihvd.bench.patterns import MEMORY, Point  # noqa: E402

RESULTS = Path(__file__).parent / "results"
SIZES = (8_192, 65_536, 262_144, 1_000_000, 10_000_000, 100_000_000)  # bytes
SMALL, DATA, LARGE = 65_536, 10_000_000, SIZES[-1]  # from DATA on, it is the data that costs
DENSITIES = (1.0, 0.4, 0.1, 0.01, 0.001)
FEW_DENSITIES = (1.0, 0.1, 0.01)  # where a dense sum of a large tensor takes seconds
SMALL_DENSITIES = (1.0, 0.1)  # of tensors of a few dozen blocks
OURS = ("omnihvd", "omnihvd-torch")
PEERS = ("gloo", "horovod")  # what trainings use
CONTROL = "gloo-again"  # measured where sums are short, so that jobs differ most
BACKENDS = (*OURS, *PEERS, CONTROL)
SHORT = 1_000_000  # bytes
TARGET, TARGET_OF_FIRST = 0.97, 0.9  # of the speed of what is replaced, everywhere
CORES = os.cpu_count() or 1


class Comparison(NamedTuple):
    title: str
    ours: str
    peers: tuple[str, ...]


# The first two: what a user has without omnihvd.
UNDER_HOROVOD = Comparison(
    "Under Horovod, against Horovod over Open MPI at its best", "omnihvd", ("horovod",)
)
UNDER_TORCH = Comparison(
    "Under torch.distributed, against Gloo at its best", "omnihvd-torch", ("gloo",)
)
BEST_OF_ALL = Comparison("Under Horovod, against the best of all", "omnihvd", PEERS)
JOBS_ALIKE = Comparison("A second job of Gloo's, against Gloo", CONTROL, ("gloo",))
COMPARISONS = (UNDER_HOROVOD, UNDER_TORCH, BEST_OF_ALL, JOBS_ALIKE)
OF_FIRST = (UNDER_HOROVOD, UNDER_TORCH, JOBS_ALIKE)  # sums
# Samples for a median where they are short, at least one a turn where not. Sums of up to 1 MB vary
# by a factor of ten: a thread of the library's sleeps, or not.
PLAN = Plan(min_runs=30, large_runs=9, small_runs=300, max_seconds=1.5, rounds=3, new_jobs=True)


class Part(NamedTuple):
    rate: str  # "none": unshaped
    hosts: int
    per_host: int
    minutes: float  # that it takes, on 2 cores
    large: tuple[str, ...] = ("new",)  # memory of the largest tensors
    densities: tuple[float, ...] = DENSITIES

    @property
    def name(self) -> str:
        return f"{self.rate}-{self.hosts}x{self.per_host}"

    @property
    def layout(self) -> str:
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        return f"{hosts}, {self.per_host} rank{'s' * (self.per_host > 1)} a host"


# On one host there is no link, and one rate stands for all.
PARTS = [
    Part("none", 1, 2, 4, MEMORY),
    Part("none", 1, 4, 5.5),
    Part("1gbit", 2, 1, 7),
    Part("5gbit", 2, 1, 4.5),
    Part("10gbit", 2, 1, 4.5, MEMORY),
    Part("1gbit", 4, 1, 8.5, densities=FEW_DENSITIES),
    Part("2.5gbit", 4, 1, 8.5),
    Part("10gbit", 4, 1, 9, MEMORY),
    Part("500mbit", 8, 1, 15, densities=FEW_DENSITIES),
]


def points_of(backend: str, part: Part) -> list[Point]:
    """Large ones last. Dense schemes take the same time at all densities."""
    return [
        Point(size // 4, density, memory=memory)
        for size in SIZES
        for memory in (part.large if size == LARGE else ("kept",))
        for density in (part.densities if backend in OURS else (1.0,))
        if size > SMALL or density in SMALL_DENSITIES
        if size <= SHORT or backend != CONTROL
    ]


def measure_part(part: Part) -> dict[str, Any]:
    start = time.monotonic()
    rate = None if part.rate == "none" else part.rate
    ranks = part.hosts * part.per_host
    network = Hosts(ranks, rate, per_host=part.per_host)
    try:
        link, congestion = network.link_rate(seconds=1), network.congestion_control()
        answers = measure(network, {b: points_of(b, part) for b in BACKENDS}, PLAN)
    finally:
        network.close()
    about = {
        **machine(),
        "congestion_control": congestion,
        "seconds": round(time.monotonic() - start),
    }
    results = [summarize(answer, ranks, link, part.per_host) for answer in answers]
    return {"about": about, "results": results}


# --- what comes of it -------------------------------------------------------------------------

Results = Sequence[dict[str, Any]]
Work = tuple[int, str]  # bytes, memory
WORKS: list[Work] = [*((size, "kept") for size in SIZES[:-1]), (LARGE, "new"), (LARGE, "kept")]


def by_point(results: Results) -> dict[tuple[str, Work, float], dict[str, Any]]:
    """By backend, work and density; a dense scheme's one result stands for all densities."""
    found = {}
    for r in results:
        point = Point(**r["point"])
        for density in DENSITIES if r["backend"] in PEERS else (point.density,):
            found[r["backend"], (point.bytes, point.memory), density] = r
    return found


def ratios(
    results: Results, what: Comparison, figure: str = "median_s"
) -> dict[tuple[Work, float], float]:
    """The best peer's time over omnihvd's."""
    found = by_point(results)
    answer = {}
    for work in WORKS:
        for density in DENSITIES:
            mine = found.get((what.ours, work, density), {}).get(figure)
            peers = [found.get((b, work, density), {}).get(figure) for b in what.peers]
            if mine and any(peers):
                answer[work, density] = min(filter(None, peers)) / mine
    return answer


def work_text(work: Work) -> str:
    size, memory = work
    text = f"{size / 1e6:g} MB" if size >= 1e6 else f"{size / 1024:g} KiB"
    return text + f", {memory} memory" * (size == LARGE)


def density_text(density: float) -> str:
    return f"{100 * density:g}%"


def ratio_table(parts: dict[str, Results], what: Comparison, figure: str) -> str:
    header = ["links", "layout", "tensor", *map(density_text, DENSITIES), "best peer", "its ms"]
    rows = []
    for part in PARTS:
        results = parts.get(part.name, [])
        found, ratio = by_point(results), ratios(results, what, figure)
        for work in WORKS:
            peers = [found[b, work, 1.0] for b in what.peers if (b, work, 1.0) in found]
            peers = [peer for peer in peers if peer[figure]]
            if not peers:
                continue
            best = min(peers, key=lambda peer: peer[figure])
            ranks = part.hosts * part.per_host
            shared = f" ({ranks} ranks on {CORES} cores)" if ranks > CORES else ""
            cells = [f"{ratio[work, d]:.2f}" if (work, d) in ratio else "" for d in DENSITIES]
            rows.append([part.rate, part.layout + shared, work_text(work), *cells])
            rows[-1] += [f"{best['backend']}, {best['setting']}", f"{1e3 * best[figure]:.1f}"]
    return markdown(header, rows)


def cpu_table(parts: dict[str, Results]) -> str:
    """Processor seconds of all ranks for a GB of tensor, where it is the data that costs."""
    columns = [(b, density) for b in OURS for density in DENSITIES] + [(b, 1.0) for b in PEERS]
    header = ["links", "layout", "tensor"]
    header += [f"{b} {density_text(d)}" if b in OURS else b for b, d in columns]
    rows = []
    for part in PARTS:
        found = by_point(parts.get(part.name, []))
        for work in (work for work in WORKS if work[0] >= DATA):
            cells = [found.get((b, work, d), {}).get("cpu_s_per_gb") for b, d in columns]
            if any(cells):
                rows.append([part.rate, part.layout, work_text(work)])
                rows[-1] += ["" if cell is None else f"{cell:.1f}" for cell in cells]
    return markdown(header, rows)


def verdict(parts: dict[str, Results], what: Comparison, figure: str = "median_s") -> str:
    all_ratios = {
        (part.name, *point): ratio
        for part in PARTS
        for point, ratio in ratios(parts.get(part.name, []), what, figure).items()
    }
    if not all_ratios:
        return "nothing was measured"
    target = TARGET if figure == "median_s" else TARGET_OF_FIRST
    good = sum(ratio >= target for ratio in all_ratios.values())
    worst = min(all_ratios, key=lambda key: all_ratios[key])
    name, work, density = worst
    return (
        f"{good} of {len(all_ratios)} points at {target} times its speed or more; the worst, "
        f"{all_ratios[worst]:.2f}: {name}, {work_text(work)}, {density_text(density)}"
    )


def plot(parts: dict[str, Results], path: Path) -> None:
    """A heat map of ratios for each network: blue where omnihvd is faster, red where slower."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = [(part, ratios(parts.get(part.name, []), UNDER_HOROVOD)) for part in PARTS]
    found = [(part, ratio) for part, ratio in found if ratio]
    rows = math.ceil(len(found) / 3)
    figure, grid = pyplot.subplots(
        rows, 3, figsize=(11.5, 2.4 * rows + 0.6), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(found) :]:
        axes.axis("off")
    for axes, (part, ratio) in zip(grid.flat, found):
        image = _heat_map(axes, part, ratio)
    figure.suptitle(
        "Times as fast as plain Horovod at its best (bold: slower)\nfloat32, random non-zero "
        "blocks; x: their share, y: tensor",
        fontsize=9,
    )
    bar = figure.colorbar(image, ax=grid, shrink=0.8)
    bar.set_ticks([-2, -1, 0, 1, 2], labels=["1/4", "1/2", "1", "2", "4"])
    figure.savefig(path, dpi=110)


def _heat_map(axes: Any, part: Part, ratio: dict[tuple[Work, float], float]) -> Any:
    works = [work for work in WORKS if any((work, d) in ratio for d in DENSITIES)]
    cells = [[ratio.get((work, d), math.nan) for d in DENSITIES] for work in works]
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
    axes.set_yticks(range(len(works)), map(work_text, works), fontsize=7)
    return image


def write(content: dict[str, Any], output: Path) -> None:
    """The JSON file, the tables and the plot."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content) + "\n")
    parts = {name: part["results"] for name, part in content["parts"].items()}
    abouts = [part["about"] for part in content["parts"].values()]
    commits = sorted({about["commit"][:10] for about in abouts})
    congestion = sorted({about["congestion_control"] for about in abouts})
    text = (
        "# The map\n\n"
        f"Made by `benchmarks/map.py` at {', '.join(commits)}, with TCP's {', '.join(congestion)}; "
        "how many times as fast, by the share of non-zero blocks. Peers are in the setting named, "
        "the fastest for them at that point.\n"
    )
    for figure, title in (("median_s", ""), ("first_ten_s", "First ten sums: ")):
        for what in COMPARISONS if figure == "median_s" else OF_FIRST:
            name = title + (what.title[0].lower() + what.title[1:] if title else what.title)
            text += f"\n## {name}\n\n{verdict(parts, what, figure)}.\n\n"
            text += ratio_table(parts, what, figure) + "\n"
    text += (
        "\n## Processor seconds, user and system, of all ranks together, while they reduce a GB of "
        f"tensors\n\n{cpu_table(parts)}\n"
    )
    output.with_suffix(".md").write_text(text)
    if any(ratios(results, UNDER_HOROVOD) for results in parts.values()):
        plot(parts, output.with_suffix(".png"))


def chosen(only: list[str] | None, have: dict[str, Any]) -> list[Part]:
    """have: parts that are not to be measured again."""
    parts = [p for p in PARTS if not only or any(fnmatch.fnmatch(p.name, o) for o in only)]
    return [p for p in parts if p.name not in have]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="PART", help="names or patterns of parts")
    parser.add_argument("--missing", action="store_true", help="only parts without results")
    parser.add_argument("--list", action="store_true", help="name the parts, and measure nothing")
    parser.add_argument("--output", type=Path, default=RESULTS / "map.json")
    args = parser.parse_args()
    have: dict[str, Any] = {}
    if (args.only or args.missing) and args.output.exists():
        commit = machine()["commit"]
        parts = json.loads(args.output.read_text())["parts"]
        have = {
            name: part
            for name, part in parts.items()
            if isinstance(part, dict) and part["about"]["commit"] == commit  # older ones are lists
        }
    parts = chosen(args.only, have if args.missing else {})
    if args.list:
        print("\n".join(part.name for part in parts))
        return
    if os.geteuid() != 0:
        parser.error("hosts with links need root")
    if args.only and not parts and not args.missing:
        parser.error(f"no part is called {' '.join(args.only)}; --list names them")
    start, planned = time.monotonic(), 0.0
    whole = sum(part.minutes for part in parts)
    print(f"this takes about {whole:.0f} minutes for {len(parts)} parts; --only PART takes less")
    for i, part in enumerate(parts):
        pace = (time.monotonic() - start) / 60 / planned if planned else 1.0
        left = pace * sum(p.minutes for p in parts[i:])
        print(f"== {part.name} ({i + 1} of {len(parts)}; {left:.0f} minutes left)", flush=True)
        have[part.name] = measure_part(part)
        planned += part.minutes
        write({"parts": have}, args.output)
    for what in COMPARISONS:
        found = {name: part["results"] for name, part in have.items()}
        print(f"{what.title}: {verdict(found, what)}")


if __name__ == "__main__":
    main()
