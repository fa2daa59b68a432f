"""The tables of the documents, made from the committed results (figures.py)."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables import (
    arithmetic,
    bench,
    compression,
    faults,
    gpu,
    inline,
    loss,
    models,
    papers,
    scale,
    small,
    trainings,
)

TABLES: dict[str, Callable[[], str]] = {
    "hosts4": bench.hosts4,
    "allgathers": bench.allgathers,
    "small-sums": small.small_sums,
    "rows": small.rows,
    "peers": bench.peers,
    "scatters": bench.scatters,
    "others": trainings.others,
    "launchers": trainings.launchers,
    "predictions": trainings.predictions,
    "methods": compression.methods,
    "delay-control": compression.delay_control,
    "delay-control-varied": compression.delay_control_varied,
    "host-order": compression.host_order,
    "total-budget": compression.total_budget,
    "certificate": compression.certificate,
    "scale": scale.scale,
    "speed": scale.speed,
    "goal": scale.goal,
    "joins": scale.joins,
    "simulation-errors": scale.errors,
    "gpu": gpu.gpu,
    "faults": faults.campaign,
    "faults-processes": faults.processes,
    "fuzz": faults.fuzz,
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
    "soak": faults.soak,
}
