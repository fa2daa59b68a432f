"""How often it looks: it costs less than it may, and ranks look at the same steps."""

from __future__ import annotations

import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omnihvd.report import command, density, figures, samples
from omnihvd.report import sampler as sampler_module
from omnihvd.report.figures import Timing
from omnihvd.report.sampler import Sampler
from omnihvd.report.samples import Gradient, Job, Sample, Seen

ONES = density.count(np.ones(100, np.float32))


def train(sampler: Sampler, now: list[float], steps: int, cost: float) -> list[int]:
    """Steps of 10 ms; returns those that were looked at."""
    seen = []
    for _ in range(steps):
        now[0] += 0.01
        sample = sampler.wants()
        if sample:
            now[0] += cost
            sampler.spent_s += cost
            sample.gradients["w"] = Gradient(ONES, sampler.seconds())
            sample.backward_s = sampler.seconds()
            seen.append(sample.step)
        sampler.step_ended()
    return seen


def test_it_costs_less_than_two_percent_and_ranks_meet() -> None:
    looked = []
    for cost in (0.0001, 0.005, 0.02):
        now = [0.0]
        sampler = Sampler(clock=lambda now=now: now[0])
        looked.append(set(train(sampler, now, 5000, cost)))
        assert sampler.seen().job.cost_share < 0.02
        assert sampler.seen().job.step_s == pytest.approx(0.01)
        assert len(looked[-1]) >= 20
    assert looked[0] >= looked[1] - {6} >= looked[2] - {4, 6}


def test_a_step_in_which_nothing_is_looked_at_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many there were before: medians are made at samples, and of the newest steps."""
    asked: list[int] = []
    median = statistics.median
    count = lambda values: asked.append(len(values)) or median(values)  # noqa: E731
    monkeypatch.setattr(sampler_module.statistics, "median", count)
    monkeypatch.setattr(sampler_module, "MOST_TIMINGS", 100)
    now = [0.0]
    sampler = Sampler(clock=lambda: now[0])
    looked = train(sampler, now, 3000, 0.02)
    assert max(asked) <= 100 and len(asked) <= 2 * len(looked) < 200


def test_every_step_if_asked() -> None:
    now = [0.0]
    sampler = Sampler(every=3, clock=lambda: now[0])
    assert train(sampler, now, 12, 1.0) == [3, 6, 9, 12]


def test_seconds_of_steps_that_were_not_looked_at() -> None:
    """On two ranks; the second is slower. Steps that are looked at take longer and do not count."""
    seen = []
    for rank in (0, 1):
        now = [0.0]
        sampler = Sampler(every=4, clock=lambda now=now: now[0])
        for _ in range(1, 33):
            slow = 5.0 * (sampler.wants() is not None)
            sampler.timing.backward_s = 0.02 + 0.01 * rank + slow
            sampler.timing.wait_s, sampler.timing.rest_s = 0.02 - 0.01 * rank, 0.01
            now[0] += 0.05 + slow
            if sample := sampler.wants():
                sample.gradients["w"] = Gradient(ONES, 0.01)
            sampler.step_ended()
        sampler.job.rank, sampler.job.ranks = rank, 2
        seen.append(sampler.seen())
        assert [row[0] for row in seen[-1].job.timings] == [s for s in range(1, 33) if s % 4]
    timing = figures.timing(seen)
    expected = Timing(step=0.05, backward=0.03, wait=0.01, rest=0.01)
    assert vars(timing) == pytest.approx(vars(expected))


@pytest.mark.parametrize(
    ("sizes_mb", "cap_mb", "buckets"),
    [
        ([0.5, 0.6, 2, 30, 1], 25, [[0.5, 0.6], [2, 30], [1]]),
        ([0.1, 28, 2, 28], 25, [[0.1, 28], [2, 28]]),
        ([0.5, 0.6, 2, 30, 1], 2, [[0.5, 0.6, 2], [30], [1]]),
    ],
)
def test_buckets_are_those_of_ddp(
    sizes_mb: list[float], cap_mb: int, buckets: list[list[float]]
) -> None:
    parameters: list[Any] = [SimpleNamespace(bytes=int(mb * (1 << 20)), mb=mb) for mb in sizes_mb]
    found: Any = figures.ddp_buckets(parameters, cap_mb << 20)
    assert [[p.mb for p in bucket] for bucket in found] == buckets


def test_why_there_is_nothing() -> None:
    with pytest.raises(samples.Unusable, match="made no optimizer step"):
        Sampler().seen()
    sampler = Sampler()
    sampler.step_ended()
    with pytest.raises(samples.Unusable, match="made 1 steps: too few"):
        sampler.seen()
    for _ in range(9):
        sampler.step_ended()
    with pytest.raises(samples.Unusable, match="in 10 steps no parameter had a gradient"):
        sampler.seen()


def test_files_hold_what_was_seen(tmp_path: Path) -> None:
    now = [0.0]
    sampler = Sampler(clock=lambda: now[0])
    train(sampler, now, 50, 0.0)
    seen = sampler.seen()
    whole = samples.save(seen, tmp_path).read_bytes()
    assert samples.load_all([tmp_path]) == [seen]
    for broken in (b"no such file", b"", whole[:99]):
        (tmp_path / "rank-0001-of-0002.npz").write_bytes(broken)
        with pytest.raises(samples.Unusable, match=r"rank-0001.*is no file of omnihvd's report"):
            samples.load_all([tmp_path])
    samples.remove_all(tmp_path)
    with pytest.raises(samples.Unusable, match="--report"):
        samples.load_all([tmp_path])


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    sampler = Sampler(every=1, clock=lambda: now[0])
    monkeypatch.setattr("omnihvd.report.sampler.MOST_BYTES", 20 * len(ONES.groups))
    train(sampler, now, 100, 0.0)
    assert 10 <= len(sampler.samples) <= 20 and sampler.samples[0].step > 2


def test_a_sparse_gradient_of_one_row_counts_as_a_dense_one() -> None:
    """As of RoBERTa's types of tokens."""
    counts = density.count_rows(1, 64, np.zeros(3, int), np.ones((3, 64), np.float32))
    job = Job(framework="tensorflow", step_s=0.1, shapes={"types": [1, 64]}, sparse=["types"])
    seen = Seen(job, [Sample(2, {"types": Gradient(counts, 0.0)}, rest_s=0.1)])
    content = command.content_of([seen], ["1gbit"], [4])
    sent = {p["scheme"]: p["sent"] for p in content["predictions"]}
    assert sent["rows"] == sent["omnireduce"] and sent["allgather"] == sent["ring"]
