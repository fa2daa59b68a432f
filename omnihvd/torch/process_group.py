"""torch.distributed's process groups on Gloo, with sums by omnihvd.

A process group holds a backend for each kind of device. Python can subclass c10d's process groups
but not its backends. So when c10d makes a group with Gloo or "omnihvd" as the CPU's backend, the
group gets a class of ours that overrides allreduce and reduce_scatter_tensor. C++, such as DDP,
calls the overrides, too. The backends stay unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any, Callable

import torch
from torch.distributed import (
    Backend,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    ReduceOp,
    Work,
    distributed_c10d,
)
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ReduceScatterOptions,
)

from omnihvd import engine
from omnihvd.compression.codec import Codec
from omnihvd.intercept.after_import import after_import
from omnihvd.intercept.at_exit import at_exit
from omnihvd.log import warn_once_per_job
from omnihvd.torch.cpp_works import mend_ddp, register_in_flight
from omnihvd.torch.detail import compare, compare_scatter
from omnihvd.torch.sums import Sums
from omnihvd.torch.work import SumWork

NAME = "omnihvd"
Made = tuple[Any, Any]  # a process group and its store


class OmnihvdProcessGroup(ProcessGroup):
    """Forwards all but allreduce and reduce_scatter_tensor to a plain process group with the same
    backends.

    Inherited methods could deadlock: where C++ lets Python override a method, it calls its own
    method with Python's lock held, and Gloo's threads may be waiting for that lock.
    """

    omnihvd_intercepts = True
    omnihvd_sums: Sums | None = None
    omnihvd_options: Any = None  # the CPU backend's

    def __init__(self, store: Any, rank: int, size: int) -> None:
        # The only constructor that a Python class can call takes no store.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._omnihvd_plain = ProcessGroup(store, rank, size)
        for timer in filter(threading.Timer.is_alive, list(_ended)):
            timer.cancel()
            _ended.pop(timer, None)
        mend_ddp()
        distributed_c10d.type = _class_for_c10d  # type: ignore[attr-defined]

    def allreduce(  # type: ignore[override]
        self, tensors: Any, *args: Any, **kwargs: Any
    ) -> Work:
        sums = self.omnihvd_sums
        if sums is None or not (small := sums.left_as_small(tensors)):
            if taken := self._take(tensors, *args, **kwargs):
                return taken
        else:
            engine.session.count_pass("small", small)
        work = self._omnihvd_plain.allreduce(tensors, *args, **kwargs)
        return _watched(self, tensors, work, _waits(*args, **kwargs))

    def allreduce_coalesced(self, tensors: Any, *args: Any, **kwargs: Any) -> Work:
        work = self._take(tensors, *args, collective="allreduce_coalesced", **kwargs)
        return work or self._omnihvd_plain.allreduce_coalesced(tensors, *args, **kwargs)

    def _take(
        self, tensors: Any, *args: Any, collective: str = "allreduce", **kwargs: Any
    ) -> SumWork | None:
        timeout, waits = _timeout(*args, **kwargs), _waits(*args, **kwargs)
        op = _op(*args, **kwargs)
        return take(self, tensors, op, timeout=timeout, waits=waits, collective=collective)

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any = None) -> Work:
        work = take_scatter(self, output, given, opts, "reduce_scatter_single")
        return work or self._plain_scatter("reduce_scatter_single", output, given, opts)

    def _reduce_scatter_base(self, output: Any, given: Any, opts: Any = None) -> Work:
        work = take_scatter(self, output, given, opts, "_reduce_scatter_base")
        return work or self._plain_scatter("_reduce_scatter_base", output, given, opts)

    def _plain_scatter(self, name: str, output: Any, given: Any, opts: Any) -> Work:
        plain = getattr(self._omnihvd_plain, name)  # not every PyTorch has both
        work = plain(output, given, opts or ReduceScatterOptions())
        return _watched(self, [output], work, _waits(opts))

    def barrier(self, *args: Any, **kwargs: Any) -> Work:
        sums, waits = self.omnihvd_sums, _waits(*args, **kwargs)
        if sums and waits:  # Gloo's waits for all sums before it
            sums.wait(_timeout(*args, **kwargs))
        work = self._omnihvd_plain.barrier(*args, **kwargs)
        return work if waits or not sums else sums.join_in(work, _timeout_of(self))

    def shutdown(self) -> None:
        _close(self)
        self._omnihvd_plain.shutdown()

    def abort(self) -> None:
        _close(self)
        self._omnihvd_plain.abort()

    def _register_backend(self, *args: Any) -> None:
        super()._register_backend(*args)
        self._omnihvd_plain._register_backend(*args)

    def _set_default_backend(self, kind: Any) -> None:
        super()._set_default_backend(kind)
        self._omnihvd_plain._set_default_backend(kind)


PLAIN = """
    get_group_store split_group merge_remote_group
    allgather all_gather_single_coalesced allgather_into_tensor_coalesced
    all_to_all_single alltoall_base broadcast reduce_scatter
    reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced send recv
