"""On each rank: averages by CodedSums on emulated kernels, against the engine's codecs. The
argument: the emulation's folder."""
# DDP compares a hook's annotations, which must not be texts.

import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from _engine_tests import codec as engine_codec
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

import omnihvd.torch
from omnihvd import OmniReduce
from omnihvd.compression.codec import Codec
from omnihvd.torch.coded_sums import SUMS, CodedSums

sys.path.append(str(Path(__file__).parents[1]))
from emulated_coder import EmulatedCoder

BLOCK = 64
dist.init_process_group("gloo", timeout=timedelta(seconds=30))
rank, size = dist.get_rank(), dist.get_world_size()
sums = CodedSums(dist.group.WORLD, EmulatedCoder(BLOCK, Path(sys.argv[1])))
made = 0  # as CodedSums counts


def part(of: int, elements: int, step: int) -> np.ndarray:
    rng = np.random.default_rng([of, elements, step])
    values = rng.standard_normal(elements) * 10.0 ** rng.integers(-3, 3)
    values[5 * BLOCK : 6 * BLOCK] = 0
    return values.astype(np.float32)


def coded(codec: engine_codec.Codec, values: np.ndarray, who: int, sums: bool) -> np.ndarray:
    result = np.full_like(values, np.nan)
    for number, first in enumerate(range(0, len(values), BLOCK)):
        block = values[first : first + BLOCK]
        key = engine_codec.block_key(codec.seed, who, number)
        code = codec.encode(block, key, sums=sums)
        if code is not None:
            result[first : first + BLOCK] = codec.decode(code, len(block), sums=sums)
    return result


def expected(codec: Codec, parts: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The average, and what each rank sent."""
    by_engine = engine_codec.Codec(codec.engine_codec(seed=made))
    sent = [coded(by_engine, values, of, False) for of, values in enumerate(parts)]
    total = sent[0].copy()
    for values in sent[1:]:
        total += values
    return coded(by_engine, total / np.float32(size), SUMS, True), sent


def same(one: np.ndarray, other: np.ndarray) -> bool:
    nan = np.isnan(one)
    return bool((np.isnan(other) == nan).all() and (one == other)[~nan].all())


CODECS = [OmniReduce.natural(), OmniReduce.qsgd(8), OmniReduce.terngrad(),
          OmniReduce.int4(), OmniReduce.int8(), OmniReduce.sign(), OmniReduce.one_bit(),
          OmniReduce.natural().with_error_feedback()]  # fmt: skip
for codec in CODECS:
    for elements in (1, BLOCK - 1, BLOCK * size + 1, 11 * BLOCK):
        rests: dict[int, torch.Tensor] = {}
        kept = [np.zeros(elements, np.float32)] * size
        for step in range(3 if codec.error_feedback else 1):
            made += 1
            parts = [part(of, elements, step) + kept[of] for of in range(size)]
            if elements > 3 * BLOCK:
                parts[size - 1][2 * BLOCK + 1] = [np.nan, np.inf, 3.4e38][step]
            mine = torch.tensor(parts[rank] - kept[rank])
            # The rank's gradient: with the rest it is `parts` to the bit.
            parts = [(values - rest) + rest for values, rest in zip(parts, kept)]
            sums.average(mine, codec, rests, 7)
            result, sent = expected(codec, parts)
            assert same(result, mine.numpy()), (codec, elements, step)
            if codec.error_feedback:
                with np.errstate(invalid="ignore"):
                    kept = [values - s for values, s in zip(parts, sent)]
                kept = [np.where(np.isfinite(values), values, 0) for values in kept]
                assert np.array_equal(rests[7].numpy(), kept[rank])
        assert bool(rests) == codec.error_feedback

# Other types, and tensors of two dimensions.
for dtype in (torch.float16, torch.float64):
    made += 1
    parts = [part(of, 600, 0) for of in range(size)]
    mine = torch.tensor(parts[rank]).to(dtype).view(20, 30)
    halves = [torch.tensor(values).to(dtype).float().numpy() for values in parts]
    sums.average(mine, OmniReduce.int8(), {}, 0)
    result = torch.tensor(expected(OmniReduce.int8(), halves)[0]).to(dtype)
    assert torch.equal(result, mine.view(-1))
sums.average(torch.empty(0), OmniReduce.int8(), {}, 0)


def hook(state: omnihvd.torch.CodecState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    sums.average(bucket.buffer(), state.codec, state.rests, bucket.index())
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


torch.manual_seed(1)
ddp = DistributedDataParallel(torch.nn.Linear(40, 10), bucket_cap_mb=0.001)
state = omnihvd.torch.CodecState(OmniReduce.int4())
ddp.register_comm_hook(state, hook)
optimizer, losses = torch.optim.SGD(ddp.parameters(), 0.1), []
data = torch.randn(64, 40, generator=torch.Generator().manual_seed(rank))
for _ in range(20):
    optimizer.zero_grad()
    loss = (ddp(data) - data[:, :10]).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
assert losses[-1] < losses[0] / 2 and state.rests, losses
for parameter in ddp.parameters():
    others = [torch.empty_like(parameter) for _ in range(size)]
    dist.all_gather(others, parameter.detach())
    assert all(torch.equal(other, parameter) for other in others)

# All have agreed to both of these.
mine = torch.ones(size * BLOCK)
sums.average(mine, OmniReduce.qsgd(8) if rank else OmniReduce.int8(), {}, 0)
assert mine.isnan().all()

try:
    sums.average(torch.ones(100), OmniReduce.qsgd(4 if rank else 2), {}, 0)
except RuntimeError as why:
    assert "has the codec qsgd" in str(why) and "in blocks of 64" in str(why), why
    print("all well")
