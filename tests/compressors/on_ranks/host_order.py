"""On each of four ranks, two a host: OMNIHVD_COMPRESS_FIRST=0, by codecs and compressors."""

import os

import horovod.torch as hvd
import pytest
import torch

from omnihvd import OmniReduce
from omnihvd.launchers import process_rank

os.environ["OMNIHVD_HOST_ID"] = "ab"[process_rank() // 2]
hvd.init()
RANK, SIZE, BLOCK = hvd.rank(), hvd.size(), 256


def codec_sees_sums_of_hosts() -> None:
    """3 and 5 are no powers of two, and would be rounded at random; what a host has, 8, is one."""
    codec = OmniReduce.natural()
    mine = torch.full((100_000,), 5.0 if RANK % 2 else 3.0)
    assert (hvd.allreduce(mine, op=hvd.Sum, compression=codec, name="eights") == 16).all()
    with pytest.raises(ValueError, match=r"COMPRESS_FIRST=0 is not for int4 with error feedback"):
        hvd.allreduce(mine, compression=OmniReduce.int4(), name="with feedback")


class Given(torch.nn.Module):
    """Its gradients are what it is called with."""

    def __init__(self):
        super().__init__()
        self.large = torch.nn.Parameter(torch.zeros(4 * BLOCK))
        self.other = torch.nn.Parameter(torch.zeros(2, BLOCK))

    def forward(self, gradients):
        return sum((p * g).sum() for p, g in zip(self.parameters(), gradients))


def optimizer_of(model, compressor, **kwargs):
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    return hvd.DistributedOptimizer(sgd, model.named_parameters(), compressor, **kwargs)


def reduced(model, optimizer, gradients):
    optimizer.zero_grad()
    model(gradients).backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    return [p.grad.clone() for p in model.parameters()]


def compressor_sees_means_of_hosts(op) -> None:
    """Block 0 is the largest of each rank, and nothing of a host; block 1 is its largest then."""
    compressor = OmniReduce.block_topk(0.25, BLOCK)
    model = Given()
    optimizer = optimizer_of(model, compressor, op=op)
    large, host = torch.zeros(4 * BLOCK), 1 + RANK // 2
    large[:BLOCK] = 9.0 if RANK % 2 else -9.0
    large[BLOCK : 2 * BLOCK] = host
    large[2 * BLOCK :] = 0.5 * host
    other = torch.full((2, BLOCK), float(RANK))
    factor = SIZE if op == hvd.Sum else 1
    for step in range(2):
        got, whole = reduced(model, optimizer, [large, other])
        expected = torch.zeros(4 * BLOCK)
        if step == 0:
            expected[BLOCK : 2 * BLOCK] = 1.5 * factor  # the mean of the hosts' 1 and 2
        else:  # blocks 1, 2 and 3 are alike now; the first one goes
            expected[BLOCK : 2 * BLOCK] = 1.5 * factor
        torch.testing.assert_close(got, expected)
        assert (whole != 0).any(1).sum() == 1  # a block of two
    rest = compressor.state_dict()["large"]["rest"]
    assert (rest[2 * BLOCK :] == host).all() and (rest[: 2 * BLOCK] == 0).all()
    everyone = hvd.allgather(rest.reshape(1, -1), name=f"rests of {op}")
    assert (everyone[0] == everyone[1]).all() and (everyone[2] == everyone[3]).all()


def refused() -> None:
    with pytest.raises(ValueError, match=r"COMPRESS_FIRST=0 is not for power_sgd"):
        optimizer_of(Given(), OmniReduce.power_sgd())
    with pytest.raises(ValueError, match="needs an optimizer of all ranks, with groups=None"):
        optimizer_of(Given(), OmniReduce.topk(0.1), groups=1)


codec_sees_sums_of_hosts()
for operation in (hvd.Average, hvd.Sum):
    compressor_sees_means_of_hosts(operation)
refused()
print("all well")
