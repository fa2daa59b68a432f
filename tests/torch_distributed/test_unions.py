"""DDP's hook that sums unions of blocks by PyTorch's operators, here on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from jobs import run
from torch.testing._internal.distributed.fake_pg import FakeStore

from omnihvd.torch import UnionReduceScatter, UnionState, scatter_unions


@pytest.mark.parametrize(
    ("what", "ranks", "local", "env"),
    [
        ("sums", 1, 1, {}),
        ("sums", 3, 1, {}),
        ("sums", 2, 1, {"OMNIHVD_ENABLE": "0"}),  # Gloo alone sums
        ("sums", 4, 2, {"OMNIHVD_ENABLE": "0"}),  # two servers
        ("sums", 3, 3, {"OMNIHVD_ENABLE": "0"}),
        ("groups", 3, 1, {}),
        ("groups", 4, 2, {"OMNIHVD_ENABLE": "0"}),
        ("scatters", 1, 1, {}),
        ("scatters", 3, 1, {"OMNIHVD_ENABLE": "0"}),
        ("scatters", 4, 1, {}),
        ("trains", 3, 1, {"OMNIHVD_ENABLE": "0"}),
        ("trains", 4, 2, {}),
    ],
)
def test_averages(what: str, ranks: int, local: int, env: dict[str, str]) -> None:
    for ended in run("unions.py", ranks, what, local, env=env):
        assert "all well" in ended.output


def test_a_backend_without_options() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=6)
    try:
        state = UnionState(local_ranks=3)
        sizes = [group.size() for group in (state._own, state._inside, state._between)]
        assert sizes == [6, 3, 2] and dist.get_backend(state._between) == "fake"
    finally:
        dist.destroy_process_group()


def test_a_rank_that_dies_fails_the_backward_pass_of_the_others() -> None:
    ended = run("unions.py", 3, "dies", 1, check=False, timeout=60)
    for rank in (0, 2):
        assert ended[rank].returncode != 0 and "Error" in ended[rank].output


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="a block of 0 elements: give it one or more"):
        UnionReduceScatter(block_size=0)
    x = torch.zeros(1)
    with pytest.raises(ValueError, match="this reduce-scatter is queued when it returns"):
        UnionReduceScatter()(x, x, group=None, op=None, async_op=True)
    with pytest.raises(RuntimeError, match=r"use fully_shard\(\) first"):
        scatter_unions(torch.nn.Linear(1, 1))
    monkeypatch.delattr("torch.distributed.fsdp.FSDPModule")
    with pytest.raises(RuntimeError, match=r"takes no other reduce-scatter: use 2\.8 or newer"):
        scatter_unions(torch.nn.Linear(1, 1))
