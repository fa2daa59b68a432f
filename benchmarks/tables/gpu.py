"""Table of docs/gpu.md: estimates of sums on GPUs, by the model (benchmarks/gpu_model.py)."""

from __future__ import annotations

from benchmarks import gpu_model
from benchmarks.bench.report import markdown


def gpu() -> str:
    def cell(row: dict[str, float], union: float) -> str:
        found = row[f"gain_{union:g}"]
        return f"{found:.1f}" if found >= gpu_model.LEAST_GAIN else "NCCL"

    lines = [
        [
            f"{row['mb']} MB, {row['gpus']:,}",
            f"{row['nccl_us']:.0f}",
            f"{row['look_us']:.0f}",
            *(cell(row, union) for union in gpu_model.UNIONS),
            f"{row['dense']:.2f}",
        ]
        for row in gpu_model.rows()
        if row["mb"] in (4, 25, 100) and row["gpus"] in (16, 128, 1024)
    ]
    heads = [f"union {union:.0%}" for union in gpu_model.UNIONS]
    return markdown(["tensor, GPUs", "NCCL, us", "look, us", *heads, "dense"], lines)
