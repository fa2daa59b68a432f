"""horovod.spark.run on a local Spark: sums are taken, over Gloo and over MPI."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

import pytest
from drivers import check_training, run_driver

MISSING = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
MISSING += [] if shutil.which("java") else ["Java"]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"without {', '.join(MISSING)}")


@pytest.mark.timeout(100)
@pytest.mark.parametrize("way", ["gloo", pytest.param("mpi", marks=pytest.mark.slow)])
def test_training(way: str) -> None:
    results = run_driver("spark_driver.py", way, timeout=90)
    check_training(results[way], 2)
    assert len({result["host"] for result in results[way]}) == 1
