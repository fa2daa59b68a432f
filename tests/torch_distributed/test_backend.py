"""Process groups with omnihvd's allreduce, between real processes and on stand-ins for NCCL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from jobs import run
from processes import free_port
from torch.distributed import distributed_c10d

from omnihvd.torch.process_group import OmnihvdProcessGroup


@pytest.mark.parametrize(
    ("backend", "ranks", "way"),
    [
        ("omnihvd", 3, "stream"),
        ("cpu:omnihvd,cuda:gloo", 2, "auto"),
    ],
)
def test_all_that_a_group_does(backend: str, ranks: int, way: str) -> None:
    transport = "udp" if way == "stream" else "ucx"
    env = {"OMNIHVD_WAY": way, "OMNIHVD_TRANSPORT": transport, "LATER_PORT": str(free_port())}
    env["OMNIHVD_MIN_BYTES"] = "262144"  # test_small_sums.py has the small ones
    for ended in run("sums.py", ranks, backend, env=env):
        assert "all well" in ended.output


@pytest.mark.parametrize("coalesces", [True, False])
def test_sends_and_receives_of_a_batch_go_together(
    coalesces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else NCCL's deadlock where two ranks send to each other first."""
    group = OmnihvdProcessGroup(dist.HashStore(), 0, 3)
    monkeypatch.setitem(distributed_c10d._world.pg_group_ranks, group, {4: 0, 5: 1, 6: 2})
    monkeypatch.setattr(
        group, "_get_backend", lambda _: SimpleNamespace(supports_coalescing=coalesces), False
    )
    calls: list[tuple[Any, ...]] = []
    for name in ("_start_coalescing", "send", "recv", "_end_coalescing"):
        record = lambda *given, name=name: calls.append((name, *given)) or name  # noqa: E731
        monkeypatch.setattr(group, name, record, False)
    sent, received = torch.tensor([7.0]), torch.tensor([8.0])
    batch = [
        dist.P2POp(dist.isend, sent, 5, group, tag=2),
        dist.P2POp(dist.irecv, received, 6, group, tag=3),
    ]
    works = dist.batch_isend_irecv(batch)
    both = [("send", [sent], 1, 2), ("recv", [received], 2, 3)]
    if coalesces:
        device = sent.device
        assert calls == [("_start_coalescing", device), *both, ("_end_coalescing", device)]
        assert works == ["_end_coalescing"]
    else:
        assert calls == both and works == ["send", "recv"]
