"""A first job: 100,000 word vectors learn the topic of short texts (docs/first_job.md)."""

import omnihvd
from omnihvd import OmniReduce  # before horovod, and so before hvd.init()

import horovod.torch as hvd  # isort: skip
import torch

WORDS, WIDTH, TOPICS, STEPS = 100_000, 256, 10, 30

hvd.init()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.EmbeddingBag(WORDS, WIDTH), torch.nn.Linear(WIDTH, TOPICS))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=5.0),
    named_parameters=model.named_parameters(),
    compression=OmniReduce,  # the one argument that is new
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

draw = torch.Generator().manual_seed(2 + hvd.rank())  # other data on each rank
for step in range(1, STEPS + 1):
    # Frequent words have small numbers, and each topic has every tenth word.
    topic = torch.randint(TOPICS, (64,), generator=draw)
    rank_of_word = (WORDS / TOPICS) ** torch.rand(64, 20, generator=draw)
    words = (rank_of_word.long() - 1) * TOPICS + topic[:, None]
    loss = torch.nn.functional.cross_entropy(model(words), topic)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if hvd.rank() == 0 and step % 10 == 0:
        print(f"step {step}: loss {loss.item():.2f}")

if hvd.rank() == 0:
    stats = omnihvd.stats()
    names = ("density", "union_density", "sent_of_ring")  # None: omnihvd made no sum
    print({name: stats[name] and round(stats[name], 4) for name in names})
