"""Hosts with several ranks: each rank's gradient is compressed, or the host's sum."""

from pathlib import Path

import pytest
from launch import STREAM, launch

SCRIPT = Path(__file__).parent / "on_ranks" / "host_order.py"


def test_hosts_sum_before_they_compress():
    pytest.importorskip("horovod.torch", exc_type=ImportError)
    env = {**STREAM, "OMNIHVD_COMPRESS_FIRST": "0", "OMNIHVD_MIN_BYTES": "0"}
    job = launch([SCRIPT], 4, env={**env, "OMPI_MCA_mpi_yield_when_idle": "1"}, timeout=90)
    assert all("all well" in output for output in job.ranks), job.output