"""


def _plainly(name: str) -> Any:
    def method(self: OmnihvdProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._omnihvd_plain, name)(*args, **kwargs)

    return method


for name in PLAIN.split():
    if hasattr(ProcessGroup, name):  # not every PyTorch has all of them
        setattr(OmnihvdProcessGroup, name, _plainly(name))


# Else torch.compile would trace into the methods here, and fail.
after_import("torch._dynamo.trace_rules", lambda rules: rules.add("omnihvd"))


def _class_for_c10d(x: Any) -> Any:
    # c10d joins a batch's sends and receives only for this very class. Apart, NCCL's deadlock.
    return distributed_c10d.ProcessGroup if isinstance(x, OmnihvdProcessGroup) else type(x)


_sums: weakref.WeakKeyDictionary[Any, Sums | None] = weakref.WeakKeyDictionary()


def sums_of(group: Any) -> Sums | None:
    """omnihvd's sums of a process group; None if omnihvd does not intercept it."""
    return getattr(group, "omnihvd_sums", None) or _sums.get(group)


def give_sums(group: Any, later: bool = False) -> None:
    """Attaches Sums to a process group, once. Collective. RuntimeError and `later` as in Sums."""
    store = PrefixStore("omnihvd", group.get_group_store())
    sums = _sums[group] = Sums(store, group.rank(), group.size(), later)
    if isinstance(group, OmnihvdProcessGroup):
        group.omnihvd_sums = sums
    else:  # its class tells nobody that it is destroyed
        weakref.finalize(group, sums.close).atexit = False


def _watched(group: Any, tensors: Any, work: Any, waits: bool) -> Any:
    """The backend's work. If it fails, later sums do not wait for the rank that has died."""
    sums = sums_of(group)
    all_tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    if waits and sums is not None and all(tensor.is_cpu for tensor in all_tensors):
        sums.watch(work)
    return work


def take(
    group: Any,
    tensors: Any,
    op: Any = ReduceOp.SUM,
    codec: Codec | None = None,
    timeout: timedelta | None = None,
    waits: bool = False,
    collective: str = "allreduce",
) -> SumWork | None:
    """Begins the allreduce of a tensor, or of all in a list, in place. Returns None for a fallback
    to the group's backend, on all ranks alike, and counts it. timeout: None: the group's. waits:
    whether the caller waits at once. collective: the group's method that was called."""
    sums = sums_of(group)
    if sums is None:
        return None
    given = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    all_tensors = [tensor for each in given if (tensor := _in_memory(each)) is not None]
    if len(all_tensors) < len(given):
        return None
    summing = op == ReduceOp.SUM
    average = not summing and op == ReduceOp.AVG and all(t.is_floating_point() for t in all_tensors)
    summing |= average
    timeout = timeout or _timeout_of(group)
    plain = waits and summing and bool(all_tensors) and not codec and not sums.compares
    if plain and (small := sums.allreduce_small(all_tensors, timeout, average)):
        return small
    reason = sums.refusal(*all_tensors, codec=codec) if summing else "op"
    if collective == "allreduce" and len(all_tensors) > 1:
        reason = "layout"  # Gloo adds the tensors of a list to each other, too
    if not reason:
        if sums.compares:
            compare(group, collective, all_tensors)
        work = sums.allreduce(all_tensors, timeout, average, codec, waits)
        register_in_flight(all_tensors, work)
        return work
    for tensor in all_tensors:
        engine.session.count_pass(reason, tensor.numel() * tensor.element_size())
    return None


