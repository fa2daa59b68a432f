"""What is said of simulated sums."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from benchmarks.said.results import Said, load
from omnihvd.bench.report import markdown
from omnihvd.rates import rate_text


def levels_text(levels: list[int]) -> str:
    return " x ".join(map(str, levels)) or "one level"


def nonzero_text(point: dict[str, Any]) -> str:
    share = f"{100 * point['density']:g}%"
    return share if point["density"] == 1 else f"{share}, {point['pattern']}"


def scale() -> str:
    header = ["ranks", "aggregators", "joined", "non-zero"]
    header += ["ms", "over the bound", "ring ms", "peers"]
    cells = []
    for r in load("scale.json")["results"]:
        cells.append(
            [
                str(r["ranks"]),
                str(r["aggregators"] or "colocated"),
                levels_text(r["levels"]),
                nonzero_text(r["point"]),
                f"{1e3 * r['seconds']:.1f}",
                f"{r['seconds'] / r['bound_s']:.1f}",
                f"{1e3 * r['ring_s']:.1f}",
                str(r["most_peers"]),
            ]
        )
    return markdown(header, cells)


def speed() -> str:
    """Of the simulation itself."""
    cells = [
        [
            str(r["ranks"]),
            levels_text(r["levels"]),
            nonzero_text(r),
            f"{4e-6 * r['count']:.0f} MB",
            f"{r['events']:,}",
            f"{r['processor_s']:.1f}",
            f"{r['events'] / r['processor_s'] / 1e6:.2f}",
            f"{r['most_bytes'] / 1e9:.1f}",
        ]
        for r in load("scale_speed.json")["results"]
    ]
    header = ["ranks", "joined", "non-zero", "tensor", "events"]
    return markdown([*header, "seconds", "million a second", "GB"], cells)


def joins() -> str:
    header = ["ranks", "levels", "all joined after", "a rank's processor", "first sum"]
    header += ["second sum", "a process's memory", "connections"]
    cells = [
        [
            str(r["ranks"]),
            "one" if r["levels"] == str(r["ranks"]) else "by itself",
            f"{r['join_s']:.2f} s",
            f"{1e3 * r['join_cpu_s']:.1f} ms",
            f"{r['first_sum_s']:.2f} s",
            f"{r['second_sum_s']:.2f} s",
            f"{r['mb']:.1f} MB",
            str(r["connections"]),
        ]
        for r in load("join.json")["joins"]
    ]
    return markdown(header, cells)


def goal() -> str:
    header = ["links", "ranks", "aggregators", "joined", "tensor", "non-zero", "messages"]
    header += ["ms", "by LogGOPSim"]
    cells = [
        [
            rate_text(r["rate"]),
            str(r["ranks"]),
            str(r["aggregators"] or "colocated"),
            levels_text(r["levels"]),
            f"{r['megabytes']} MB",
            f"{100 * r['density']:g}%",
            f"{r['messages']:,}",
            f"{1e3 * r['seconds']:.3f}",
            f"{1e3 * r['loggopsim_s']:.3f}",
        ]
        for r in load("goal.json")["results"]
    ]
    return markdown(header, cells)


def errors() -> str:
    """Of sums of the larger tensor."""
    times = load("simulation.json")["times"]
    large = max(time["count"] for time in times)
    errors = {
        (t["hosts"], t["rate"], t["predicted"], t["density"]): t["error"]
        for t in times
        if t["count"] == large
    }
    networks = dict.fromkeys(key[:3] for key in errors)
    densities = list(dict.fromkeys(key[3] for key in errors))
    cells = [
        [
            f"{hosts} hosts, {rate_text(rate)}",
            "predicted" if predicted else "known",
            *(f"{100 * errors[hosts, rate, predicted, one]:+.0f}%" for one in densities),
        ]
        for hosts, rate, predicted in networks
    ]
    return markdown(["links", "", *(f"{100 * one:g}% non-zero" for one in densities)], cells)


def of_scale() -> list[Said]:
    result = load("simulation.json")
    off = [abs(time["error"]) for time in result["times"] if time["predicted"]]
    known = [abs(time["error"]) for time in result["times"] if not time["predicted"]]
    costs = result["costs"]

    def one(template: str, *figures: str) -> Said:
        return Said("docs/scale.md", "simulation.json", template, [*figures])

    by_ranks = {
        (r["ranks"], r["aggregators"], bool(r["levels"])): r["seconds"]
        for r in load("scale.json")["results"]
        if r["point"]["pattern"] == "identical"
    }
    levels = by_ranks[4096, 0, True] / by_ranks[64, 0, True]
    flat = by_ranks[4096, 64, False] / by_ranks[64, 64, False]
    template = "is met so, with {}; on one level and 64 aggregators it is missed, with {}"
    heard = max(load("join.json")["heard"], key=lambda r: r["ranks"])
    joins = load("join.json")["joins"]
    first = [1e3 * r["join_cpu_s"] for r in joins]
    return [
        Said(
            "docs/scale.md",
            "join.json",
            "a rank itself needs {} to {} ms of a processor",
            [f"{min(first):.0f}", f"{max(first):.0f}"],
        ),
        Said(
            "docs/scale.md",
            "join.json",
            "A process that hears 4,096 introductions, of {} bytes each, has joined after {} ms, "
            "and needs {} MB",
            [
                str(heard["introduction_bytes"]),
                f"{1e3 * heard['seconds']:.0f}",
                f"{heard['mb']:.0f}",
            ],
        ),
        Said("docs/scale.md", "scale.json", template, [f"{levels:.2f}", f"{flat:.0f}"]),
        one(
            "the predicted times are off by {}% on average, and by {}% at most; those from which "
            "the costs were found by {}%",
            *(f"{100 * error:.0f}" for error in (fmean(off), max(off), fmean(known))),
        ),
        one(
            "{} us for a message, {} ns for each of its bytes, {} ns to look at a byte of the "
            "tensor, and {} ms before",
            f"{1e6 * costs['message_s']:.2g}",
            f"{1e9 * costs['byte_s']:.2g}",
            f"{1e9 * costs['inspected_s']:.2g}",
            f"{1e3 * costs['begin_s']:.2g}",
        ),
    ]
