"""Why no sum was taken over, in words, and when that is said."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from omnihvd.compression import counters
from omnihvd.intercept import children, notices, waiting

CONTROL = {"control": {"calls": 9, "bytes": 72}}


class Job:
    """Two ranks' notices, with made-up figures; what they say is in `said`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, began: str = "torch", **passed: int):
        self.figures = {"calls": 0, "sparse": {"gradients": 0}, "passed": dict(CONTROL)}
        self.leave(**passed)
        self.said: list[str] = []
        session = SimpleNamespace(stats=lambda: self.figures)
        monkeypatch.setattr(notices, "engine", SimpleNamespace(session=session))
        monkeypatch.setattr(notices, "warn_once_per_job", self.said.append)
        monkeypatch.setattr(counters, "_has_own_sums", False)
        # PyTorch imports it for any optimizer.
        monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", ModuleType("fsdp"))
        self.notices = notices.Notices()
        self.notices._active, self.notices._ranks = True, 2
        self.notices._is_torchs = began == "torch"
        self.notices._intercepted = ["Gloo"]

    def leave(self, **passed: int) -> None:
        """So many calls in all are left to the original library by now, for a reason."""
        self.figures["passed"].update({k: {"calls": n, "bytes": n} for k, n in passed.items()})


def test_how_horovods_ranks_coordinate_is_no_sum_that_was_left(monkeypatch) -> None:
    assert "is the optimizer Horovod's?" in Job(monkeypatch, "horovod").notices._why_none()
    why = Job(monkeypatch, "horovod", small=1).notices._why_none()
    assert why.endswith("as 1 small (under OMNIHVD_MIN_BYTES)")


def test_reduce_scatters_are_spoken_of_only_where_nccl_keeps_them(monkeypatch) -> None:
    assert Job(monkeypatch).notices._why_none().endswith("is the model in DDP?")
    assert "scatter" not in Job(monkeypatch, small=1).notices._why_none()
    on_gpus = Job(monkeypatch)
    on_gpus.notices._intercepted = ["NCCL"]
    assert "reduce-scatters of FSDP and ZeRO over NCCL" in on_gpus.notices._why_none()


@pytest.mark.parametrize(
    ("left_at_each_look", "when"),
    [
        ([0, 0, 1, 1, 1, 1], None),  # a first step that is slow, after a small sum
        ([0, 0, 3, 9], "in 240 s"),  # then the job goes on, all in small sums
        ([0] * 10, "in 600 s"),
    ],
)
def test_a_slow_first_step_is_no_reason_to_speak(monkeypatch, left_at_each_look, when) -> None:
    job = Job(monkeypatch)
    looks = iter(left_at_each_look)

    def sleep(_: float) -> None:
        left = next(looks, None)
        if left is None:
            job.figures["calls"] = 1  # at last
        elif left:
            job.leave(small=left)

    monkeypatch.setattr(notices.time, "sleep", sleep)
    job.notices._look()
    assert [when in text for text in job.said] == [True] * bool(when)
    said_before = len(job.said)
    job.notices.end()
    assert ["in this job" in text for text in job.said[said_before:]] == [True] * bool(when)


def test_what_cannot_change_is_said_once(monkeypatch) -> None:
    job = Job(monkeypatch)
    job.notices._ranks = 1
    monkeypatch.setattr(notices.time, "sleep", lambda _: None)
    job.notices._look()
    job.notices.end()
    assert job.said == ["no sum was taken over in 60 s: it has one rank"]


def test_a_compressor_with_sums_of_its_own_is_of_use(monkeypatch) -> None:
    job = Job(monkeypatch, small=9)
    counters.note_own_sum()
    job.notices.end()
    assert job.said == []


def test_children_speak_for_themselves(monkeypatch) -> None:
    job = Job(monkeypatch)
    job.notices._ranks, job.notices.is_command = 0, True
    monkeypatch.setattr(children, "started", True)
    job.notices.end()
    assert job.said == []
    monkeypatch.setattr(children, "started", False)
    job.notices.end()
    assert "began neither" in job.said[0]


def test_only_horovods_init_finds_that_mpi_is_to_yield(monkeypatch) -> None:
    monkeypatch.delenv(waiting.YIELDS, raising=False)
    seen = waiting._mpi_yields()(lambda: waiting.os.environ.get(waiting.YIELDS))
    assert seen() == seen() == "1"
    assert waiting.YIELDS not in waiting.os.environ
    monkeypatch.setenv(waiting.YIELDS, "0")
    assert seen() == "0" == waiting.os.environ[waiting.YIELDS]
