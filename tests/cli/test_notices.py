"""Why no sum was taken over, in words."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from omnihvd.takeover import notices, waiting


def said(monkeypatch: pytest.MonkeyPatch, begin: str, passed: dict, fsdp: bool = False) -> str:
    """Of two ranks."""
    session = SimpleNamespace(stats=lambda: {"passed": passed})
    monkeypatch.setattr(notices, "engine", SimpleNamespace(session=session))
    monkeypatch.delitem(sys.modules, "torch.distributed.fsdp", raising=False)
    if fsdp:
        monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", ModuleType("fsdp"))
    ours = notices.Notices()
    ours._active, ours._ranks, ours._is_torchs = True, 2, begin == "torch"
    return ours._why_none()


def test_how_horovods_ranks_coordinate_is_no_sum_that_was_left(monkeypatch) -> None:
    control = {"control": {"calls": 9, "bytes": 72}}
    assert "is the optimizer Horovod's?" in said(monkeypatch, "horovod", control)
    small = {**control, "small": {"calls": 1, "bytes": 40}}
    assert said(monkeypatch, "horovod", small).endswith("as 1 small (under OMNIHVD_MIN_BYTES)")


def test_fsdp_is_told_that_it_sums_by_reduce_scatter(monkeypatch) -> None:
    assert "is the model in DDP?" in said(monkeypatch, "torch", {})
    assert "reduce-scatter, which omnihvd leaves" in said(monkeypatch, "torch", {}, fsdp=True)
    small = {"small": {"calls": 1, "bytes": 40}}  # of the norm of the gradients, say
    assert "reduce-scatter, which omnihvd leaves" in said(monkeypatch, "torch", small, fsdp=True)


def test_only_horovods_init_finds_that_mpi_is_to_yield(monkeypatch) -> None:
    monkeypatch.delenv(waiting.YIELDS, raising=False)
    seen = waiting._mpi_yields()(lambda: waiting.os.environ.get(waiting.YIELDS))
    assert seen() == seen() == "1"
    assert waiting.YIELDS not in waiting.os.environ
    monkeypatch.setenv(waiting.YIELDS, "0")
    assert seen() == "0" == waiting.os.environ[waiting.YIELDS]
