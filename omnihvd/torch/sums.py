"""The sums of one process group, in the order in which they are asked for: each made by the group's
thread, or, if its caller waits for it anyway and nothing is before it, by that."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Callable

import torch
from torch.distributed import DistBackendError

from omnihvd import engine
from omnihvd.codecs.codec import Codec
from omnihvd.frameworks.at_exit import at_exit
from omnihvd.launchers import process_rank
from omnihvd.sparse.row_union import RowUnion
from omnihvd.torch.gloo import Gloo
from omnihvd.torch.meetings import Meetings
from omnihvd.torch.work import SumWork

CLOSE_TIMEOUT_S = 10.0


def name_of(dtype: torch.dtype) -> str:
    """As NumPy and the engine call it."""
    return str(dtype).replace("torch.", "")


class Sums:
    """What the ranks that share `store`, which nobody else writes to, sum.

    The constructor is collective: rank 0's settings hold for all. timeout: of a sum, unless
    OMNIHVD_TIMEOUT says another; 0: none. RuntimeError, on all ranks, if the settings of one are
    wrong or one does not come. Engine and connections are made at the first sum.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self._process = engine.session.OwnProcess()
        self._store, self._rank, self.size, self._timeout = store, rank, size, timeout
        self._communicator = engine.session.Communicator(rank, size, timeout.total_seconds())
        self._meetings = Meetings(store, rank, size)
        self._communicator.meet(
            lambda greeting: self._meetings.gather(
                "made",
                greeting,
                engine.session.meeting_patience_s(),
                "the making of a process group",
                "it runs without omnihvd (import it before init_process_group(), everywhere), or "
                "died",
            )
        )
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._order = threading.Lock()  # of the count of what is asked for and not yet done
        self._unfinished = 0
        self._turn = threading.Lock()  # of whom makes a sum
        self._closed = False
        self._coded = 0
        _open.add(self)
        _close_at_exit()

    def refusal(
        self, *tensors: torch.Tensor, codec: Codec | None = None, scatters: bool = False
    ) -> str:
        """Why the sum of such tensors is not made here, on all ranks alike; empty: it is. A sparse
        tensor counts with all its rows: ranks have different ones. scatters: it is the input of a
        reduce-scatter."""
        if not tensors:
            return "empty"
        layouts, dtypes = ({getattr(t, what) for t in tensors} for what in ("layout", "dtype"))
        if len(dtypes) > 1 or name_of(*dtypes) not in engine.session.dtypes:
            return "dtype"
        sparse = layouts == {torch.sparse_coo} and len(tensors) == 1 and not scatters
        if layouts != {torch.strided} and not sparse:
            return "layout"
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return self._communicator.refusal(size, codec is not None, scatters)

    def allreduce(
        self,
        tensors: list[torch.Tensor],
        average: bool = False,
        codec: Codec | None = None,
        waits: bool = False,
    ) -> SumWork:
        """In place, once all that was asked for before has been done; returns at once, unless the
        caller waits for it: then perhaps when it is done, which saves two changes of threads.
        codec: of dense floating-point numbers, and of any size."""
        make = functools.partial(self._sum_all, tensors, codec)
        return self._ask("an allreduce", make, tensors, average, waits)

    def reduce_scatter(
        self, output: torch.Tensor, given: torch.Tensor, average: bool = False, waits: bool = False
    ) -> SumWork:
        """output: this rank's share of the sum of `given`, of which each rank has as much. Else as
        allreduce."""
        make = functools.partial(self._scatter, output, given)
        return self._ask("a reduce-scatter", make, [output], average, waits)

    def _ask(
        self,
        what: str,
        sum_up: Callable[[], None],
        results: list[torch.Tensor],
        average: bool,
        waits: bool,
    ) -> SumWork:
        self._process.check()
        if self._closed:
            raise DistBackendError("omnihvd: this process group has been destroyed")
        work = SumWork(results)
        make = functools.partial(self._make, what, work, sum_up, results, average)
        with self._order:
            here = waits and self._unfinished == 0
            self._unfinished += 1
            if here:
                self._turn.acquire()
            else:
                self._asked.put(make)
                self._start()
        if here:
            try:
                make()
            finally:
                self._ended()
        return work

    def close(self) -> None:
        """Leaves the group, when what was asked for is done."""
        if not self._closed and self._process.is_this():
            self._closed = True
            self._asked.put(None)
            if "_gloo" in self.__dict__:  # which takes time, and may take for ever
                self._start()
            if self._thread and self._thread is not threading.current_thread():
                self._thread.join(CLOSE_TIMEOUT_S)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="omnihvd sums", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            make = self._asked.get()
            if make is None:
                break
            self._turn.acquire()
            make()
            del make  # and with it the tensors
            self._ended()
        with self._turn:  # of who makes a sum that it waits for
            if "_gloo" in self.__dict__:  # it was used
                self._gloo.close()
            del self._communicator

    def _ended(self) -> None:
        self._turn.release()
        with self._order:
            self._unfinished -= 1

    @functools.cached_property
    def _gloo(self) -> Gloo:
        self._meetings.gather(
            "begun",
            b"",
            self._timeout.total_seconds(),
            "the first allreduce of a process group",
            "it is late, does something else, or died",
        )
        return Gloo(self._store, self._rank, self.size, self._timeout)

    def _make(
        self,
        what: str,
        work: SumWork,
        sum_up: Callable[[], None],
        results: list[torch.Tensor],
        average: bool,
    ) -> None:
        try:
            with _own_modes(results):
                sum_up()
                if average:
                    for tensor in results:
                        tensor.div_(self.size)
        except Exception as why:
            work.end(f"omnihvd: {what} has failed on rank {self._rank} of {self.size}: {why}")
        else:
            work.end()

    def _sum_all(self, tensors: list[torch.Tensor], codec: Codec | None) -> None:
        if len(tensors) > 1:
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            self._sum_one(flat, codec)
            for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors])):
                tensor.copy_(part.view(tensor.shape))
        else:
            self._sum_one(tensors[0], codec)

    def _scatter(self, output: torch.Tensor, given: torch.Tensor) -> None:
        straight, share = given.contiguous(), output.contiguous()  # themselves, if they are that
        self._communicator.reduce_scatter(
            straight.data_ptr(), share.data_ptr(), share.numel(), name_of(share.dtype), self._gloo
        )
        if share is not output:
            output.copy_(share)

    def _sum_one(self, tensor: torch.Tensor, codec: Codec | None) -> None:
        if tensor.layout == torch.sparse_coo:
            union = RowUnion(tensor)
            total = union.matrix(torch.cat(self._gloo.gather(union.rows)))
            if len(total) > 0:
                self._sum_union(total)
            tensor.copy_(union.result(total))
        elif codec and tensor.is_floating_point():
            self._meetings.agree_on(codec.name)
            self._coded += 1
            self._sum(tensor, torch.float32, codec.engine_codec(seed=self._coded))
        else:
            self._sum(tensor, tensor.dtype)

    def _sum_union(self, rows_of_any: torch.Tensor) -> None:
        """Which may be small, where the whole was not."""
        if self.refusal(rows_of_any):
            self._gloo.sum_tensor(rows_of_any)
        else:
            self._sum(rows_of_any, rows_of_any.dtype)

    def _sum(self, tensor: torch.Tensor, dtype: torch.dtype, *codec: Any) -> None:
        straight = tensor.to(dtype).contiguous()  # itself, if it is that
        at, count = straight.data_ptr(), straight.numel()
        self._communicator.sum(at, count, name_of(dtype), self._gloo, *codec)
        if straight is not tensor:
            tensor.data.copy_(straight)  # as Gloo, unseen by autograd


@contextlib.contextmanager
def _own_modes(results: list[torch.Tensor]) -> Iterator[None]:
    """Modes belong to a thread, which may or may not be the caller's. Only inference mode lets
    tensors of inference mode be written. Function modes, as a default device, would change what is
    made on the way."""
    inference = any(tensor.is_inference() for tensor in results)
    no_functions: Any = torch._C.DisableTorchFunction
    with no_functions(), torch.inference_mode() if inference else torch.no_grad():
        yield


_open: weakref.WeakSet[Sums] = weakref.WeakSet()


@functools.cache
def _close_at_exit() -> None:
    if (rank := process_rank()) is not None:
        engine.session.set_log_rank(rank)
    at_exit(_close_all)


def _close_all() -> None:
    for sums in list(_open):
        sums.close()
    engine.session.stop("Gloo")
