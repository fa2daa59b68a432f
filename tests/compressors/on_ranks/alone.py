"""On the one rank of a job: what fails where there are more fails here, too."""

from __future__ import annotations

import horovod.torch as hvd
import pytest
import torch

from omnihvd import OmniReduce

hvd.init()
assert hvd.size() == 1
model = torch.nn.Linear(3, 2)


def optimizer(compression: object) -> torch.optim.Optimizer:
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    return hvd.DistributedOptimizer(sgd, model.named_parameters(), compression)


for made in (OmniReduce.block_topk, OmniReduce.natural):
    with pytest.raises(TypeError, match=rf"call it, as OmniReduce\.{made.__name__}\("):
        optimizer(made)
epochless = optimizer(OmniReduce.block_topk(0.1).with_warmup())
model(torch.ones(1, 3)).sum().backward()
with pytest.raises(RuntimeError, match=r"with_warmup.* cannot know the epoch"):
    epochless.step()
epochless._compression.set_epoch(0)
epochless.step()
print("all well")
