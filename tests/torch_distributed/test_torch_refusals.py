"""Arguments that omnihvd refuses under torch.distributed before any rank is asked."""

from __future__ import annotations

import re
import types
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

from omnihvd import compressors  # noqa: E402
from omnihvd.torch import gloo, hook, sums, work  # noqa: E402
from omnihvd.torch.compress import CompressionState  # noqa: E402
from omnihvd.torch.meetings import Meetings  # noqa: E402

LINEAR = torch.nn.Linear(3, 2)
LATE = "it is late, does something else, or died"


def state(compressor) -> CompressionState:
    return CompressionState(compressor, LINEAR.named_parameters())


def kept_of_another_shape() -> None:
    one = state(compressors.topk(0.1))
    one.kept["weight"].rest = torch.zeros(5)
    one.attach(LINEAR.named_parameters())


def destroyed() -> None:
    group = types.SimpleNamespace(_process=types.SimpleNamespace(check=lambda: None), _closed=True)
    sums.Sums._ask(group, "", lambda: None, [], timedelta(), False, True)


def not_gathered() -> None:
    one = types.SimpleNamespace(
        _begun=True,
        _met=True,
        _exchanges=iter([2]),
        _meetings=Meetings(torch.distributed.HashStore(), 0, 2),
        _timeout=timedelta(seconds=0.01),
    )
    gloo.Gloo.allgather(one, b"words")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: state(compressors.power_sgd()),
            "power_sgd is for Horovod: DDP's hook does not do its second step",
        ),
        (
            lambda: state(compressors.topk(0.1).with_clipping(1, together=True)),
            "DDP's hook clips each parameter's gradient by itself: together=False",
        ),
        (
            lambda: state(compressors.topk(0.1).with_floor(0.9)),
            "with_certificate() and with_floor() are for Horovod: leave them out under DDP",
        ),
        (kept_of_another_shape, "the residual of weight has shape (5,), the parameter (2, 3)"),
        (
            lambda: state(compressors.topk(0.1)).of(torch.zeros(1)),
            "a compressor does not know a parameter of this bucket: give CompressionState",
        ),
        (
            lambda: hook.average(None, torch.zeros(2, device="meta")),
            "omnihvd's hook averages on the CPU, not on meta: on GPUs `import omnihvd`",
        ),
        (
            not_gathered,
            "rank 1 of 2 did not come to the allreduce in which all are connected within 0 s: "
            f"{LATE}; its own output says which",
        ),
        (destroyed, "omnihvd: this process group has been destroyed"),
        (
            lambda: work.SumWork([torch.zeros(1)]).wait(timedelta(milliseconds=1)),
            "omnihvd: a sum has not ended after 0:00:00.001000",
        ),
    ],
)
def test_it_says_what_would_do(make, said):
    with pytest.raises(Exception, match=re.escape(said)):
        make()
