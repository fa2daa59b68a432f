"""Table of docs/gpu.md: estimates of sums on GPUs, by the model (benchmarks/gpu_model.py)."""

from __future__ import annotations

from benchmarks import gpu_model
from benchmarks.bench.report import markdown


def gpu() -> str:
    def cell(gain: float) -> str:
        return f"{gain:.1f}" if gain >= gpu_model.LEAST_GAIN else "NCCL"

    # On one server auto leaves all sums to NCCL.
    lines = [["any, 8", "", "", "NCCL", "NCCL", "NCCL", "1.00"]]
    at = {(row["mb"], row["gpus"], row["wait_us"]): row for row in gpu_model.rows()}
    for mb, sizes in ((4, (16,)), (25, (16, 128, 1024)), (100, (16, 128, 1024))):
        for gpus in sizes:
            waits = [at[mb, gpus, wait] for wait in gpu_model.WAIT_US]
            line = [f"{mb} MB, {gpus:,}"]
            line += [f"{waits[0][name]:.0f}" for name in ("nccl_us", "look_us")]
            for union in gpu_model.UNIONS:
                cells = [cell(row[f"gain_{union:g}"]) for row in waits]
                line.append(" / ".join(cells) if set(cells) != {"NCCL"} else "NCCL")
            lines.append([*line, " / ".join(f"{row['dense']:.2f}" for row in waits)])
    heads = [f"union {union:.0%}" for union in gpu_model.UNIONS]
    return markdown(["tensor, GPUs", "NCCL, us", "look, us", *heads, "dense"], lines)
