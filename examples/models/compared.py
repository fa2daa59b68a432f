"""The ways to sum gradients that are compared: the one list of their names, titles and makers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Callable, NamedTuple


class Way(NamedTuple):
    title: str
    make: Callable[[], Any]  # what Horovod's `compression=` gets
    env: Mapping[str, str] = MappingProxyType({})  # of its job, which has no other way beside it


def _horovods(name: str) -> Any:
    import horovod.torch as hvd

    return getattr(hvd.Compression, name)


def _ours() -> Any:
    from omnihvd import OmniReduce

    return OmniReduce


WAYS = {
    "horovod": Way("Horovod at its best", lambda: _horovods("none")),
    "fp16": Way("the same, fp16", lambda: _horovods("fp16")),
    "omnireduce": Way("OmniReduce", _ours),
    "codec": Way("qsgd(bits=4)", lambda: _ours().qsgd(bits=4)),
    "block_topk": Way("block_topk(0.1)", lambda: _ours().block_topk(0.1)),
    "natural": Way("natural()", lambda: _ours().natural()),
    "topk": Way("topk(0.1)", lambda: _ours().topk(0.1)),
    "integer": Way("OmniReduce in integers", _ours, {"OMNIHVD_ARITHMETIC": "integer"}),
    "switchml": Way("SwitchML*", _ours, {"OMNIHVD_ARITHMETIC": "switchml"}),
    "rows": Way("OmniReduce, blocks of 10", _ours, {"OMNIHVD_BLOCK_SIZE": "10"}),
}
WITHOUT = ("horovod", "fp16")  # in a job without omnihvd
WITH = ("omnireduce", "codec", "block_topk")
MEASURED = (*WITHOUT, *WITH)  # by which the six models are trained
# Each in a job of its own. SwitchML* sends the zeros, too; the rows are `deeplight`'s.
ALONE = {"arithmetic": ("integer", "switchml"), "rows": ("rows",)}
ORDERED = (*WITH[:2], "natural", "block_topk", "topk")  # in both orders on hosts of several ranks
