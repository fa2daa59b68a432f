"""What docs/compression.md says of the evaluation (evaluation/) and of delay_control.py."""

from __future__ import annotations

from statistics import mean, median, pstdev
from typing import Any

from benchmarks.said.results import Said, in_ms, load  # whose folder compared is in
from omnihvd.bench.report import markdown

from compared import ORDERED, WAYS  # isort: skip

DOCUMENT = "docs/compression.md"
CODECS = ("natural", "int8", "int4", "qsgd 4 bits", "terngrad", "sign", "one_bit")


def pieces(task: str, part: str, method: str) -> list[dict[str, Any]]:
    return [p for p in load(f"evaluation/{task}-{part}.json") if p["method"] == method]


def ends(task: str, method: str) -> list[float]:
    """Held out, at the end, of each seed."""
    return [piece["curve"][-1][1] for piece in pieces(task, "quality", method)]


def quality(task: str, method: str, digits: int = 3) -> str:
    return f"{mean(ends(task, method)):.{digits}f}"


def spread(task: str, method: str) -> list[str]:
    return [quality(task, method), f"{pstdev(ends(task, method)):.3f}"]


def loss(task: str, method: str) -> float:
    """Per cent of what it is without."""
    return 100 * (mean(ends(task, method)) / mean(ends(task, "none")) - 1)


def step(task: str, method: str, rate: str = "1gbit") -> float:
    return float(mean(piece["step_seconds"] for piece in pieces(task, rate, method)))


def steps(task: str, *methods: str) -> list[str]:
    return [in_ms(step(task, method)) for method in methods]


