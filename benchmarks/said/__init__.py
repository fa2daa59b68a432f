"""What documents say of the committed results: tables, and figures in sentences (figures.py)."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.said import (
    arithmetic,
    bench,
    compression,
    faults,
    first_sum,
    inline,
    loss,
    models,
    papers,
    scale,
    trainings,
)
from benchmarks.said.results import Said

TABLES: dict[str, Callable[[], str]] = {
    "hosts4": bench.hosts4,
    "peers": bench.peers,
    "scatters": bench.scatters,
    "others": trainings.others,
    "launchers": trainings.launchers,
    "predictions": trainings.predictions,
    "delay-control": compression.delay_control,
    "delay-control-varied": compression.delay_control_varied,
    "host-order": compression.host_order,
    "total-budget": compression.total_budget,
    "scale": scale.scale,
    "speed": scale.speed,
    "goal": scale.goal,
    "joins": scale.joins,
    "simulation-errors": scale.errors,
    "faults": faults.campaign,
    "mutations": faults.mutations,
    "loss": loss.loss,
    "inline": inline.inline,
    "papers": papers.papers,
    "arithmetic-errors": arithmetic.errors,
    "arithmetic-times": arithmetic.times,
    "model-zeros": models.zeros,
    "model-steps": models.steps,
    "model-sent": models.sent,
    "model-quality": models.quality,
    "model-time": models.to_quality,
}


SENTENCES: list[Callable[[], list[Said]]] = [
    bench.of_the_bench,
    bench.of_latency,
    trainings.of_the_map,
    trainings.of_launchers,
    compression.of_methods,
    compression.of_delay_control,
    compression.of_lossless,
    faults.of_faults,
    scale.of_scale,
    loss.of_loss,
    inline.of_inline,
    papers.of_papers,
    models.of_models,
    first_sum.of_the_first_sum,
]
