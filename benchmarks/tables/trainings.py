"""Tables of trainings and of the map; the README's second table."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import papers
from benchmarks.tables.results import horovod, in_ms, joined, load, ms, of
from omnihvd.bench.report import markdown
from omnihvd.rates import rate_text

MPI, GLOO, DDP = "Horovod, MPI", "Horovod, Gloo", "DDP"
DDP_WITH = ["DDP, omnihvd imported", "DDP, omnihvd's hook", "DDP, python -m omnihvd"]
PAPERS = ("switchml", "parallax", "sparcml", "sparcml-of-dense")  # peers of OmniReduce's paper
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

    def sparse(r: dict[str, Any]) -> str:
        return f"{in_ms(r['median_s'])} ms, {r['memory_bytes'] / 1e6:.0f} MB"

    def codec(*backends: str) -> str:
        return joined([ms("hosts4-codecs", b) for b in backends]) + " ms"

    plain = of("host1", horovod("host1"))["median_s"]
    at = papers.at("10gbit")[0.1]
    table = [
        [
            "a step of the language model, Horovod at its best / with its fp16 compression",
            "`training.py`",
            joined([in_ms(trained[how]["median_s"]) for how in ("none", "fp16")]) + " ms",
            f"{in_ms(trained['omnireduce']['median_s'])} ms",
        ],
        [
            "the same by launcher: Horovod on MPI / on Gloo / DDP, script unchanged",
            "`launchers.py`",
            joined([in_ms(step(name)) for name in (MPI, GLOO, DDP)]) + " ms",
            joined(
                [in_ms(step(f"{n}, omnihvd")) for n in (MPI, GLOO)] + [in_ms(step(DDP_WITH[-1]))]
            )
            + " ms",
        ],
        [
            "100 MB dense by [natural compression](docs/codecs.md): Horovod / Gloo",
            "see there",
            codec(horovod("hosts4-codecs"), "gloo"),
            codec("omnihvd-natural", "omnihvd-torch-natural"),
        ],
        [
            "sparse gradients of an embedding of 256 MB, 8 hosts: a step, memory",
            "`sparse.py`",
            sparse(theirs),
            sparse(ours),
        ],
        [
            "one host, 2 ranks, 100 MB: Horovod / Gloo; dense / 10% / 1%",
            "`targets.py`",
            f"{in_ms(plain)} / {ms('host1', 'gloo')} ms",
            joined([ms("host1", "omnihvd", d) for d in (1.0, 0.1, 0.01)]) + " ms",
        ],
        [
            "100 MB, 10%, 10 Gbit/s: [SwitchML* / Parallax / SparCML / SparCML by rows, of a dense "
            "tensor](benchmarks/README.md#beside-the-peers-of-the-paper)",
            "`papers.py`",
            joined([papers.ms(at[name]) for name in PAPERS]) + " ms",
            f"{papers.ms(at['omnihvd-dedicated'])} ms with hosts for aggregators, as SwitchML*; "
            f"{papers.ms(at['omnihvd'])} without",
        ],
    ]
    return markdown(["4 hosts at 1 Gbit/s, unless it says other", "by", "without", "with"], table)


def predictions() -> str:
    results = load("predictions.json")["results"]
    rates = [*dict.fromkeys(r["rate"] for r in results)]
    names = {"words": "language model", "recommender": "recommender", "cnn": "dense network"}
    cells = []
    for model, name in names.items():
        cells.append([name])
        for scheme in ("ring", "omnireduce"):
            found = {
                r["rate"]: r["off"] for r in results if (r["model"], r["scheme"]) == (model, scheme)
            }
            cells[-1] += [f"{100 * found[rate]:+.0f}%" for rate in rates]
    said = [rate_text(rate) for rate in rates]
    heads = [f"{who}, {rate}" for who in ("Gloo's ring", "OmniReduce") for rate in said]
    return markdown(["", *heads], cells)