def span(values: list[float], digits: int) -> list[str]:
    return [f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"]


def of_methods() -> list[Said]:
    def one(template: str, *figures: str) -> Said:
        return Said(DOCUMENT, "evaluation/*.json", template, [*figures])

    kept = [
        piece["kept_after_20"]
        for task in ("digits", "words", "ratings", "text")
        for piece in pieces(task, "quality", "topk_threshold")
    ]
    selected = ("topk", "sidco", "topk_threshold")
    seeds = zip(ends("words", "natural"), ends("words", "none"))
    good = [mean(ends("text", m)) for m in (*CODECS, "eight_bit", "block_topk 10%")]
    low = [mean(ends("text", m)) for m in ("topk", "sidco", "power_sgd")]
    points = 100 * (mean(ends("digits", "none")) - mean(ends("digits", "block_topk, no feedback")))
    with_rest = [step("text", method) for method in ("sign", "one_bit", "int4")]
    shares = [
        piece["kept_after_20"] / float(piece["method"].split()[1])
        for task in ("digits", "words", "ratings", "text")
        for piece in load(f"evaluation/{task}-sidco.json")
    ]
    fast = [
        f"{1000 * step('ratings', method, '10gbit'):.1f}"
        for method in ("topk_threshold", "none", "fp16", "block_topk, no feedback", "block_topk")
    ]
    natural = [f"{a - b:.3f}" for a, b in sorted(seeds, key=lambda pair: pair[0] - pair[1])]
    return [
        one("thresholds that kept {} to {}%,", *span([100 * share for share in kept], 1)),
        one("cost {} to {}% of loss with words", *span([loss("words", m) for m in selected], 1)),
        one("up to {}% with ratings;", f"{max(loss('ratings', m) for m in selected):.1f}"),
        one("costs {} and {}%,", *(f"{loss(t, 'block_topk'):.1f}" for t in ("words", "ratings"))),
        one("TernGrad {}% with words", f"{loss('words', 'terngrad'):.1f}"),
        one(
            "(words: {} ± {} nats, {} ± {} without; ratings {} and {}; digits {} ± {} and {} ± {})",
            *(*spread("words", "natural"), *spread("words", "none")),
            *(quality("ratings", method) for method in ("natural", "none")),
            *(*spread("digits", "natural"), *spread("digits", "none")),
        ),
        one("each seed by itself loses, {} to {} nats", natural[0], natural[-1]),
        one(
            "DGC is at {} with digits, {} with words and {} with ratings, after its warm-up at "
            "{}, {} and {}",
            *(
                quality(t, m)
                for m in ("dgc", "dgc, warm-up")
                for t in ("digits", "words", "ratings")
            ),
        ),
        one("is at {} without; codecs", quality("text", "none")),
        one("block Top-k at 10% are between {} and {},", *span(good, 3)),
        one("PowerSGD at {} to {},", *span(low, 2)),
        one(
            "DGC {}, block Top-k at 1% {}, and {} without error feedback",
            *(quality("text", m) for m in ("dgc", "block_topk")),
            quality("text", "block_topk, no feedback", 2),
        ),
        one("suits it better than the others' ({})", quality("text", "signum")),
        one(
            "elements lose {}% of loss, blocks {}%",
            f"{loss('words', 'randomk 10%'):.1f}",
            f"{loss('words', 'block_random 10%'):.0f}",
        ),
        one("block Top-k loses {} points of accuracy (digits)", f"{points:.0f}"),
        one("and {}% of loss (words)", f"{loss('words', 'block_topk, no feedback'):.0f}"),
        one("plain Horovod takes {} ms, omnihvd {}, fp16 {};", *steps("words", "horovod", *PLAIN)),
        one("PowerSGD and block Top-k {} and {},", *steps("words", "power_sgd", "block_topk")),
        one("4 bits and TernGrad {} and {},", *steps("words", "qsgd 4 bits", "terngrad")),
        one("Compression and 8 bits {} and {}.", *steps("words", "natural", "int8")),
        one(
            "MB): {}, {} and {}; PowerSGD {}, thresholds {}, QSGD {}, 8 bits and block Top-k {} "
            "and {}, Natural Compression {}.",
            *steps("text", "horovod", *PLAIN, "power_sgd", "topk_threshold", "qsgd 4 bits"),
            *steps("text", "int8", "block_topk", "natural"),
        ),
        one("costs what it saves ({} and {})", *steps("words", "topk"), *steps("text", "topk")),
        one(
            "error feedback of codecs ({} and {} to {})",
            *steps("words", "sign"),
            *map(in_ms, (min(with_rest), max(with_rest))),
        ),
        one("thresholds ({} ms; none takes {}, fp16 {}), and", *fast[:3]),
        one("keeps no rest ({}; with error feedback {})", *fast[3:]),
        one("sends {} to {} times what was asked", *span(shares, 2)),
        one("distributions: in {} combinations", str(len(shares))),
        one("The other {}, all with text, were not run", str(36 - len(shares))),
        *of_costs(),
    ]


PLAIN = ("none", "fp16")


def of_costs() -> list[Said]:
    entries = load("evaluation/cost.json")
    thresholds = [entry for entry in entries if entry["method"].startswith("threshold of ")]
    seconds = [entry["seconds"] for entry in thresholds]
    topk = [entry["torch_topk_seconds"] for entry in thresholds]
    published = [entry for entry in entries if entry["method"].startswith("published ")]
    dgc = [entry["seconds"] for entry in entries if entry["method"].startswith("dgc's threshold")]
    shares = [100 * a / b for a, b in zip(seconds, topk)]
    said = [
        Said(
            DOCUMENT,
            "evaluation/cost.json",
            f"| `{entry['method'].split('(')[0]}(... | {{}} s",
            [f"{entry['seconds']:.2f}"],
        )
        for entry in entries
        if "threshold of" not in entry["method"] and "'s threshold" not in entry["method"]
    ]
    template = "alone is {} to {} s, or {} to {}% of `torch.topk`'s at the same ratio ({} to {} s)"
    figures = [*span(seconds, 2), *span(shares, 0), *span(topk, 2)]
    said.append(Said(DOCUMENT, "evaluation/cost.json", template, figures))
    template = (
        "DGC's sample takes {} to {} s, the published fit of SIDCo {} to {} s; it kept {} to {} "
        "times what was asked in these steps, and ours, with {} to {} rounds, {} to {}"
    )
    figures = [
        *span(dgc, 2),
        *span([entry["seconds"] for entry in published], 2),
        *span([entry["kept"] for entry in published], 2),
        *span([entry["rounds"] for entry in thresholds], 1),
        *span([entry["kept"] for entry in thresholds], 2),
    ]
    return [*said, Said(DOCUMENT, "evaluation/cost.json", template, figures)]


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


def _seconds_to(target: float, of_seeds: list[dict[str, Any]], scenario: str) -> str:
    """Mean over seeds, if all of them get there, and how far they are from it at most."""
    firsts = [next((s for s, now in run["losses"] if now <= target), None) for run in of_seeds]
    there = [first for first in firsts if first is not None]
    if len(there) < len(firsts):
        return f"not in {scenarios()[scenario]['seconds']:g} s"
    spread = f" ± {max(there) - mean(there):.1f}" if len(there) > 1 else ""
    return f"{mean(there):.1f}{spread}"


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
    return markdown(["", *heads], cells)


def of_delay_control() -> list[Said]:
    content = scenarios()["mixed"]
    begins = [begin for begin, _, _ in content["phases"]]

    def in_phase(name: str, phase: int) -> str:
        first, last = begins[phase], [*begins, 1e9][phase + 1]
        (run,) = runs("mixed")[name]
        bins = run["bins"]
        return in_ms(median(step for begin, step, _ in bins if first <= begin < last))

    names = ("delay control", "none", "block_topk 0.1")
    template = "text, with 18.8 MB of gradients, and a budget of {} ms,"
    return [
        Said(DOCUMENT, "delay_control.json", template, [f"{scenarios()['high']['budget_ms']:g}"]),
        Said(
            DOCUMENT,
            "delay_control.json",
            "a budget of {} ms for its sums, a step takes {} ms at 100 Mbit/s, where it takes {} "
            "without compression and {} at a ratio of 0.1; and {} ms on an idle link of 1 Gbit/s, "
            "where it takes {} and {}.",
            [f"{content['budget_ms']:g}"]
            + [in_phase(name, phase) for phase in (1, 3) for name in names],
        ),
    ]


def of_lossless() -> list[Said]:
    """The codec without loss."""

    def one(results: str, template: str, *figures: str) -> Said:
        return Said("docs/codecs.md", results, template, list(figures))

    sizes = load("lossless.json")["sizes"]

    def shares(dtype: str) -> list[str]:
        found = [sizes[name][dtype] for name in ("words", "bert", "cnn")]
        return [f"{share:.3f}" for share in (min(found), max(found))]

    sums = load("lossless_sums.json")
    took = {
        way: [median(sums[way][dtype]["samples"]) for dtype in ("float32", "bfloat16")]
        for way in ("coded", "gloo")
    }
    times = [f"{theirs / ours:.2f}" for theirs, ours in zip(took["gloo"], took["coded"])]
    return [
        one(
            "lossless.json",
            "become {} to {} of their bytes in float32, {} to {} in bfloat16, {} to {} in float16 "
            "and {} to {} in float64",
            *shares("float32"),
            *shares("bfloat16"),
            *shares("float16"),
            *shares("float64"),
        ),
        one(
            "lossless_sums.json",
            "takes {} ms in float32 and {} in bfloat16, where Gloo takes {} and {}: {} and {} "
            "times as fast",
            *map(in_ms, (*took["coded"], *took["gloo"])),
            *times,
        ),
    ]


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
        cells[-1].append(" to ".join(span(over, 2)))
        cells[-1] += [f"{mean(q):.4f} ± {pstdev(q):.4f}" for q in qualities]
    return markdown(heads, cells)
