"""What rank 0 says of its own accord: one line when sums are taken over, and one when none was.

The second comes as soon as the reason is known for sure, else after a while, or when the process
ends.
"""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

from omnihvd import engine
from omnihvd.carriers import in_use, nccl, torch_gloo
from omnihvd.frameworks import horovod_library
from omnihvd.frameworks.at_exit import at_exit
from omnihvd.launchers import process_rank
from omnihvd.log import say_once_per_job, warn_once_per_job
from omnihvd.statistics import CONTROL
from omnihvd.version import __version__

A_WHILE_S = 60.0


class Notices:
    """This process's."""

    def __init__(self) -> None:
        self._active = False  # said that sums are taken over
        self._explained = False  # said why none is taken
        self._others: set[str] = set()  # what PyTorch sums with, which is out of reach
        self._ranks = 0
        self._is_torchs = False  # not Horovod's
        self.is_command = False  # a script that may know nothing of omnihvd
        self.failed = False  # an exception ends the process, and says enough

    def begin(self) -> None:
        horovod_library.on_init(self._horovod_began)
        torch_gloo.on_init(self._torch_began)
        at_exit(self.end)

    def _horovod_began(self, horovod: Any) -> None:
        self._ranks, self._is_torchs = horovod.size(), False
        if in_use.horovod_problem():
            in_use.warn_if_unused()
            self._explained = True
        else:
            framework = horovod_library.framework_of(horovod)
            self._say_active(f"the sums of {framework} over {in_use.carrier_of(horovod)}")
        self._look_later()

    def _torch_began(self, c10d: ModuleType) -> None:
        self._ranks, self._is_torchs = c10d.get_world_size(), True
        backends = torch_gloo.backends(c10d)
        libraries = engine.hook.loaded_libraries(nccl.TORCH)
        carried = ["Gloo"] if torch_gloo.carries_gloo(c10d) else []
        if "nccl" in backends and libraries and not nccl.problem(libraries[0]):
            carried.append("NCCL")
        if carried:
            self._say_active(f"PyTorch's sums over {' and '.join(carried)}")
        else:
            self._others = backends
        self._look_later()

    def _say_active(self, what: str) -> None:
        if not self._active and self._ranks > 1:
            say_once_per_job(
                f"omnihvd {__version__} takes over {what}, on {self._ranks} ranks "
                "(OMNIHVD_LOG=error silences this line)"
            )
        self._active = True

    def _look_later(self) -> None:
        if process_rank() in (None, 0):
            timer = threading.Timer(A_WHILE_S, self._explain, [f"in {A_WHILE_S:.0f} s"])
            timer.daemon = True
            timer.start()

    def end(self) -> None:
        if not self.failed and (self._ranks or self.is_command):
            self._explain("in this job")

    def _explain(self, when: str) -> None:
        stats = engine.session.stats()
        if not self._explained and stats["calls"] + stats["sparse"]["gradients"] == 0:
            warn_once_per_job(f"no sum was taken over {when}: {self._why_none()}")
            self._explained = True

    def _why_none(self) -> str:
        if self._ranks == 1:
            return "it has one rank"
        sharded = ""
        if "torch.distributed.fsdp" in sys.modules:
            sharded = "; FSDP sums by reduce-scatter, which omnihvd leaves to the library"
        passed = {k: v for k, v in engine.session.stats()["passed"].items() if k != CONTROL}
        if passed:
            counts = [f"{p['calls']} {reason}" for reason, p in passed.items()]
            hint = " (under OMNIHVD_MIN_BYTES)" if "small" in passed else ""
            return f"all were left to the original library, as {', '.join(counts)}{hint}{sharded}"
        if self._others and not self._active:
            return (
                f"PyTorch's process group sums with {', '.join(sorted(self._others))} here, which "
                "omnihvd does not stand in for; it does for Gloo and NCCL, and for Horovod's MPI"
            )
        if self._ranks and self._active:
            missing = "is the model in DDP?" if self._is_torchs else "is the optimizer Horovod's?"
            return f"no allreduce was asked for{sharded or '; ' + missing}"
        if self._ranks:
            return "unknown"
        return "this process began neither Horovod nor torch.distributed"


notices = Notices()


def watch_exceptions() -> None:
    """Lets an uncaught exception be followed by why a sum failed, if one did."""
    previous = sys.excepthook

    def hook(kind: Any, error: Any, trace: Any) -> None:
        previous(kind, error, trace)
        notices.failed = True
        reason = engine.session.last_error()
        if reason:
            print(f"omnihvd: {reason}", file=sys.stderr, flush=True)

    sys.excepthook = hook
