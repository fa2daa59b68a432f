"""On each rank: DDP with codecs. The argument: the ranks' process group."""

from __future__ import annotations

import pickle
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import omnihvd
from omnihvd import OmniReduce
from omnihvd.torch import CodecState, codec_hook

dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=30))
rank, size = dist.get_rank(), dist.get_world_size()


def data(of: int, step: int) -> torch.Tensor:
    return torch.randn(64, 64, generator=torch.Generator().manual_seed(100 * step + of))


def train(codec: object, steps: int = 30) -> tuple[CodecState, list[float]]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.05)
    state = CodecState(codec)
    ddp.register_comm_hook(state, codec_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    target = torch.randn(64, 10, generator=torch.Generator().manual_seed(9))
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = (ddp(data(rank, step)) - data(rank, step) @ target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    for parameter in model.parameters():
        others = [torch.empty_like(parameter) for _ in range(size)]
        dist.all_gather(others, parameter.detach())
        assert all(torch.equal(other, parameter) for other in others)
    return state, losses


for codec in (OmniReduce.natural(), OmniReduce.int8(), OmniReduce.int4(), OmniReduce.sign()):
    state, losses = train(codec)
    assert losses[-1] < losses[0] / 2.5, (codec, losses)
    assert bool(state.rests) == codec.error_feedback
    again = pickle.loads(pickle.dumps(state))
    assert repr(again.codec) == repr(codec) and again.rests.keys() == state.rests.keys()
counted = omnihvd.stats()["codecs"]
assert counted["blocks"] > 0 and counted["bytes"] < 0.3 * counted["plain_bytes"]

try:
    train(OmniReduce.qsgd(4 if rank else 2), steps=1)
except RuntimeError as why:
    assert "has the codec qsgd" in str(why), why
    print("all well")