def _in_memory(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor on the CPU that holds its elements; None: there is none. Subclasses that dispatch
    operations to another tensor have no memory of their own, such as DTensors; the result of a
    functional collective is one until its work has ended."""
    kind = type(tensor)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        if not isinstance(tensor, AsyncCollectiveTensor):
            return None
        tensor = tensor.trigger_wait()
    return tensor if tensor.is_cpu else None


def take_scatter(group: Any, output: Any, given: Any, opts: Any, collective: str) -> SumWork | None:
    """Begins the reduce-scatter of a tensor in equal shares. Returns None for a fallback to the
    group's backend, on all ranks alike, and counts it. collective: as in take()."""
    sums = sums_of(group)
    if sums is None or (output := _in_memory(output)) is None:
        return None
    if (given := _in_memory(given)) is None:
        return None
    if output.dtype != given.dtype or output.numel() * sums.size != given.numel():
        return None  # the backend has the better error message
    op = _op(opts or ReduceScatterOptions())
    average = op == ReduceOp.AVG and given.is_floating_point()
    summing = average or op == ReduceOp.SUM
    reason = sums.refusal(given, scatters=True) if summing else "op"
    if not reason:
        if sums.compares:
            compare_scatter(group, collective, output, given, opts or ReduceScatterOptions())
        timeout = _timeout(opts) or _timeout_of(group)
        work = sums.reduce_scatter(output, given, timeout, average, _waits(opts))
        register_in_flight([output], work)
        return work
    engine.session.count_pass(reason, given.numel() * given.element_size())
    return None


def _op(opts: Any = ReduceOp.SUM, timeout: Any = None, op: Any = None) -> Any:
    """The operation among the arguments after the tensors of ProcessGroup.allreduce and the like,
    in all of their forms."""
    if isinstance(opts, (AllreduceOptions, AllreduceCoalescedOptions, ReduceScatterOptions)):
        return opts.reduceOp
    return opts if op is None else op


def _timeout(opts: Any = None, timeout: Any = None, **_kwargs: Any) -> timedelta | None:
    """The time-out among the same arguments; None: they have none."""
    timeout = getattr(opts, "timeout", timeout)
    return timeout if timeout is not None and timeout > timedelta(0) else None


def _timeout_of(group: Any) -> timedelta:
    """A process group's current time-out: set_timeout() may change it."""
    options = getattr(group, "omnihvd_options", None)  # asked for anew, they take longer
    if options is None:
        options = group._get_backend(torch.device("cpu")).options
        if isinstance(group, OmnihvdProcessGroup):
            group.omnihvd_options = options
    timeout: timedelta = options._timeout
    return timeout


def _waits(opts: Any = None, *_args: Any, **_kwargs: Any) -> bool:
    """Whether the caller of ProcessGroup.allreduce is dist.all_reduce(async_op=False). False if
    unknown: not every PyTorch says."""
    return not getattr(opts, "asyncOp", True)


# Backends of groups that were shut down, which close connections a second after the group has gone.
# Gloo's destructor joins threads that may wait for Python's lock. A last owner in C++, as DDP's
# reducer, would hold the lock meanwhile; Python's own reference drops it.
_ended: dict[threading.Timer, Any] = {}
_drop_ended_at_exit = functools.cache(lambda: at_exit(_ended.clear))


def _close(group: OmnihvdProcessGroup) -> None:
    _drop_ended_at_exit()
    timer = threading.Timer(1.0, lambda: _ended.pop(timer, None))
    timer.daemon = True
    _ended[timer] = group._omnihvd_plain._get_backend(torch.device("cpu"))
    weakref.finalize(group, _start, timer).atexit = False
    group.omnihvd_sums = None
    if sums := _sums.pop(group, None):
        sums.close()


def _start(timer: threading.Timer) -> None:
    with contextlib.suppress(RuntimeError):  # Python ends, and starts no threads
        timer.start()


def new_group(original: Callable[..., Made], c10d: ModuleType, *args: Any, **kwargs: Any) -> Made:
    """Wraps c10d._new_process_group_helper, `original`: groups that sum on Gloo become ours."""
    if not _takes(c10d, inspect.signature(original).bind(*args, **kwargs).arguments["backend"]):
        return original(*args, **kwargs)
    with _making_ours(c10d):
        group, store = original(*args, **kwargs)
    if isinstance(group, OmnihvdProcessGroup):
        if group not in _sums:  # else it is known by its tag
            give_sums(group)
    elif isinstance(group, ProcessGroup):
        warn_once_per_job(
            f"PyTorch {torch.__version__} makes process groups in another way than omnihvd knows: "
            "their sums stay Gloo's. DDP can have them by omnihvd.torch.allreduce_hook."
        )
    return group, store


def _takes(c10d: ModuleType, backend: Any) -> bool:
    for_cpu = c10d.BackendConfig(backend).get_device_backend_map().get("cpu")
    return for_cpu == NAME or (for_cpu == "gloo" and _is_enabled())


def _is_enabled() -> bool:
    try:
        return bool(engine.session.settings_from_environment().enable)
    except engine.EngineError:  # all ranks are told, when they agree on the settings
        return True


@contextlib.contextmanager
def _making_ours(c10d: ModuleType) -> Iterator[None]:
    original = c10d.ProcessGroup
    c10d.ProcessGroup = OmnihvdProcessGroup  # type: ignore[attr-defined]
    try:
        yield
    finally:
        c10d.ProcessGroup = original  # type: ignore[attr-defined]


def register() -> None:
    """Registers the backend "omnihvd" with c10d: Gloo, except for allreduce."""

    def backend(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        gloo = ProcessGroupGloo(store, rank, size, timeout=timeout)
        gloo._set_sequence_number_for_group()
        return gloo

    Backend.register_backend(NAME, backend, devices=["cpu"])
