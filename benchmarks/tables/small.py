"""Tables of small sums on one host and between hosts, and of sums of lists of rows."""

from __future__ import annotations

from statistics import median

from benchmarks.bench.report import markdown
from benchmarks.tables.results import in_ms, load


def small_sums() -> str:
    """Medians over the rounds."""
    cells = []
    for r in load("small_sums.json")["results"]:
        engine, ours, gloo = (median(r["us"][kind]) for kind in ("engine", "omnihvd", "gloo"))
        times = (f"{us:.1f}" if us < 100 else f"{us:,.0f}" for us in (engine, ours, gloo))
        cells.append([str(r["ranks"]), f"{r['bytes'] >> 10} KiB", *times, f"{gloo / ours:.0f}"])
    return markdown(
        ["ranks", "tensor", "engine, us", "omnihvd, us", "Gloo, us", "Gloo / ours"], cells
    )


def between_hosts() -> str:
    """Means and medians of both."""
    found: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for r in load("small_between_hosts.json")["results"]:
        key = f"{r['hosts']} at {r['rate']}", f"{r['bytes'] >> 10} KiB"
        found.setdefault(key, {})[r["backend"]] = r["mean_s"], r["median_s"]
    cells = []
    for key, of in found.items():
        (ours, our_median), (gloo, gloo_median) = of["omnihvd-torch"], of["gloo"]
        times = (f"{1e3 * s:.2f}" for s in (ours, our_median, gloo, gloo_median))
        cells.append([*key, *times, f"{gloo / ours:.1f}", f"{gloo_median / our_median:.1f}"])
    ms = [f"{who}, {what}" for who in ("omnihvd", "Gloo") for what in ("mean", "median")]
    return markdown(["hosts", "tensor", *ms, "times as fast by means", "by medians"], cells)


def surroundings() -> str:
    """Medians over the rounds."""
    found: dict[str, list[str]] = {}
    heads: dict[str, None] = {}
    for r in load("surroundings.json")["results"]:
        ours, gloo = (median(r["seconds"][kind]) for kind in ("omnihvd", "gloo"))
        size = 4 * r["count"]
        heads[f"{size >> 10} KiB" if size < 1 << 20 else f"{size / 1e6:g} MB"] = None
        cell = f"{1e3 * ours:.2f} / {1e3 * gloo:.2f} ({gloo / ours:.1f}x)"
        found.setdefault(r["place"], []).append(cell)
    return markdown(["omnihvd / Gloo, ms", *heads], [[place, *of] for place, of in found.items()])


def rows() -> str:
    backends = {
        "omnihvd-torch": "dense tensor",
        "omnihvd-torch-rows": "sparse tensor of torch",
        "omnihvd-rows": "list",
        "sparcml-rows": "SparCML by rows",
    }
    found: dict[float, dict[str, str]] = {}
    for r in load("rows-10gbit.json")["results"]:
        density = r["point"]["density"]
        found.setdefault(density, {})[r["backend"]] = in_ms(median(r["samples"]))
    cells = [[f"{100 * d:g}%", *(ms[name] for name in backends)] for d, ms in found.items()]
    return markdown(["non-zero rows", *backends.values()], cells)
