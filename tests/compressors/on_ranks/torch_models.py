"""On each rank: a model that is trained under Horovod with a compressor, the same on all ranks."""

import horovod.torch as hvd
import torch
import tried
from tried import BLOCK

from omnihvd import compression

hvd.init(process_sets="dynamic")
RANK, SIZE = hvd.rank(), hvd.size()

COMPRESSORS = {
    **tried.COMPRESSORS,
    "random without feedback": compression.block_random(0.1, 3, BLOCK).with_error_feedback(False),
}


class Model(torch.nn.Module):
    """An embedding, a layer used only in every other step, one never used, and one frozen.

    agree: whether it is the same step on all ranks; Horovod needs that for its groups.
    """

    def __init__(self, sparse=False, agree=False):
        super().__init__()
        self.agree = agree
        self.embedding = torch.nn.Embedding(40, 12, sparse=sparse)
        self.hidden = torch.nn.Linear(12, 31)
        self.sometimes = torch.nn.Linear(31, 31)
        self.never = torch.nn.Linear(5, 5)
        self.frozen = torch.nn.Linear(31, 31).requires_grad_(False)
        self.out = torch.nn.Linear(31, 10)

    def forward(self, words, step):
        hidden = torch.tanh(self.hidden(self.embedding(words)))
        if (step if self.agree else step + RANK) % 2:
            hidden = torch.tanh(self.sometimes(hidden))
        return self.out(self.frozen(hidden))


def make(compressor, model=None, optimizer=None, **kwargs):
    """A model, the same on all ranks and in all calls, and its optimizer with two groups."""
    torch.manual_seed(5)
    model = model or Model()
    hvd.broadcast_parameters(model.state_dict(), 0)
    if optimizer is None:
        embedding = list(model.embedding.parameters())
        others = [p for n, p in model.named_parameters() if not n.startswith("embedding")]
        optimizer = torch.optim.SGD([{"params": embedding, "lr": 0.5}, {"params": others}], lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), compression=compressor, **kwargs
    )
    return model, optimizer


def loss_of(model, step):
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    words = torch.randint(0, 40, (24,), generator=generator)
    return torch.nn.functional.cross_entropy(model(words, step), words % 10)


def train(model, optimizer, steps, passes=1, set_to_none=True):
    for step in steps:
        torch.optim.Optimizer.zero_grad(optimizer, set_to_none)
        for i in range(passes):
            loss_of(model, step * passes + i).backward()
        optimizer.step()


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def assert_same_on_all_ranks(tensor, name):
    everyone = hvd.allgather(tensor.unsqueeze(0), name=name)
    assert all(torch.equal(theirs, tensor) for theirs in everyone)


def fresh(compressor):
    """The same compressor without what earlier tests left in it."""
    return compressor.with_error_feedback(compressor.config.error_feedback)
