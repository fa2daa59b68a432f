"""A sum under way, as torch.distributed sees it."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch
from torch.distributed import DistBackendError, Work

Tensors = list[torch.Tensor]


class SumWork(Work):
    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self._tensors = tensors
        self._error: DistBackendError | None = None
        self._ended = threading.Event()
        self._end: torch.futures.Future[Tensors] = torch.futures.Future()
        # What is raised in a callback is an error to C++ as well, as a future's exception is not.
        self._future = self._end.then(self._result)

    def _result(self, _: torch.futures.Future[Tensors]) -> Tensors:
        if self._error:
            raise self._error
        return self._tensors

    def end(self, failure: str = "") -> None:
        """It is done, or has failed."""
        if failure:
            self._error = DistBackendError(failure)
        self._ended.set()
        self._end.set_result(self._tensors)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """DistBackendError when the sum has failed, or has not ended in time (0: wait for it)."""
        if not self._ended.wait(timeout.total_seconds() or None):
            raise DistBackendError(f"omnihvd: a sum has not ended after {timeout}")
        if self._error:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future[Tensors]:
        return self._future

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_success(self) -> bool:
        return self._ended.is_set() and self._error is None

    def exception(self) -> DistBackendError | None:
        return self._error

    def result(self) -> Tensors:
        return self._tensors

    def synchronize(self) -> None:
        self.wait()
