"""Tables of trainings; the README's second table."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.bench.report import markdown
from benchmarks.tables.faults import times
from benchmarks.tables.results import horovod, in_ms, joined, load, ms, of
from omnihvd.rates import rate_text

MPI, GLOO, DDP = "Horovod, MPI", "Horovod, Gloo", "DDP"
DDP_WITH = ["DDP, omnihvd imported", "DDP, omnihvd's hook", "DDP, python -m omnihvd"]
# README's figures at 589a40b, the last commit before the folders were laid out anew, in ms.
BEFORE_HOSTS4 = {
    "Horovod": {1.0: 1160, 0.4: 671, 0.1: 240, 0.01: 45, 0.001: 20},
    "torch.distributed": {1.0: 1158, 0.4: 670, 0.1: 240, 0.01: 39, 0.001: 18},
}
BEFORE_HOST1 = {1.0: 46, 0.1: 11, 0.01: 8}
HERE = ["Ray, omnihvd", "elastic, omnihvd, a rank killed"]


def step(launcher: str) -> float:
    return float(load("launchers.json")["results"][launcher]["median_s"])


def launchers() -> str:
    lines = [
        (MPI, MPI, [f"{MPI}, omnihvd"]),
        (GLOO, GLOO, [f"{GLOO}, omnihvd"]),
        ("DDP: omnihvd imported, its hook, an unchanged script", DDP, DDP_WITH),
        *((name, "", [name]) for name in HERE),
    ]
    cells = [
        [
            name,
            in_ms(step(without)) if without else "",
            joined([in_ms(step(w)) for w in with_it]),
            joined([f"{step(without) / step(w):.1f}" for w in with_it]) if without else "",
        ]
        for name, without, with_it in lines
    ]
    return markdown(["ms a step", "without", "with omnihvd", "times as fast"], cells)


def others() -> str:
    trained = load("training.json")["results"]
    ours, theirs = (load("sparse.json")["results"]["8"][n] for n in ("rows omnihvd", "allgather"))
    launched = [
        ("Horovod on MPI", MPI, f"{MPI}, omnihvd"),
        ("Horovod on Gloo", GLOO, f"{GLOO}, omnihvd"),
        ("DDP, script unchanged", DDP, DDP_WITH[-1]),
    ]

    elastic = load("under_fire.json")
    small = {
        (r["hosts"], r["rate"], r["bytes"], r["backend"]): f"{1000 * r['mean_s']:.1f}"
        for r in load("small_between_hosts.json")["results"]
    }

    def sparse(r: dict[str, Any]) -> str:
        return f"{in_ms(r['median_s'])}, {r['memory_bytes'] / 1e6:.0f} MB"

    table = [
        *(
            [f"step of a language model: {name}", in_ms(step(without)), in_ms(step(with_it))]
            for name, without, with_it in launched
        ),
        [
            "another run: Horovod on MPI, fp16 compression; omnihvd instead of it, without loss",
            *(in_ms(trained[each]["median_s"]) for each in ("fp16", "omnireduce")),
        ],
        ["step with sparse rows of a 256 MB table, 8 hosts; memory", sparse(theirs), sparse(ours)],
        [
            "sum of 100 MB, dense, by [natural compression](docs/codecs.md), lossy: Gloo",
            ms("hosts4-codecs", "gloo"),
            ms("hosts4-codecs", "omnihvd-torch-natural"),
        ],
        [
            "sum of 8 KiB, dense, 10 Gbit/s, under torch.distributed: Gloo, mean",
            *(small[4, "10gbit", 8 << 10, backend] for backend in ("gloo", "omnihvd-torch")),
        ],
        [
            "sum of 100 MB, 10% non-zero, 2 ranks of one host: Horovod",
            in_ms(of("host1", horovod("host1"))["median_s"]),
            ms("host1", "omnihvd", 0.1),
        ],
        [
            "three elastic ranks, one machine, Gloo (time-out 30 s): from a kill to a step of all",
            *(
                in_ms(median(times(elastic[how], "kill", "whole_s")))
                for how in ("plain", "omnihvd")
            ),
        ],
    ]
    return markdown(["ms; 4 hosts at 1 Gbit/s, unless named", "without", "with omnihvd"], table)


def before_after() -> str:
    """Peers are in it, too: they had no change, so their rows show the machine's."""
    hosts4, trained = "hosts4-1gbit", load("training.json")["results"]
    cells = [
        [f"{hosts}, {100 * density:g}%, under {above}", str(then), ms(run, backend, density)]
        for hosts, above, run, backend, before in (
            ("4 hosts", "Horovod", hosts4, "omnihvd", BEFORE_HOSTS4["Horovod"]),
            (
                *("4 hosts", "torch.distributed", hosts4, "omnihvd-torch"),
                BEFORE_HOSTS4["torch.distributed"],
            ),
            ("2 ranks of one host", "Horovod", "host1", "omnihvd", BEFORE_HOST1),
        )
        for density, then in before.items()
    ]
    cells += [
        ["a step of the language model, 4 hosts", "182", in_ms(trained["omnireduce"]["median_s"])],
        ["peer: Gloo, 4 hosts", "1264", ms(hosts4, "gloo")],
        ["peer: Horovod, 4 hosts", "1337", ms(hosts4, horovod(hosts4))],
        ["peer: Horovod, 2 ranks of one host", "46", ms("host1", horovod("host1"))],
        ["peer: a step by Horovod with fp16", "605", in_ms(trained["fp16"]["median_s"])],
    ]
    return markdown(["ms; sums of 100 MB by non-zero share", "589a40b", "now"], cells)


def predictions() -> str:
    results = load("predictions.json")["results"]
    models = {"words": "language model", "recommender": "recommender", "cnn": "dense network"}
    cells = []
    for scheme, name in (("ring", "Gloo's ring"), ("omnireduce", "OmniReduce")):
        for rate in dict.fromkeys(r["rate"] for r in results):
            found = {
                r["model"]: r["off"] for r in results if (r["rate"], r["scheme"]) == (rate, scheme)
            }
            off = [f"{100 * found[model]:+.0f}%" for model in models]
            cells.append([f"{name}, {rate_text(rate)}", *off])
    return markdown(["", *models.values()], cells)
