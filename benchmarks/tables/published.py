"""Tables of docs/published.md: what authors published, beside what is measured here."""

from __future__ import annotations

import csv
import functools
from statistics import mean
from typing import Any

from benchmarks.bench.report import markdown
from benchmarks.tables.results import RESULTS, ends, load, step_s
from omnihvd.rates import rate_text

# --- GRACE ----------------------------------------------------------------------------------------

# By their names in benchmarks/evaluation: title, and GRACE's names on its LSTM and its NCF.
METHODS = {
    "none": ("no compression", "none", "none"),
    "fp16": ("Horovod's fp16", "", ""),
    "natural": ("natural", "natural_mem", "natural"),
    "eight_bit": ("8-bit", "8bit_mem", "8bit"),
    "int8": ("8 bits in the engine", "", ""),
    "qsgd 4 bits": ("QSGD: 64 levels; 4 bits", "qsgd_q=64", "qsgd_q=64"),
    "terngrad": ("TernGrad", "terngrad", "terngrad"),
    "one_bit_sgd": ("1-bit", "onebit_mem", "onebit_mem"),
    "one_bit": ("1 bit in the engine", "", ""),
    "ef_sign": ("EF-SignSGD", "efsignsgd_mem", "efsignsgd_mem"),
    "sign_sgd": ("signSGD", "signsgd", "signsgd"),
    "signum": ("Signum", "signum", "signum"),
    "inceptionn": ("INCEPTIONN", "inceptionn", "inceptionn"),
    "sketch": ("SketchML", "sketch_mem_q=64", "sketch_mem_q=64"),
    "topk": ("Top-k, 1%", "topk_mem_ratio=0.01", "topk_mem_ratio=0.01"),
    "block_topk": ("block Top-k, 1%", "", ""),
    "dgc": ("DGC, 1%", "dgc_mem_ratio=0.01", "dgc_mem_ratio=0.01"),
    "sidco": ("SIDCo, 1%", "", ""),
    "topk_threshold": (
        "a threshold: 0.01; 0.5 to 1.5% of the elements",
        "threshold_mem_thres=0.01",
        "threshold_mem_thres=0.01",
    ),
    "adaptive": ("AdaQ, 1%", "adaq_mem_ratio=0.01", "adaq_mem_ratio=0.01"),
    "randomk 10%": ("Random-k, 10%", "randomk_mem_ratio=0.1", "randomk_mem_ratio=0.1"),
    "power_sgd": ("PowerSGD, rank 1", "powersgd_mem", "powersgd_mem"),
}


@functools.cache
def _grace() -> dict[tuple[str, str], dict[str, str]]:
    with (RESULTS / "grace.csv").open(newline="") as file:
        return {(line["task"], line["method"]): line for line in csv.DictReader(file)}


def theirs(task: str, method: str) -> list[str]:
    """Throughput over that without compression at 1 and 10 Gbit/s, and the quality."""
    line = _grace()[task, method] if method else {}
    speeds = [line.get(f"over none, {rate}bit", "") for rate in ("1g", "10g")]
    return [*(f"{float(speed):.2f}" if speed else "" for speed in speeds), line.get("quality", "")]


def ours(task: str, method: str) -> list[str]:
    """Steps of plain Horovod over those with the method at 1 and 10 Gbit/s, and the quality."""
    cells = []
    for rate in ("1gbit", "10gbit"):
        cells.append(f"{step_s(task, rate, 'horovod') / step_s(task, rate, method):.2f}")
    return [*cells, f"{mean(ends(task, method)):.3f}"]


def _beside(their_task: str, task: str, name: int, what: tuple[str, str]) -> str:
    header = ["", "GRACE, 1 Gbit/s", "GRACE, 10 Gbit/s", what[0]]
    header += ["here, 1 Gbit/s", "here, 10 Gbit/s", what[1]]
    rows = [
        [titles[0], *theirs(their_task, titles[name]), *ours(task, method)]
        for method, titles in METHODS.items()
    ]
    full = [i for i in range(len(header)) if any(row[i] for row in rows)]  # NCF has one rate
    return markdown([header[i] for i in full], [[row[i] for i in full] for row in rows])


def grace_words() -> str:
    return _beside("LSTM", "words", 1, ("perplexity", "nats a word"))


def grace_ratings() -> str:
    return _beside("NCF", "ratings", 2, ("hit rate", "RMSE"))


# --- SIDCo ----------------------------------------------------------------------------------------


def sidco() -> str:
    header = ["", "over plain Horovod", "over OmniReduce alone", "over Top-k", "over DGC"]
    rows = [["published, at most", "41.7", "", "7.6", "1.9"]]
    for task in ("words", "text", "digits", "ratings"):
        for rate in ("1gbit", "10gbit"):
            peers = ("horovod", "none", "topk", "dgc")
            found = [step_s(task, rate, peer) / step_s(task, rate, "sidco") for peer in peers]
            rows.append([f"{task}, {rate_text(rate)}", *(f"{ratio:.2f}" for ratio in found)])
    return markdown(header, rows)


# --- OmniReduce -----------------------------------------------------------------------------------


def simulated() -> str:
    """How many times as fast as the links of a dense ring."""
    results = load("scale_rates.json")["results"]
    densities = list(dict.fromkeys(r["density"] for r in results))
    header = ["links", "workers", "aggregators", *(f"{100 * d:g}%" for d in densities), "ring, ms"]
    found: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for r in results:
        found.setdefault((r["rate"], r["ranks"], r["aggregators"]), []).append(r)
    rows = [
        [
            *(rate_text(rate), str(ranks), "of their own" if aggregators else "colocated"),
            *(f"{r['ring_s'] / r['seconds']:.2f}" for r in of_densities),
            f"{1e3 * of_densities[0]['ring_s']:.0f}",
        ]
        for (rate, ranks, aggregators), of_densities in found.items()
    ]
    return markdown(header, rows)


# --- visible changes ------------------------------------------------------------------------------


def visible() -> str:
    """Mean and range over the seeds; shares are means over rounds."""
    entries = load("visible_changes.json")["entries"]
    rows = []
    for about in dict.fromkeys((e["model"], e["replicas"], e["method"]) for e in entries):
        these = [e for e in entries if (e["model"], e["replicas"], e["method"]) == about]
        losses = [e["loss"] for e in these]
        text = f"{mean(losses):.4f}"
        if len(losses) > 1:
            text += f" ({min(losses):.4f} to {max(losses):.4f})"
        accuracy = f"{mean(e['quality'] for e in these):.1%}" if about[0] == "bert" else ""
        shares = [
            f"{mean(e[name] for e in these):.1%}" if name in these[0] else ""
            for name in ("sent", "any", "any_blocks")
        ]
        rows.append([*map(str, about), text, accuracy, *shares])
    titles = ("model", "replicas", "method", "loss", "accuracy", "sent by a replica")
    return markdown([*titles, "by any of them", "blocks of 256 by any"], rows)
