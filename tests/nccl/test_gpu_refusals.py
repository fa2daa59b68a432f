"""Settings that GPUs cannot have: the sums stay NCCL's, and the reason is told."""

from __future__ import annotations

import subprocess
import sys

from nccl_job import run


def test_a_block_size_that_kernels_do_not_have(doubles):
    ranks = run(doubles, "passes.py", 2, "always", "kernels", env={"OMNIHVD_BLOCK_SIZE": "48"})
    assert all("all well" in rank.output for rank in ranks)
    said = (
        "a communicator of 2 ranks is left to NCCL; rank 0: OMNIHVD_BLOCK_SIZE=48: on GPUs it must "
        "be a power of two from 32 to 1024"
    )
    assert said in ranks[0].output


def test_a_process_without_nccl():
    program = (
        "import ctypes; from omnihvd import engine; _ = engine.session; "
        "assert ctypes.CDLL(str(engine.LIBRARIES / 'libomnihvd_nccl.so')).ncclCommDestroy(None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    said = "is loaded in this process: the program must be linked to the shared libnccl.so.2"
    assert said in done.stderr
