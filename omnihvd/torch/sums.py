"""The sums of one process group, in the order of calls.

The group's thread makes each sum; if the caller waits anyway and nothing is queued, the caller's
thread makes it."""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Callable

import torch
from torch.distributed import DistBackendError

from omnihvd import engine
from omnihvd.compression.codec import Codec
from omnihvd.intercept.at_exit import at_exit
from omnihvd.launchers import process_rank
from omnihvd.sparse.row_union import RowUnion
from omnihvd.torch.detail import compares
from omnihvd.torch.gloo import Gloo, forget_devices
from omnihvd.torch.meetings import Meetings
from omnihvd.torch.work import DoneWork, SumWork

CLOSE_TIMEOUT_S = 10.0
MOST_SMALL = 1 << 20  # bytes of a sum that may be small


def name_of(dtype: torch.dtype) -> str:
    """The dtype's name in NumPy and the engine."""
    return str(dtype).replace("torch.", "")


_numbers = {getattr(torch, dtype): n for n, dtype in enumerate(engine.session.dtypes)}


class Sums:
    """The sums of the ranks that share `store`; nobody else may write to it.

    The constructor is collective: the ranks bootstrap, and rank 0's settings hold for all.
    RuntimeError, on all ranks, if one has wrong settings or does not come. later: they bootstrap at
    the first sum instead; then that sum fails, and the constructor does not wait. Engine and
    connections are made at the first sum. They never block a sum of another group: ranks may begin
    the sums of different groups in any order.
    """

    def __init__(self, store: Any, rank: int, size: int, later: bool = False) -> None:
        self._process = engine.session.OwnProcess()
        self._rank, self.size = rank, size
        self._communicator = engine.session.Communicator(rank, size)
        self._meetings = Meetings(store, rank, size)
        # All ranks must refuse alike. Before a later bootstrap, only the arguments decide.
        self._refuses = engine.session.Communicator(rank, size) if later else self._communicator
        self._gloo: Gloo | None = None
        self._met = False
        self._small = 0  # bytes: tensors of up to so many fall back as small
        self.compares = compares()
        self._timeout: timedelta | None = None  # of the last sum
        self._limit = timedelta(0)  # that, or OMNIHVD_TIMEOUT
        if not later:
            self._meet("the making of a process group")
        self._asked: queue.SimpleQueue[tuple[Callable[[], str], SumWork] | None]
        self._asked = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._order = threading.Lock()  # guards the count of unfinished sums
        self._unfinished = 0
        self._last: weakref.ref[SumWork] | None = None  # that the thread makes, or has made
        self._turn = threading.Lock()  # held by the thread that makes a sum
        self._closed = False
        self._coded = 0
        _open.add(self)
        _close_at_exit()

    def refusal(
        self, *tensors: torch.Tensor, codec: Codec | None = None, scatters: bool = False
    ) -> str:
        """The fallback reason for the sum of such tensors, on all ranks alike; empty: none. Asked
        once for each sum. A sparse tensor counts with all its rows, since ranks have different
        ones. scatters: the tensor is the input of a reduce-scatter."""
        if not tensors:
            return "empty"
        layouts, dtypes = ({getattr(t, what) for t in tensors} for what in ("layout", "dtype"))
        if len(dtypes) > 1 or not dtypes <= _numbers.keys():
            return "dtype"
        sparse = layouts == {torch.sparse_coo} and len(tensors) == 1 and not scatters
        if layouts != {torch.strided} and not sparse:
            return "layout"
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        reason: str = self._refuses.refusal(size, codec is not None, scatters)
        if codec or reason not in (["small"] if sparse else ["", "small"]):
            return reason
        return "small" if self._refuses.leaves_first(size, scatters) else ""

    def left_as_small(self, tensors: Any) -> int:
        """The bytes of a dense tensor in a list that falls back because it is small, whatever the
        operation; 0: refusal() knows. Beside such a sum, all else that a call needs takes long."""
        tensor = tensors[0] if isinstance(tensors, list) and len(tensors) == 1 else None
        if tensor is None or not tensor.is_cpu or tensor.dtype not in _numbers:
            return 0
        size: int = tensor.nbytes if tensor.layout is torch.strided else 0
        if size > self._small and self._refuses.refusal(size) == "small":
            self._small = size
        return size if 0 < size <= self._small and self._refuses.leaves_first(size) else 0

    def watch(self, work: Any) -> None:
        """Waits for a collective of the group's backend, as the caller is about to, and keeps an
        error of a connection: it also reaches the caller, since the work raises it again."""
        try:
            work.wait()
        except RuntimeError as why:
            if "gloo/transport" in str(why):  # else Gloo refuses the arguments, and goes on
                self._meetings.backend_failure = str(why)

    def allreduce(
        self,
        tensors: list[torch.Tensor],
        timeout: timedelta,
        average: bool = False,
        codec: Codec | None = None,
        waits: bool = False,
    ) -> SumWork:
        """Sums in place, after all earlier calls. Returns at once; if the caller `waits`, perhaps
        only when the sum is done, which saves two thread switches. timeout: of this sum, unless
        OMNIHVD_TIMEOUT is set. codec: for dense floating-point tensors of any size."""
        make = functools.partial(self._sum_all, tensors, codec, self._refuses.left_first())
        return self._ask("an allreduce", make, tensors, timeout, average, waits)

    def allreduce_small(
        self, tensors: list[torch.Tensor], timeout: timedelta, average: bool = False
    ) -> SumWork | None:
        """The same for a caller that waits, without what allreduce() does for others, if the sum is
        a small one in memory that the ranks share. None: it is not, and nothing is done."""
        tensor = tensors[0]
        count, number = tensor.numel(), _numbers.get(tensor.dtype)
        if (
            number is None
            or len(tensors) > 1
            or count * tensor.element_size() > MOST_SMALL
            or tensor.layout is not torch.strided
            or not tensor.is_contiguous()
        ):
            return None
        with self._order:
            if self._unfinished or self._closed or not self._met:
                return None
            self._unfinished += 1
            self._turn.acquire()
        try:
            self._set_timeout(timeout)
            if not self._communicator.sum_small(tensor.data_ptr(), count, number):
                return None
            if average:
                with _own_modes(tensors):
                    tensor.div_(self.size)
        except Exception as why:
            return SumWork(tensors, self._failure("an allreduce", why))
        finally:
            self._turn.release()
            self._ended()
        return DoneWork(tensors)

    def reduce_scatter(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        timeout: timedelta,
        average: bool = False,
        waits: bool = False,
    ) -> SumWork:
        """output: gets this rank's share of the sum of `given`, of equal size on all ranks. The
        rest as in allreduce."""
        make = functools.partial(self._scatter, output, given, self._refuses.left_first())
        return self._ask("a reduce-scatter", make, [output], timeout, average, waits)

    def _ask(
        self,
        what: str,
        sum_up: Callable[[], None],
        results: list[torch.Tensor],
        timeout: timedelta,
        average: bool,
        waits: bool,
    ) -> SumWork:
        self._process.check()
        if self._closed:
            raise DistBackendError("omnihvd: this process group has been destroyed: make another")
        make = functools.partial(self._make, what, sum_up, results, timeout, average)
        with self._order:
            here = waits and self._unfinished == 0
            self._unfinished += 1
            if here:
                self._turn.acquire()
            else:
                work = SumWork(results)
                self._last = weakref.ref(work)
                self._asked.put((make, work))
                self._serve()
        if not here:
            return work
        try:
            failure = make()
        finally:
            self._turn.release()
            self._ended()
        return SumWork(results, failure) if failure else DoneWork(results)

    def wait(self, timeout: timedelta | None = None) -> None:
        """Waits until all sums so far are done, well or not. DistBackendError if not in time."""
        last = self._last and self._last()
        if last and threading.current_thread() is not self._thread:
            try:
                last.wait(timeout or timedelta(0))
            except RuntimeError:
                if not last.is_completed():  # else the caller of that sum learns why
                    raise

    def join_in(self, begun: Any, timeout: timedelta) -> Any:
        """A work that ends once all sums so far have, and `begun`, the backend's barrier."""
        if self._unfinished == 0:
            return begun
        return self._ask("a barrier", begun.wait, [], timeout, average=False, waits=False)

    def close(self) -> None:
        """Leaves the group, in the background, once all queued sums are done."""
        if not self._closed and self._process.is_this():
            self._closed = True
            with self._order:
                self._asked.put(None)
                if self._gloo is not None:  # leaving Gloo takes time, perhaps for ever
                    with contextlib.suppress(RuntimeError):  # Python ends, and starts no threads
                        self._serve()

    def join(self) -> None:
        """Waits until close() is done, for CLOSE_TIMEOUT_S at most."""
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_TIMEOUT_S)

    def _serve(self) -> None:
        """Starts the group's thread. If the caller is that thread, another one takes its place: the
        caller is in a callback, and may wait for the sum that it asks for."""
        if self._thread is None or self._thread is threading.current_thread():
            before = self._thread
            self._thread = threading.Thread(target=self._run, name="omnihvd sums", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self._thread = before
                raise

    def _run(self) -> None:
        while asked := self._asked.get():
            make, work = asked
            with self._turn:
                failure = make()
            del make, asked  # drops the tensors, too
            work.end(failure)  # calls callbacks
            del work
            self._ended()
            if self._thread is not threading.current_thread():
                return
        with self._turn:  # waits for a caller that makes its own sum
            if self._gloo is not None:
                self._gloo.close()
            del self._communicator

    def _ended(self) -> None:
        with self._order:
            self._unfinished -= 1

    def _make(
        self,
        what: str,
        sum_up: Callable[[], None],
        results: list[torch.Tensor],
        timeout: timedelta,
        average: bool,
    ) -> str:
        """Makes the sum. Returns why it failed; empty: it did not."""
        try:
            with _own_modes(results):
                self._meet("the first allreduce of a hook", timeout)
                self._set_timeout(timeout)
                if self._gloo is not None:
                    self._gloo.begin_sum()
                sum_up()
                if average:
                    for tensor in results:
                        tensor.div_(self.size)
        except Exception as why:
            return self._failure(what, why)
        return ""

    def _failure(self, what: str, why: Exception) -> str:
        main = threading.current_thread() is threading.main_thread()
        if main and not isinstance(why, RuntimeError):  # the handler of a signal raised it
            raise why
        return f"omnihvd: {what} has failed on rank {self._rank} of {self.size}: {why}"

    def _meet(self, where: str, timeout: timedelta | None = None) -> None:
        """Bootstraps; collective. Does nothing after the first time. timeout: of a sum, to which a
        rank may come as late."""
        if self._met:
            return
        warning_s, limit_s = engine.session.meeting_limits_s()
        if timeout is not None:
            limit_s = timeout.total_seconds()
        self._communicator.meet(
            lambda greeting: self._meetings.gather(
                "made",
                greeting,
                limit_s,
                where,
                "it runs without omnihvd (import omnihvd before init_process_group() on every "
                "rank), or died",
                warning_s,
            )
        )
        self._met = True

    def _set_timeout(self, timeout: timedelta) -> None:
        if timeout == self._timeout:
            return
        self._timeout = timeout
        self._limit = timedelta(seconds=self._communicator.set_timeout(timeout.total_seconds()))
        if self._gloo is not None:
            self._gloo.set_timeout(self._limit)

    def _library(self) -> Gloo:
        """The original library. Only the thread that makes a sum may call it."""
        if self._gloo is None:
            self._gloo = Gloo(self._meetings, self._rank, self.size, self._limit)
        return self._gloo

    def _sum_all(self, tensors: list[torch.Tensor], codec: Codec | None, takes_small: bool) -> None:
        if len(tensors) > 1:
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            self._sum_one(flat, codec, takes_small)
            for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors])):
                tensor.copy_(part.view(tensor.shape))
        else:
            self._sum_one(tensors[0], codec, takes_small)

    def _scatter(self, output: torch.Tensor, given: torch.Tensor, takes_small: bool) -> None:
        straight, share = given.contiguous(), output.contiguous()  # no copies if contiguous
        self._communicator.reduce_scatter(
            straight.data_ptr(),
            share.data_ptr(),
            share.numel(),
            name_of(share.dtype),
            self._library(),
            takes_small,
        )
        if share is not output:
            output.copy_(share)

    def _sum_rows(self, union: RowUnion) -> torch.Tensor | None:
        """Sums the rows as a list, and counts them. Returns the sum, for union.result(); None, on
        all ranks alike, if the engine sums no such rows."""
        values, rows = union.values.contiguous(), union.rows.contiguous()
        length, dtype = math.prod(values.shape[1:]), name_of(values.dtype)
        if not self._communicator.takes_rows(dtype, length):
            return None
        at, rows_at, gather = values.data_ptr(), rows.data_ptr(), self._library().allgather
        sum_rows = self._communicator.sum_rows
        count = sum_rows(at, rows_at, len(rows), length, union.every, dtype, gather)
        numbers, total = rows.new_empty(count), values.new_empty((count, *values.shape[1:]))
        self._communicator.take_rows(numbers.data_ptr(), total.data_ptr())
        union.count_union(numbers, self.size * len(rows))
        return total

    def _sum_one(self, tensor: torch.Tensor, codec: Codec | None, takes_small: bool) -> None:
        if tensor.layout == torch.sparse_coo:
            union = RowUnion(tensor)
            total = self._sum_rows(union)
            if total is None:
                union.unite(torch.cat(self._library().gather(union.rows)))
                total = union.matrix()
                if len(total) > 0:
                    self._sum(total, total.dtype, takes_small=takes_small)
            tensor.data = union.result(total)  # not copied once more
        elif codec and tensor.is_floating_point():
            self._meetings.agree_on(codec.name, self._limit.total_seconds())
            self._coded += 1
            self._sum(tensor, torch.float32, codec=codec.engine_codec(seed=self._coded))
        elif refusal := self._sum(tensor, tensor.dtype, takes_small=takes_small):
            engine.session.count_pass(refusal, tensor.numel() * tensor.element_size())

    def _sum(self, tensor: torch.Tensor, dtype: torch.dtype, **how: Any) -> str:
        """Returns the fallback reason if the original library made the sum; empty: omnihvd did. A
        reason may first arise here: a union of rows may be small where the whole tensor was not,
        and ranks that bootstrapped late learn the settings only now. how: as Communicator.sum's;
        with any of it the size does not matter."""
        straight = tensor.to(dtype).contiguous()  # itself, if it is that
        at, count = straight.data_ptr(), straight.numel()
        refusal = self._communicator.refusal(count * straight.element_size(), any(how.values()))
        if refusal:
            self._library().sum_tensor(straight)
        else:
            self._communicator.sum(at, count, name_of(dtype), self._library(), **how)
        if straight is not tensor:
            tensor.data.copy_(straight)  # as Gloo, unseen by autograd
        return refusal


@contextlib.contextmanager
def _own_modes(results: list[torch.Tensor]) -> Iterator[None]:
    """Sets the modes that the sum needs: modes belong to a thread, and it may not be the caller's.
    Only inference mode may write inference tensors. Function modes, such as a default device, would
    change temporary tensors."""
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
    everything = list(_open)  # closed ones may still be ending
    for sums in everything:
        sums.close()
    for sums in everything:
        sums.join()
    forget_devices()
    engine.session.stop("Gloo")
