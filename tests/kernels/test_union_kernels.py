"""The GPU's test of the union's kernels, and its benchmark, on emulated kernels."""

from __future__ import annotations

import json
import sys

import pytest
from union_kernels import check_union_kernels

from benchmarks import gpu_times, union_gpu


@pytest.mark.parametrize(
    "dtype, block_size, size",
    [("float32", 256, 300_001), ("bfloat16", 32, 140_003), ("float32", 32, 31)],
)
def test_union_kernels(no_gpu, double, dtype, block_size, size):
    check_union_kernels(double, dtype, block_size, size)


def test_the_benchmark(no_gpu, double, tmp_path, monkeypatch, capsys):
    double.cuda.runtime.getDeviceProperties = lambda _: {"name": b"none"}
    monkeypatch.setattr(union_gpu, "beside_products", lambda *_: {"us": {"alone": [1.0]}})
    monkeypatch.setattr(gpu_times, "SAMPLES", 2)
    output = tmp_path / "union.json"
    words = ["union_gpu.py", "--megabytes", "1", "--densities", "0.1", "--json", str(output)]
    monkeypatch.setattr(sys, "argv", words)
    union_gpu.main()
    found = json.loads(output.read_text())["results"]
    steps = ["copy", "mark", "unite", "gather", "spread", "rest", "chain", "launched"]
    assert list(found[0]["us"]) == steps and len(found[0]["us"]["chain"]) == 2
    said = capsys.readouterr().out
    assert "1 MB, 10%: copy 100.0 mark" in said and "priority -5: alone 1.0" in said
