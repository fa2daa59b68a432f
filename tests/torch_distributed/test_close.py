"""The end of a process group, in one process."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import DistBackendError, HashStore, ProcessGroup, ProcessGroupGloo

import omnihvd.torch.sums as sums_module
from omnihvd.torch.gloo import Gloo
from omnihvd.torch.meetings import Meetings
from omnihvd.torch.process_group import OmnihvdProcessGroup, give_sums, sums_of
from omnihvd.torch.sums import Sums

LIMIT = timedelta(seconds=30)


def test_a_group_ends_when_the_sum_of_who_waits_for_it_has_ended() -> None:
    """The sum is made in the caller's thread; close() may come from any other one."""
    order: list[str] = []
    under_way, may_end, someone_comes = (threading.Event() for _ in range(3))

    class Turn:
        def __init__(self, lock: threading.Lock) -> None:
            self._lock, self.release = lock, lock.release

        def acquire(self) -> None:
            if under_way.is_set():
                someone_comes.set()
            self._lock.acquire()

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    class Gloo:
        def close(self) -> None:
            order.append("closed")
            someone_comes.set()

    class OneSum(Sums):
        def _make(self, *_: object) -> str:
            under_way.set()
            assert may_end.wait(30)
            order.append("summed")
            return ""

    sums = OneSum(HashStore(), 0, 1)
    sums._gloo = Gloo()
    sums._turn = Turn(sums._turn)
    summing = threading.Thread(
        target=sums.allreduce, args=([torch.ones(1)], LIMIT), kwargs={"waits": True}
    )
    closing = threading.Thread(target=sums.close)
    summing.start()
    assert under_way.wait(30)
    closing.start()
    assert someone_comes.wait(30)
    may_end.set()
    summing.join(30)
    closing.join(30)
    sums.join()
    assert order == ["summed", "closed"]


def test_sums_of_a_plain_group_end_with_the_group() -> None:
    """DDP's hook gives them to any group, and PyTorch tells nobody that a group is destroyed."""

    class Plain:
        def get_group_store(self) -> HashStore:
            return HashStore()

        def rank(self) -> int:
            return 0

        def size(self) -> int:
            return 1

    group = Plain()
    give_sums(group, later=True)
    sums = sums_of(group)
    assert sums is not None
    sums.allreduce([torch.ones(5)], LIMIT).wait()
    del group
    gc.collect()
    with pytest.raises(DistBackendError, match="has been destroyed"):
        sums.allreduce([torch.ones(5)], LIMIT)
    sums.join()
    assert not any(thread.name == "omnihvd sums" for thread in threading.enumerate())


def test_groups_that_follow_each_other_leave_nothing_behind() -> None:
    """As torchft makes them: one for each quorum."""
    counts: list[list[int]] = []
    for i in range(20):
        store, cpu = HashStore(), torch.device("cpu")
        group = OmnihvdProcessGroup(store, 0, 1)
        gloo = ProcessGroupGloo(store, 0, 1, LIMIT)
        group._set_default_backend(ProcessGroup.BackendType.GLOO)
        group._register_backend(cpu, ProcessGroup.BackendType.GLOO, gloo)
        give_sums(group)
        del gloo
        tensor = torch.full((100,), float(i))
        group.allreduce([tensor]).wait()
        assert (tensor == i).all()
        group.abort()
        del group
        what = (Path("/proc/self", of).iterdir() for of in ("fd", "task"))
        counts.append([len(list(which)) for which in what])
    assert all(now <= then + 2 for then, now in zip(counts[3], counts[-1])), counts


def test_gloos_large_arguments_do_not_outlive_the_next_sums() -> None:
    gloo = Gloo(Meetings(HashStore(), 0, 1), 0, 1, LIMIT)
    kept: list[weakref.ref[torch.Tensor]] = []
    for i in range(8):
        tensor = torch.full((100,), float(i))
        kept.append(weakref.ref(tensor))
        gloo.sum_tensor(tensor)
    del tensor
    deadline = time.monotonic() + 30
    while any(one() is not None for one in kept[:-2]):  # Gloo's threads still have them
        assert time.monotonic() < deadline
        time.sleep(0.01)
    gloo.close()


def test_a_process_ends_where_python_starts_no_more_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As from Python 3.12 on at exit."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    one: Sums = Sums(HashStore(), 0, 1)
    stopped: list[str] = []
    one._gloo = object()  # type: ignore[assignment]
    monkeypatch.setattr(sums_module, "_open", {one})
    monkeypatch.setattr(sums_module, "forget_devices", lambda: None)
    monkeypatch.setattr(sums_module.engine.session, "stop", stopped.append)
    monkeypatch.setattr(threading.Thread, "start", start)
    sums_module._close_all()
    assert stopped == ["Gloo"]
