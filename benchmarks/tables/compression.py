"""Tables of compression: methods on three tasks, delay control, orders of blocks, one budget."""

from __future__ import annotations

from math import inf
from statistics import mean, pstdev
from typing import Any

from benchmarks.bench.report import markdown
from benchmarks.tables.results import in_ms, load  # adds compared's folder

from compared import ORDERED, WAYS  # isort: skip


# --- methods ------------------------------------------------------------------------------------

TASKS = {"words": "loss, words", "digits": "accuracy, digits", "ratings": "RMSE, ratings"}
SHOWN = {  # by their names in benchmarks/evaluation
    "none": "OmniReduce alone",
    "fp16": "Horovod's fp16",
    "int8": "`int8()`",
    "natural": "`natural()`",
    "qsgd 4 bits": "`qsgd(bits=4)`",
    "int4": "`int4()`",
    "one_bit": "`one_bit()`",
    "terngrad": "`terngrad()`",
    "block_topk 10%": "`block_topk(0.1)`",
    "block_topk": "`block_topk(0.01)`",
    "topk": "`topk(0.01)`",
    "topk_threshold": "`topk_threshold(t)`",
    "sidco": "`sidco(0.01)`",
    "dgc": "`dgc(0.01)`",
    "power_sgd": "`power_sgd(1)`",
    "signum": "`signum()`",
    "eight_bit": "`eight_bit()`",
}


def methods() -> str:
    """Bytes and times with words at 1 Gbit/s, and the quality of three tasks."""
    cells = []
    for method, title in SHOWN.items():
        (fast,) = (e for e in load("evaluation/words-1gbit.json") if e["method"] == method)
        cells.append([title, f"{fast['bytes'] / 1e3:.0f}", in_ms(fast["step_seconds"])])
        for task in TASKS:
            found = load(f"evaluation/{task}-quality.json")
            ends = [e["curve"][-1][1] for e in found if e["method"] == method]
            cells[-1].append(f"{mean(ends):.3f} ± {pstdev(ends):.3f}")
    return markdown(["", "kB, words", "ms a step, words", *TASKS.values()], cells)


# --- delay control ------------------------------------------------------------------------------

TARGETS = {"mixed": (4.8, 4.6, 4.4), "low": (1.6, 1.4, 1.2), "high": (1.6, 1.4, 1.2)}  # nats


def scenarios() -> dict[str, Any]:
    return dict(load("delay_control.json")["scenarios"])


