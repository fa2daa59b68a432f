"""Codecs under PyTorch's DistributedDataParallel."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from emulated_coder import EmulatedCoder
from jobs import run

from omnihvd import OmniReduce
from omnihvd.intercept import kernel_cache
from omnihvd.torch import CodecState, codec_hook, coded_sums


@pytest.mark.parametrize(("backend", "ranks"), [("omnihvd", 3), ("gloo", 2)])
def test_codecs(backend: str, ranks: int) -> None:
    for ended in run("ddp_codecs.py", ranks, backend):
        assert "all well" in ended.output


@pytest.fixture(scope="session")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels, compiled before the ranks begin."""
    folder = tmp_path_factory.mktemp("kernels")
    EmulatedCoder(64, folder)
    return folder


def test_sums_of_gpus(emulation: Path) -> None:
    """By the kernels, emulated, and the group's own collectives."""
    for ended in run("coded_sums.py", 3, emulation):
        assert "all well" in ended.output


def test_buckets_of_gpus_go_to_a_stream_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """On stand-ins for all that needs a GPU: what is queued where, and in which order."""
    happened: list[object] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            happened.append(f"made on {device}")

        def wait_stream(self, other: str) -> None:
            happened.append(f"waits for {other}")

    @contextlib.contextmanager
    def stream(_: Stream):
        happened.append("begins")
        yield
        happened.append("ends")

    for name, stand_in in {
        "Stream": Stream,
        "stream": stream,
        "current_stream": lambda device: "backward",
        "device": lambda device: contextlib.nullcontext(),
        "get_device_capability": lambda device: (9, 0),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)

    class Future:
        def __init__(self, devices: list[torch.device]) -> None:
            self.devices = devices

        def set_result(self, result: object) -> None:
            self.result = result
            happened.append("result")

    def sums(group: object, coder: tuple[int, Path]) -> object:
        assert coder == (256, kernel_cache.path_of("float32", 256, "sm_90"))
        return SimpleNamespace(average=lambda *arguments: happened.append(arguments))

    monkeypatch.setattr(kernel_cache, "compile_missing", lambda *given: happened.append(given))
    monkeypatch.setitem(sys.modules, "omnihvd.kernels", SimpleNamespace(Coder=lambda *given: given))
    monkeypatch.setattr(coded_sums, "CodedSums", sums)
    monkeypatch.setattr(coded_sums, "Future", Future)
    gpu = torch.device("cuda", 1)
    tensor = SimpleNamespace(is_cuda=True, is_sparse=False, device=gpu)
    bucket = SimpleNamespace(buffer=lambda: tensor, index=lambda: 4, parameters=list)

    class Group:
        pass

    state = CodecState(OmniReduce.int4(), Group())
    future = codec_hook(state, bucket)
    assert future.result is tensor and future.devices == [gpu]
    average = (tensor, state.codec, state.rests, 4)
    once = ["made on cuda:1", "waits for backward", "begins", ("sm_90", 256, ["float32"])]
    assert happened == [*once, average, "result", "ends"]
    codec_hook(state, bucket)
    assert happened[7:] == ["waits for backward", "begins", average, "result", "ends"]
