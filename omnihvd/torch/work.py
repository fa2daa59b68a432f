"""A sum under way, as torch.distributed sees it."""

from __future__ import annotations

import functools
import threading
from datetime import timedelta

import torch
from torch.distributed import DistBackendError, Work

Tensors = list[torch.Tensor]


class SumWork(Work):
    """Python alone keeps it alive. C++ that keeps it longer needs a work of its own: cpp_works.py
    makes them."""

    def __init__(self, tensors: Tensors, failure: str = "") -> None:
        """failure: why the sum has failed already."""
        super().__init__()
        self._tensors = tensors
        self._error: DistBackendError | None = None
        self._ended = threading.Event()
        self._end: torch.futures.Future[Tensors] = torch.futures.Future()
        # An error raised in a callback reaches C++; a future's exception does not.
        self._future = self._end.then(self._result)
        # C++ waits for the work, and then takes the future's value without waiting for that. The
        # future calls this first of all, so that callbacks may wait for the work.
        self._future.add_done_callback(lambda _: self._ended.set())
        if failure:
            self.end(failure)

    def _result(self, _: torch.futures.Future[Tensors]) -> Tensors:
        if self._error:
            raise self._error
        return self._tensors

    def end(self, failure: str = "") -> None:
        """Marks the sum as done, or as failed."""
        if failure:
            self._error = DistBackendError(failure)
        self._end.set_result(self._tensors)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits. DistBackendError when the sum failed or did not end in time (0: no limit)."""
        if not self._ended.wait(timeout.total_seconds() or None):
            raise DistBackendError(
                f"omnihvd: a sum has not ended after {timeout}: a rank is late or died, and its "
                "own output says which"
            )
        if self._error:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future[Tensors]:
        return self._future

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self._error is None

    def exception(self) -> DistBackendError | None:
        return self._error

    def result(self) -> Tensors:
        return self._tensors

    def synchronize(self) -> None:
        self.wait()


class DoneWork(SumWork):
    """The work of a sum that is done. It makes the future when it is asked for it: that takes
    longer than a small sum."""

    def __init__(self, tensors: Tensors) -> None:
        Work.__init__(self)
        self._tensors = tensors
        self._error = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    @functools.cached_property
    def _future(self) -> torch.futures.Future[Tensors]:  # type: ignore[override]
        future: torch.futures.Future[Tensors] = torch.futures.Future()
        future.set_result(self._tensors)
        return future
