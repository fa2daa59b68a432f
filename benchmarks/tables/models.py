"""Tables of the six models (examples/models/run.py, results/models)."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from benchmarks.bench.report import markdown
from benchmarks.tables.results import RESULTS, in_ms, load, spread  # adds compared's folder
from omnihvd.bench.patterns import BLOCK
from omnihvd.rates import rate_text

from compared import MEASURED, WAYS  # isort: skip

PUBLISHED = {"deeplight": 99, "lstm": 94, "ncf": 84, "vgg19": 32, "resnet152": 21, "bert": 9}
MEASURES = {"deeplight": "AUC", "ncf": "AUC", "lstm": "nats a word"}  # the others': accuracy
METHODS = {name: WAYS[name].title for name in MEASURED}
RATES = {rate: rate_text(rate) for rate in ("1gbit", "10gbit")}
TO_THE_END = ("bert",)  # its rate falls to 0 over its steps, so that nobody would cut them short


def results(part: str) -> dict[str, dict[str, Any]]:
    """The results of the models that have that part."""
    there = [name for name in PUBLISHED if (RESULTS / "models" / f"{name}.json").exists()]
    found = {name: load(f"models/{name}.json") for name in there}
    return {name: content for name, content in found.items() if part in content}


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def zeros() -> str:
    cells = []
    for name, content in results("zeros").items():
        by_size = {entry["size"]: entry for entry in content["zeros"]}
        here, full = by_size["default"], by_size.get("full")
        cells.append([name, f"{PUBLISHED[name]}%", percent(full["zeros"]) if full else ""])
        cells[-1] += [f"{here['bytes'] / 1e6:.0f}", str(here["batch_size"])]
        shares = ("zeros", "zero_blocks", "sum_zeros", "sum_zero_blocks")
        cells[-1] += [percent(here[share]) for share in shares]
        cells[-1].append(percent(here["table_share"]))
    heads = ["", "published", "full size", "here: MB", "batch", "zeros", "zero blocks"]
    return markdown([*heads, "of the sum", "blocks of it", "in tables"], cells)


def replayed() -> str:
    """Sums of the committed masks, simulated, beside the link time of a dense ring."""
    by_rate = {rate: load(f"masks-{rate}.json")["results"] for rate in RATES}
    heads = ["", "MB", "blocks of a rank", "of any of 8"]
    for said in RATES.values():
        heads += [f"{said}: a ring's links, ms", "OmniReduce, ms", "times as fast"]
    cells = []
    for found in zip(*by_rate.values()):
        point, blocks = found[0]["point"], found[0]["point"]["count"] / BLOCK
        cells.append([Path(point["pattern"]).stem, f"{4 * point['count'] / 1e6:,.0f}"])
        cells[-1] += [percent(point["density"]), percent(found[0]["union_blocks"] / blocks)]
        for r in found:
            cells[-1] += [in_ms(r["ring_s"]), in_ms(r["seconds"])]
            cells[-1].append(f"{r['ring_s'] / r['seconds']:.2f}")
    return markdown(heads, cells)


def steps() -> str:
    cells = []
    for name, content in results("links").items():
        for rate, said in RATES.items():
            if rate in content["links"]:
                measured = content["links"][rate]
                cells.append([f"{name}, {said}", *(_step(measured, m) for m in METHODS)])
    return markdown(["ms (predicted)", *METHODS.values()], cells)


def _step(measured: dict[str, Any], method: str) -> str:
    took = in_ms(measured["methods"][method]["step_s"])
    predicted = measured["predicted"].get(method)
    return f"{took} ({in_ms(predicted)})" if predicted else took


def predictions() -> str:
    """How many predictions are near what was measured, and how many are below it."""
    over: dict[str, list[float]] = {method: [] for method in METHODS}
    for content in results("links").values():
        for measured in content["links"].values():
            for method, step_s in measured["predicted"].items():
                over[method].append(step_s / measured["methods"][method]["step_s"])
    near = [str(sum(abs(ratio - 1) <= 0.15 for ratio in ratios)) for ratios in over.values()]
    short = [str(sum(ratio < 1 for ratio in ratios)) for ratios in over.values()]
    (count,) = {len(ratios) for ratios in over.values()}
    rows = [[f"within 15%, of {count}", *near], [f"too short, of {count}", *short]]
    return markdown(["predictions", *METHODS.values()], rows)


def first() -> str:
    """Means of the first twenty steps, with all that a job learns and connects in them: of
    trainings of quality, over seeds, or else of those on links."""
    cells = []
    for name, content in results("links").items():
        for rate, said in RATES.items():
            found: dict[str, list[float]] = {}
            for entry in content.get("quality", []):
                if entry.get("rate") == rate:
                    found.setdefault(entry["method"], []).append(entry["first_s"])
            for method, entry in content["links"].get(rate, {}).get("methods", {}).items():
                if "first_s" in entry:
                    found.setdefault(method, [entry["first_s"]])
            if "horovod" in found:
                plain, ours = (mean(found[m]) for m in ("horovod", "omnireduce"))
                cells.append([f"{name}, {said}", in_ms(plain), in_ms(ours), f"{plain / ours:.2f}"])
    heads = ["ms", METHODS["horovod"], METHODS["omnireduce"], "times as fast"]
    return markdown(heads, cells)


def sent() -> str:
    cells = []
    for name, content in results("links").items():
        methods = content["links"]["1gbit"]["methods"]
        cells.append([name, f"{methods['horovod']['gradient_bytes'] / 1e6:.1f}"])
        cells[-1] += [f"{methods[method]['bytes'] / 1e6:.2f}" for method in METHODS]
    return markdown(["MB", "gradients", *METHODS.values()], cells)


def quality() -> str:
    """After all steps, and after the time that the fastest needs for them, on average."""
    cells = []
    for name, content in results("quality").items():
        curves = _curves(content)
        steps_ = next(iter(curves.values()))[0][-1].step
        cells.append([f"{name}, {MEASURES.get(name, 'accuracy')}: {steps_} steps"])
        cells[-1] += [spread([c[-1].value for c in curves[m]], 3) for m in METHODS]
        if name in TO_THE_END:
            continue
        time = min(mean(c[-1].seconds for c in curves[method]) for method in METHODS)
        cells.append([f"the same, {time:.0f} seconds at {_rate(content)}"])
        for method in METHODS:
            there = [_at(curve, time) for curve in curves[method]]
            cells[-1].append("" if None in there else spread(there, 3))  # type: ignore[arg-type]
    return markdown(["", *METHODS.values()], cells)


def to_quality() -> str:
    """Seconds to what plain Horovod has after half of its steps, of the same seed."""
    cells = []
    for name, content in results("quality").items():
        curves = _curves(content)
        sign = -1 if MEASURES.get(name) == "nats a word" else 1
        targets = [sign * curve[len(curve) // 2 - 1].value for curve in curves["horovod"]]
        cells.append([f"{name}, {MEASURES.get(name, 'accuracy')} {mean(targets) * sign:.3f}"])
        for method in METHODS:
            there = [
                next((point.seconds for point in curve if sign * point.value >= target), None)
                for curve, target in zip(curves[method], targets)
            ]
            seconds = [s for s in there if s is not None]
            all_ = len(seconds) == len(there)
            cells[-1].append(f"{mean(seconds):.1f}" if all_ else "not reached by all")
    return markdown(["seconds to", *METHODS.values()], cells)


class Judged(NamedTuple):
    """A point of a training's curve."""

    step: int
    value: float
    seconds: float  # of training until then


def _curves(content: dict[str, Any]) -> dict[str, list[list[Judged]]]:
    found: dict[str, list[list[Judged]]] = {}
    for entry in content["quality"]:
        points = zip(entry["curve"], entry["reached_s"])
        curve = [Judged(int(step), value, seconds) for (step, value), seconds in points]
        found.setdefault(entry["method"], []).append(curve)
    return found


def _rate(content: dict[str, Any]) -> str:
    (rate,) = {entry["rate"] for entry in content["quality"]}
    return rate_text(rate)


def _at(curve: list[Judged], seconds: float) -> float | None:
    """The quality after so long, on a line between the tests. Otherwise a method would have that of
    up to a tenth of the steps before. None: nothing was tested by then."""
    if seconds < curve[0].seconds:
        return None
    for one, other in zip(curve, curve[1:]):
        if seconds < other.seconds:
            share = (seconds - one.seconds) / (other.seconds - one.seconds)
            return one.value + (other.value - one.value) * share
    return curve[-1].value