def runs(scenario: str) -> dict[str, list[dict[str, Any]]]:
    """By name, one of each seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in scenarios()[scenario]["runs"]:
        found.setdefault(run["name"], []).append(run)
    return found


def _firsts(target: float, of_seeds: list[dict[str, Any]]) -> list[float]:
    """Seconds to the loss, for each seed; infinite: it is not reached."""
    return [next((s for s, now in run["losses"] if now <= target), inf) for run in of_seeds]


def _seconds_to(target: float, of_seeds: list[dict[str, Any]], scenario: str) -> str:
    """Mean over seeds, if all of them get there, and how far they are from it at most."""
    firsts = _firsts(target, of_seeds)
    if max(firsts) == inf:
        return f"not in {scenarios()[scenario]['seconds']:g} s"
    spread = f" ± {max(firsts) - mean(firsts):.1f}" if len(firsts) > 1 else ""
    return f"{mean(firsts):.1f}{spread}"


def delay_control() -> str:
    """Seconds to each of the losses."""
    cells = [
        [name, *(_seconds_to(target, run, "mixed") for target in TARGETS["mixed"])]
        for name, run in runs("mixed").items()
    ]
    return markdown(["", *map(str, TARGETS["mixed"])], cells)


def delay_control_varied() -> str:
    both = {name: runs(name) for name in ("low", "high") if name in scenarios()}
    heads = [f"{s} variation: {target:g}" for s in both for target in TARGETS[s]]
    cells = []
    for name in dict.fromkeys(name for found in both.values() for name in found):
        cells.append([name])
        for scenario, found in both.items():
            for target in TARGETS[scenario]:
                there = found.get(name)
                cells[-1].append(_seconds_to(target, there, scenario) if there else "")
    for name in (name for name in next(iter(both.values())) if name.startswith("delay")):
        cells.append([f"{name}, times the best ratio's seconds"])
        for scenario, found in both.items():
            for target in TARGETS[scenario]:
                means = {n: mean(_firsts(target, of)) for n, of in found.items()}
                best = min(seconds for n, seconds in means.items() if n.startswith("block_topk"))
                both_get_there = best < inf and means[name] < inf
                cells[-1].append(f"{means[name] / best:.2f}" if both_get_there else "")
    return markdown(["", *heads], cells)


# --- other experiments ----------------------------------------------------------------------------

ORDERS = {"1": "each rank", "0": "each host"}


def host_order() -> str:
    """Bytes, times and quality of both orders."""
    entries = load("host_order.json")["results"]
    heads = ["hosts x ranks", "", "who compresses", "kB that a host sends", "ms a step", "AUC"]
    cells = []
    for layout in ("2x2", "2x4"):
        for method in ORDERED:
            for first, who in ORDERS.items():
                key = {"layout": layout, "method": method, "first": first}
                same = [e for e in entries if all(e[k] == key[k] for k in key)]
                links = [e for e in same if e["part"] == "links"]
                ends_ = [e["end"] for e in same if e["part"] == "quality"]
                sent = f"{links[0]['bytes'] / 1e3:.0f}" if links else ""
                took = in_ms(links[0]["step_s"]) if links else ""
                spread_ = f"{mean(ends_):.4f} ± {pstdev(ends_):.4f}" if ends_ else ""
                cells.append(
                    [layout.replace("x", " x "), WAYS[method].title, who, sent, took, spread_]
                )
    return markdown(heads, cells)


CERTIFIED = ("rate", "momentum", "method", "floor")


def certificate() -> str:
    """When the certificate warned, and when the loss did."""
    entries = load("certificate.json")["results"]
    heads = ["rate, momentum", "method", "cosine", "gauge warns", "loss warns", "last loss", "sent"]
    cells = []
    for key in dict.fromkeys(tuple(map(e.get, CERTIFIED)) for e in entries):
        rate, momentum, method, floor = key
        found = [e for e in entries if tuple(map(e.get, CERTIFIED)) == key]
        name = "none" if method == "none" else f"`{method}`" + f", floor {floor}" * bool(floor)
        cosine = "" if method == "none" else f"{mean(e['cosine'] for e in found):.2f}"
        warned = [
            ", ".join("never" if e[alarm] is None else str(e[alarm]) for e in found)
            for alarm in ("gauge", "loss")
        ]
        last = mean(e["last"] for e in found)
        sent = f"{100 * mean(e['sent'] for e in found):.3g}%"
        cells.append([f"{rate}, {momentum}", name, cosine, *warned, f"{last:.2f}", sent])
    return markdown(heads, cells)


def total_budget() -> str:
    """Hard threshold and Top-k that send as many elements in all."""
    entries = load("total_budget.json")["results"]
    heads = ["", "sent", "total error, Top-k over threshold", "threshold", "Top-k"]
    measures = {"digits": "accuracy", "words": "loss", "ratings": "RMSE"}
    cells = []
    for task, measure in measures.items():
        both = [
            [e for e in entries if (e["task"], e["method"]) == (task, method)]
            for method in ("topk_threshold", "topk")
        ]
        if not all(both):
            continue
        shares = [f"{100 * mean(e['sent'] for e in found):.2f}%" for found in both]
        over = [b["total_error"] / a["total_error"] for a, b in zip(*both)]
        qualities = [[e["quality"] for e in found] for found in both]
        cells.append([f"{task}, {measure}", " / ".join(shares)])
        cells[-1].append(f"{min(over):.2f} to {max(over):.2f}")
        cells[-1] += [f"{mean(q):.4f} ± {pstdev(q):.4f}" for q in qualities]
    return markdown(heads, cells)
