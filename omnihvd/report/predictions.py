"""Predicts the length of a step, by the cost model, for given links and ranks; and gives advice."""

from __future__ import annotations

from typing import Any, NamedTuple

from omnihvd.rates import rate_bytes, rate_text
from omnihvd.report import costs
from omnihvd.report.costs import OF_TABLES, RATIO, Cost, Machine
from omnihvd.report.density import BLOCK_SIZES
from omnihvd.report.figures import DEFAULT_BLOCK, Measured, Timing

SCHEMES = {
    "ring": "ring (Horovod, Gloo, NCCL)",
    "omnireduce": "OmniReduce",
    "union": "OmniReduce by the library, on the union",
    "rows": "OmniReduce, tables with sparse=True",
    "allgather": "Horovod's allgather of tables with sparse=True",
    "dedicated": "OmniReduce, as many dedicated aggregators",
    "fp16": "lossy: ring, fp16 compression",
    "natural": "lossy: natural(), 8 bits an element",
    "qsgd4": "lossy: qsgd(bits=4)",
    "block_topk": f"lossy: block_topk({RATIO:g})",
    "block_threshold": f"lossy: block_threshold that keeps {RATIO:.0%}",
    "block_random": f"lossy: block_random({RATIO:g})",
    "topk_threshold": f"lossy: topk_threshold that keeps {RATIO:.0%}",
}
LOSSY = tuple(scheme for scheme, said in SCHEMES.items() if said.startswith("lossy"))
GENTLE = {  # lossy schemes, from the least to the most effect on a training
    "fp16": "fp16 compression",
    "natural": "`natural()`",
    "qsgd4": "`qsgd(bits=4)`",
    "block_topk": f"`block_topk({RATIO:g})`",
}
NEED_HOSTS = ("dedicated",)
WITHOUT_OMNIHVD = ("ring", "allgather")  # preferred unless another is faster
MOST_HOSTS = 1024  # up to which a gain is looked for
DENSE_PASSES = 3  # over a dense gradient that sparse ones save: to clear, add and read it
ALIKE = 1.01  # times that differ by less are the same
WORTH = 0.05  # of a step: less is not worth a word


class Prediction(NamedTuple):
    """The prediction for one scheme. sent: bytes a rank and step; sums_s: seconds of all sums of a
    step, one after another; step_s: seconds of a step, with sums overlapping the computation."""

    ranks: int
    rate: str
    scheme: str
    sent: float
    sums_s: float
    step_s: float


class Model:
    """Predicts for one number of ranks; caches costly results."""

    def __init__(
        self,
        buffers: list[list[Measured]],
        timing: Timing,
        ranks: int,
        machine: Machine | None = None,
        copied: float = 0.0,
    ) -> None:
        """machine: without its link's rate; None: costs.Machine's own figures. copied: bytes that
        the framework copies when all gradients are ready, for every scheme."""
        self._buffers, self._timing, self.ranks = buffers, timing, ranks
        self._machine, self._copied = machine or Machine(0), copied
        self._sizes = {p.name: p.sizes(DEFAULT_BLOCK, ranks) for b in buffers for p in b}

    def with_ranks(self, ranks: int) -> Model:
        return Model(self._buffers, self._timing, ranks, self._machine, self._copied)

    @property
    def computing_s(self) -> float:
        """The length of a step with free sums."""
        return self._timing.alone + self._copied / self._machine.copy

    def cost(self, p: Measured, scheme: str) -> Cost:
        """The cost of a parameter's sum. For tables with sparse gradients: by rows, or by allgather
        if the scheme sums other parameters densely."""
        formula = costs.FORMULAS[scheme]
        if scheme in OF_TABLES and not (p.is_table or (p.sparse and p.n_rows)):
            formula = OF_TABLES[scheme]
        return formula(self._sizes[p.name], self.ranks)

    def predict(self, scheme: str, rate: str) -> Prediction:
        machine = self._machine._replace(link=rate_bytes(rate))
        whole = [sum((self.cost(p, scheme) for p in b), Cost(0, 0, 0)) for b in self._buffers]
        takes = [costs.takes(cost, machine) for cost in whole]
        t = self._timing
        dense = [p for b in self._buffers for p in b if p.is_table and not p.sparse]
        saved = DENSE_PASSES * sum(p.bytes * p.zero_rows for p in dense) / machine.scan
        ready = [max(p.ready_s for p in buffer) for buffer in self._buffers]
        last = max(ready)  # sampled steps may have been slower; 0: unknown
        ready = [moment / last * t.backward if last else t.backward for moment in ready]
        rest = t.rest + self._copied / machine.copy
        step = costs.step_seconds(list(zip(ready, takes)), t.backward, rest)
        if scheme in OF_TABLES:
            step -= min(saved, t.alone / 2)
        sent = sum(cost.sent for cost in whole)
        sums_s = sum(t.seconds for t in takes)
        return Prediction(self.ranks, rate, scheme, sent, sums_s, step)


def schemes_for(parameters: list[Measured]) -> list[str]:
    """The schemes that make sense for these gradients."""
    tables = any(p.is_table or p.sparse for p in parameters)
    return [s for s in SCHEMES if tables or s not in OF_TABLES]


