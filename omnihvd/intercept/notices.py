"""Rank 0's notices: one line when omnihvd intercepts sums, and one when it had none.

Both follow from calls and counts, not from imports: PyTorch imports FSDP for any optimizer. A slow
first step is no reason for a notice. So before the process ends, rank 0 reports that omnihvd had no
sums only if the job goes on summing without it, if the reason cannot change, or after ten minutes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import ModuleType
from typing import Any

from omnihvd import engine
from omnihvd.intercept import backends, children, horovod_library, in_use, torch_gloo
from omnihvd.intercept.at_exit import at_exit
from omnihvd.launchers import learn_rank, process_rank
from omnihvd.log import say_once_per_job, warn_once_per_job
from omnihvd.statistics import CONTROL, had_a_part
from omnihvd.version import __version__

LOOK_S = 60.0  # between two looks
LOOKS = 10


class Notices:
    """The notices of this process."""

    def __init__(self) -> None:
        self._active = False  # said that sums are intercepted
        self._explained = False  # said why none is, finally
        self._intercepted: list[str] = []  # PyTorch's libraries that omnihvd intercepts
        self._others: set[str] = set()  # PyTorch's libraries that omnihvd cannot intercept
        self._ranks = 0
        self._is_torchs = False  # not Horovod's
        self._process = 0  # its end is awaited
        self._looking = 0  # the process that looks now and then
        self.is_command = False  # a script that may know nothing of omnihvd
        self.failed = False  # an exception ends the process, and says enough

    def begin(self) -> None:
        horovod_library.on_init(self._horovod_began)
        torch_gloo.on_init(self._torch_began)
        self._wait_for_end()

    def _horovod_began(self, horovod: Any) -> None:
        self._ranks, self._is_torchs = horovod.size(), False
        backend = backends.backend_of(horovod)
        if backend is None or in_use.horovod_problem():
            in_use.warn_if_unused()
            self._explained = True
        else:
            framework = horovod_library.framework_of(horovod)
            self._say_active(f"the sums of {framework} over {backend.LIBRARY}")
        self._look_later()

    def _torch_began(self, c10d: ModuleType) -> None:
        self._ranks, self._is_torchs = c10d.get_world_size(), True
        learn_rank(c10d.get_rank())
        engine.session.set_log_rank(c10d.get_rank())
        self._intercepted = [b.LIBRARY for b in backends.TORCH if b.intercepts(c10d)]
        if self._intercepted:
            self._say_active(f"PyTorch's sums over {' and '.join(self._intercepted)}")
        else:
            self._others = torch_gloo.backends(c10d)
        self._look_later()

    def _say_active(self, what: str) -> None:
        if not self._active and self._ranks > 1:
            say_once_per_job(
                f"omnihvd {__version__} takes over {what}, on {self._ranks} ranks "
                "(OMNIHVD_LOG=error silences this line)"
            )
        self._active = True

    def _wait_for_end(self) -> None:
        if self._process != os.getpid():  # of a forked child, too
            self._process = os.getpid()
            at_exit(self.end)

    def _look_later(self) -> None:
        self._wait_for_end()
        if process_rank() in (None, 0) and self._looking != os.getpid():
            self._looking = os.getpid()
            threading.Thread(target=self._look, name="omnihvd notices", daemon=True).start()

    def _look(self) -> None:
        left_before = 0
        for look in range(1, LOOKS + 1):
            time.sleep(LOOK_S)
            if self._explained or not self._has_none():
                return
            left = sum(calls["calls"] for calls in _passed().values())
            self._explained = self._ranks == 1 or bool(self._others and not self._active)
            if self._explained or left > left_before > 0 or look == LOOKS:
                self._explain(f"in {look * LOOK_S:.0f} s")
                return
            left_before = left

    def end(self) -> None:
        if self._explained or self.failed or not self._has_none():
            return
        # Child processes report their own sums.
        if self._ranks or (self.is_command and not children.started):
            self._explain("in this job")

    def _has_none(self) -> bool:
        return not had_a_part(engine.session.stats())

    def _explain(self, when: str) -> None:
        warn_once_per_job(f"no sum was taken over {when}: {self._why_none()}")

    def _why_none(self) -> str:
        if self._ranks == 1:
            return "it has one rank"
        passed = _passed()
        if passed:
            counts = [f"{p['calls']} {reason}" for reason, p in passed.items()]
            hint = " (under OMNIHVD_MIN_BYTES)" if "small" in passed else ""
            return f"all were left to the original library, as {', '.join(counts)}{hint}"
        if self._others and not self._active:
            return (
                f"PyTorch's process group sums with {', '.join(sorted(self._others))} here, which "
                "omnihvd does not intercept; it does Gloo and NCCL, and Horovod's MPI"
            )
        if not self._ranks:
            return (
                "this process began neither Horovod nor torch.distributed; programs that it starts "
                "need `import omnihvd` themselves"
            )
        if not self._is_torchs:
            return "no allreduce was asked for; is the optimizer Horovod's?"
        scatters = "; the reduce-scatters of FSDP and ZeRO over NCCL stay NCCL's"
        return "no allreduce was asked for; is the model in DDP?" + (
            scatters if "NCCL" in self._intercepted else ""
        )


def _passed() -> dict[str, Any]:
    """Fallbacks to the original library by reason, without calls that sum no tensor."""
    return {k: v for k, v in engine.session.stats()["passed"].items() if k != CONTROL}


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
