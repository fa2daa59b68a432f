"""Tables of compression: methods on three tasks, delay control, orders of blocks, one budget."""

from __future__ import annotations

from math import inf
from statistics import mean
from typing import Any

from benchmarks.bench.report import markdown
from benchmarks.delay_control import KINDS, TARGETS, behind, by_name, seconds_to
from benchmarks.tables.results import (  # adds compared's folder
    ends,
    in_ms,
    load,
    pieces,
    spread,
    step_s,
)

from compared import ORDERED, WAYS  # isort: skip


# --- methods ------------------------------------------------------------------------------------

TASKS = {"words": "loss, words", "digits": "accuracy, digits", "ratings": "RMSE, ratings"}
SHOWN = {  # by their names in benchmarks/evaluation
    "horovod": "Horovod at its best",
    "none": "OmniReduce alone",
    "fp16": "Horovod's fp16",
    "int8": "`int8()`",
    "natural": "`natural()`",
    "qsgd 4 bits": "`qsgd(bits=4)`",
    "int4": "`int4()`",
    "one_bit": "`one_bit()`",
    "terngrad": "`terngrad()`",
    "natural_dithering": "`natural_dithering()`",
    "ef_sign": "`ef_sign()`",
    "one_bit_sgd": "`one_bit_sgd()`",
    "block_topk 10%": "`block_topk(0.1)`",
    "block_topk": "`block_topk(0.01)`",
    "topk": "`topk(0.01)`",
    "topk_threshold": "`topk_threshold(t)`",
    "sidco": "`sidco(0.01)`",
    "dgc": "`dgc(0.01)`",
    "power_sgd": "`power_sgd(1)`",
    "sign_sgd": "`sign_sgd()`",
    "signum": "`signum()`",
    "eight_bit": "`eight_bit()`",
}


def methods() -> str:
    """Bytes and times with words at 1 Gbit/s, and the quality of three tasks."""
    cells = []
    for method, title in SHOWN.items():
        sent = mean(piece["bytes"] for piece in pieces("words", "1gbit", method))
        cells.append([title, f"{sent / 1e3:.0f}", in_ms(step_s("words", "1gbit", method))])
        cells[-1] += [spread(ends(task, method), 3) for task in TASKS]
    return markdown(["", "kB, words", "ms a step, words", *TASKS.values()], cells)


# --- delay control ------------------------------------------------------------------------------


def scenarios() -> dict[str, Any]:
    return dict(load("delay_control.json")["scenarios"])


def runs(scenario: str) -> dict[str, list[dict[str, Any]]]:
    return by_name(scenarios()[scenario]["runs"])


def _seconds_to(target: float, of_seeds: list[dict[str, Any]], scenario: str) -> str:
    """Mean over seeds and their range, if all of them get there, and how many seeds there are where
    others have more."""
    firsts = [seconds_to(target, run) for run in of_seeds]
    most = max(map(len, runs(scenario).values()))
    seeds = [f"{len(firsts)} seeds"] * (len(firsts) < most)
    if max(firsts) == inf:
        return "; ".join([f"not in {scenarios()[scenario]['seconds']:g} s", *seeds])
    range_ = [f"{min(firsts):.1f} to {max(firsts):.1f}"] * (len(firsts) > 1)
    said = "; ".join([*range_, *seeds])
    return f"{mean(firsts):.1f}" + f" ({said})" * bool(said)


def delay_control() -> str:
    """Seconds to each of the losses."""
    cells = [
        [name, *(_seconds_to(target, run, "mixed") for target in TARGETS["mixed"])]
        for name, run in runs("mixed").items()
    ]
    return markdown(["", *map(str, TARGETS["mixed"])], cells)


def delay_control_varied() -> str:
    """Also each control's seconds over the best fixed ratio's of its kind, of the seeds that all
    have, and the difference in readings of the loss."""
    both = {name: runs(name) for name in ("low", "high") if name in scenarios()}
    heads = [f"{s} variation: {target:g}" for s in both for target in TARGETS[s]]
    cells = []
    for name in dict.fromkeys(name for found in both.values() for name in found):
        cells.append([name])
        for scenario, found in both.items():
            for target in TARGETS[scenario]:
                there = found.get(name)
                cells[-1].append(_seconds_to(target, there, scenario) if there else "")
    for name, kind in KINDS.items():
        row = [f"{name}, times the best ratio's seconds (readings behind)"]
        for scenario, found in both.items():
            fixed = [of for other, of in found.items() if other.startswith(kind)]
            for target in TARGETS[scenario]:
                over = behind(target, found.get(name, []), fixed)
                row.append(f"{over[0]:.2f} ({over[1]:.1f})" if over else "")
        if any(row[1:]):
            cells.append(row)
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
                cells.append([layout.replace("x", " x "), WAYS[method].title, who, sent, took])
                cells[-1].append(spread(ends_, 4))
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


BUDGETED = {  # those that send as much as the first does
    "topk_threshold": "threshold",
    "topk": "Top-k",
    "global_topk": "global Top-k",
}


def total_budget() -> str:
    """Hard threshold and Top-k that send as many elements in all. A column of a method that some
    task does not have yet is left out."""
    entries = load("total_budget.json")["results"]
    measures = {"digits": "accuracy", "words": "loss", "ratings": "RMSE"}
    found = {
        (task, method): [e for e in entries if (e["task"], e["method"]) == (task, method)]
        for task in measures
        for method in BUDGETED
    }
    there = [method for method in BUDGETED if all(found[task, method] for task in measures)]
    heads = ["", "sent", *(f"total error, {BUDGETED[m]} over threshold" for m in there[1:])]
    cells = []
    for task, measure in measures.items():
        of = {method: {e["seed"]: e for e in found[task, method]} for method in there}
        shares = [f"{100 * mean(e['sent'] for e in of[m].values()):.2f}%" for m in there]
        cells.append([f"{task}, {measure}", " / ".join(shares)])
        for method in there[1:]:
            first, other = of["topk_threshold"], of[method]
            over = [other[s]["total_error"] / first[s]["total_error"] for s in first if s in other]
            cells[-1].append(f"{min(over):.2f} to {max(over):.2f}")
        cells[-1] += [spread([e["quality"] for e in of[m].values()], 4) for m in there]
    return markdown([*heads, *(BUDGETED[method] for method in there)], cells)