def best_block_size(parameters: list[Measured], ranks: int) -> tuple[int, dict[int, float]]:
    """The block size that sends the least, and bytes a rank by block size, positions included."""
    sent = {}
    for b in BLOCK_SIZES:
        sizes = [p.sizes(b, ranks) for p in parameters]
        named = sum(  # the blocks' positions, in about their entropy
            (costs.entropy(p.density(b)) + costs.entropy(p.union(b, ranks))) / 8 * s.blocks
            for p, s in zip(parameters, sizes)
        )
        total = sum((s.fullest + s.union for s in sizes), named)
        sent[b] = (ranks - 1) / ranks * total if ranks > 1 else total
    best = min(sent, key=lambda b: sent[b])
    if sent[DEFAULT_BLOCK] < (1 + WORTH) * sent[best]:
        best = DEFAULT_BLOCK  # the others are hardly better
    return best, sent


def best_of(rows: list[dict[str, Any]]) -> str:
    """The fastest scheme for one network that is lossless and needs no more hosts. Among equally
    fast ones, one without omnihvd, else the first of SCHEMES."""
    free = {p["scheme"]: p["step_s"] for p in rows if p["scheme"] not in (*LOSSY, *NEED_HOSTS)}
    order = [*WITHOUT_OMNIHVD, *SCHEMES]
    return next(s for s in order if s in free and free[s] <= ALIKE * min(free.values()))


def gentlest(of: dict[str, Prediction]) -> Prediction:
    """The first lossy scheme of GENTLE that is about as fast as the fastest of them."""
    least = min(of[scheme].step_s for scheme in GENTLE)
    return next(of[s] for s in GENTLE if of[s].step_s <= (1 + WORTH) * least)


def advice(model: Model, parameters: list[Measured], rate: str) -> str:
    """The sentence for one network."""
    of = {s: model.predict(s, rate) for s in schemes_for(parameters)}
    now = of["allgather" if any(p.sparse for p in parameters) else "ring"]
    best = of[best_of([p._asdict() for p in of.values()])]
    where = f"on {model.ranks} hosts at {rate_text(rate)} a step would take"
    if now.step_s - model.computing_s < WORTH * now.step_s:
        return f"{where} {time_text(now.step_s)}, hardly any of it for sums: leave it as it is."
    own = min(of["omnireduce"], of["union"], key=lambda p: p.step_s)
    if _is_better(best, now):
        times = f"{time_text(best.step_s)} instead of {time_text(now.step_s)}"
        words = [f"{times}: use {_how(best, parameters)}"]
        if best.scheme in WITHOUT_OMNIHVD:
            words.append(f"omnihvd is not needed there{_but_from(model, parameters, rate)}")
        elif best.scheme not in ("omnireduce", "union") and _is_better(own, now):
            words.append(f"OmniReduce alone would make it {time_text(own.step_s)}")
    else:
        words = [f"{time_text(now.step_s)}, and OmniReduce alone would gain {_gain(own, now)}"]
    if _is_better(of["dedicated"], best):
        words.append(
            f"as many dedicated aggregators would make it {time_text(of['dedicated'].step_s)}"
        )
    lossy = gentlest(of)
    if _is_better(lossy, best):
        took = time_text(lossy.step_s)
        words.append(f"{GENTLE[lossy.scheme]}, which is lossy, would make it {took}")
    if _is_better(own, now):
        words.append(f"block size {best_block_size(parameters, model.ranks)[0]}")
    return f"{where} {'; '.join(words)}."


def _but_from(model: Model, parameters: list[Measured], rate: str) -> str:
    """Says from how many hosts on omnihvd gains something."""
    ranks = model.ranks
    while (ranks := 2 * ranks) <= MOST_HOSTS:
        larger = model.with_ranks(ranks)
        of = {s: larger.predict(s, rate) for s in schemes_for(parameters)}
        without = min((of[s] for s in WITHOUT_OMNIHVD if s in of), key=lambda p: p.step_s)
        if _is_better(of[best_of([p._asdict() for p in of.values()])], without):
            return f", but from about {ranks} hosts on it is"
    return f" (up to {MOST_HOSTS} hosts)"


def _how(best: Prediction, parameters: list[Measured]) -> str:
    tables = [p for p in parameters if p.is_table and not p.sparse]
    large = [f"`{p.name}`" for p in tables if p.bytes >= 0.1 * sum(t.bytes for t in tables)]
    sparse = f"`sparse=True` for {' and '.join(large)}" if large else ""
    other = {"allgather": "Horovod's allgather", "ring": "dense gradients"}
    theirs = other.get(best.scheme, "OmniReduce")
    if best.scheme not in OF_TABLES or not sparse:
        return theirs
    return f"{sparse}, with {theirs}"


def _is_better(this: Prediction, that: Prediction) -> bool:
    return this.step_s < (1 - WORTH) * that.step_s


def _gain(this: Prediction, that: Prediction) -> str:
    share = 1 - this.step_s / that.step_s
    return f"{share:.0%}" if share > 0 else "nothing"


def time_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.995 else f"{1e3 * seconds:.3g} ms"


def bytes_text(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
