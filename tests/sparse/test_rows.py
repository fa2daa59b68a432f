"""Sparse gradients as a sum of rows, in real jobs of both frameworks."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest
from launch import STREAM, launch

from omnihvd.sparse.gradients import few_shared

HERE = Path(__file__).parent / "on_ranks"


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("script", "ranks"), [("torch_rows.py", 2), ("torch_rows.py", 3), ("tensorflow_rows.py", 3)]
)
def test_training_equals_one_process(script: str, ranks: int) -> None:
    job = launch([HERE / script], ranks, env={**STREAM, "OMNIHVD_MIN_BYTES": "1024"}, timeout=180)
    assert all("all well" in output for output in job.ranks) and len(job.ranks) == ranks


@pytest.mark.timeout(100)
def test_plain_horovod_trains_the_same() -> None:
    """The same script without omnihvd, which says once that it is not in use."""
    job = launch([HERE / "torch_rows.py"], 2, env={"OMNIHVD_ENABLE": "0"}, timeout=90)
    assert all("all well" in output for output in job.ranks), job.output
    assert job.output.count("OmniReduce is not in use, Horovod reduces as without it") == 1


def test_importing_omnihvd_imports_no_framework() -> None:
    code = "import omnihvd, sys; print({'torch', 'tensorflow', 'horovod'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 100])
def test_rows_are_gathered_where_that_sends_no_more_than_a_sum(ranks: int) -> None:
    """Each rank has 60 rows; a sum sends (N-1)/N of these and of the union, as OmniReduce does."""
    own, each = 60, ranks - 1
    for union in range(own, own * ranks + 1):
        gathering, summing = each * own, each * (own + union) / ranks
        assert few_shared(union, own * ranks, ranks) == (gathering <= summing), union


def test_rows_of_many_ranks_exceed_int32() -> None:
    """Half of the rows are shared: a sum moves less, though (ranks - 1) * rows is over 2^31."""
    tf = pytest.importorskip("tensorflow")
    from omnihvd.sparse.tensorflow_rows import reduce_slices

    rows, sums = tf.range(20_000, dtype=tf.int64), []

    def allgather(part: object, **_: object) -> object:
        return tf.concat([part, part], 0)

    def add(values: object, **_: object) -> object:
        sums.append(values)
        return values

    hvd = types.SimpleNamespace(
        allgather=allgather,
        size_op=lambda process_set_id: tf.constant(1 << 16),
        Sum=1,
    )
    slices = tf.IndexedSlices(tf.ones([20_000, 1]), rows)
    options = {"process_set": types.SimpleNamespace(process_set_id=0), "op": 1, "average": None}
    options |= {"prescale_factor": 1.0, "postscale_factor": 1.0}
    reduce_slices(slices, hvd, add, **options)
    assert len(sums) == 1, "gathered the rows' values"
