"""For all processes that tests start."""

from __future__ import annotations

import ctypes
import signal

ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",  # needs ptrace, which containers forbid
    "PYTHONFAULTHANDLER": "1",  # a rank that is aborted writes its stacks
    "OMP_NUM_THREADS": "1",
    "UCX_MEM_MMAP_HOOK_MODE": "none",  # programs load UCX in 0.4 s less, as Python does by itself
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
# For jobs of a launcher, too: all ranks share memory, and Open MPI's TCP ends by a second of sleep.
ONE_HOST = {"OMPI_MCA_btl": "self,vader"}


def end_with_parent() -> None:
    """In a child that is about to run its program: SIGTERM when this process, as pytest, dies."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
