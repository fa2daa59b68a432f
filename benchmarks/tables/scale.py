"""Tables of simulated sums."""

from __future__ import annotations

from typing import Any

from benchmarks.bench.report import markdown
from benchmarks.tables.results import load
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
    """The simulation's own speed."""
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
    """Errors for sums of the larger tensor."""
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
