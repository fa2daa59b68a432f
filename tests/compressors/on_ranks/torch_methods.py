"""On each rank of a Horovod job: methods with sums of their own, as published (PyTorch)."""

import copy

import horovod.torch as hvd
import pytest
import torch
from grace_objects import Halves, Largest, Median, Residual, Signs
from torch_models import RANK, SIZE, assert_same_on_all_ranks

import omnihvd
from omnihvd import compression


class Matrices(torch.nn.Module):
    """Gradients of one matrix, one of four dimensions, and a vector, as given."""

    def __init__(self):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.zeros(20, 30))
        self.filters = torch.nn.Parameter(torch.zeros(8, 3, 3, 3))
        self.vector = torch.nn.Parameter(torch.zeros(7))


def matrices(compressor, **kwargs):
    model = Matrices()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, hvd.DistributedOptimizer(sgd, model.named_parameters(), compressor, **kwargs)


def reduce(model, optimizer, gradients):
    optimizer.zero_grad()
    sum((p * g).sum() for p, g in zip(model.parameters(), gradients)).backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    return [p.grad.clone() for p in model.parameters()]


def of_rank(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(p.shape, generator=generator) for p in Matrices().parameters()]


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_power_sgd_is_that_of_the_paper(op):
    """Computed again with all ranks' gradients; rests add up to what the result lacks."""
    compressor = compression.power_sgd(2)
    model, optimizer = matrices(compressor, op=getattr(hvd, op))
    rule, states = compressor.config.rule, {}
    for step in range(3):
        got = reduce(model, optimizer, of_rank(RANK, step))
        everyone = [of_rank(rank, step) for rank in range(SIZE)]
        for i, (name, p) in enumerate(model.named_parameters()):
            if name == "vector":
                expected = torch.stack([own[i] for own in everyone]).mean(0)
            else:
                right, rests = states.setdefault(
                    name,
                    [
                        torch.tensor(rule.memory(name, tuple(p.shape))["right"]),
                        [torch.zeros(p.shape) for _ in everyone],
                    ],
                )
                totals = [(own[i] + rest).flatten(1) for own, rest in zip(everyone, rests)]
                left = torch.linalg.qr(sum(totals) / SIZE @ right).Q
                states[name][0] = sum(totals).t() @ left / SIZE
                expected = (left @ states[name][0].t()).view(p.shape)
                states[name][1] = [total.view(p.shape) - expected for total in totals]
                rest = compressor.state_dict()[name]["rest"]
                torch.testing.assert_close(rest, states[name][1][RANK], rtol=1e-3, atol=1e-4)
            factor = SIZE if op == "Sum" else 1
            torch.testing.assert_close(got[i], factor * expected, rtol=1e-3, atol=1e-4)
            assert_same_on_all_ranks(got[i], f"same.{name}")


def test_power_sgd_passes_a_nan_on_and_forgets_it():
    compressor = compression.power_sgd()
    model, optimizer = matrices(compressor)
    bad = of_rank(RANK, 0)
    if RANK == 1:
        bad[0][3, 3] = float("nan")
    assert reduce(model, optimizer, bad)[0].isnan().all()
    assert all(g.isfinite().all() for g in reduce(model, optimizer, of_rank(RANK, 1)))


def test_signs_are_the_majority():
    votes = sum(own[0].sign() for own in (of_rank(rank, 0) for rank in range(SIZE)))
    for compressor in (compression.signum(0.0), compression.sign_sgd()):
        model, optimizer = matrices(compressor)
        assert torch.equal(reduce(model, optimizer, of_rank(RANK, 0))[0], votes.sign())
    momentum = [torch.zeros(20, 30) for _ in range(SIZE)]
    model, optimizer = matrices(compression.signum(0.5))
    for step in range(3):
        momentum = [m / 2 + of_rank(rank, step)[0] / 2 for rank, m in enumerate(momentum)]
        got = reduce(model, optimizer, of_rank(RANK, step))[0]
        assert torch.equal(got, sum(m.sign() for m in momentum).sign())


CODED = {
    "eight_bit": (compression.eight_bit(), 0.03, 1.2),
    "sketch": (compression.sketch(), 0.2, 1.7),
    "inceptionn": (compression.inceptionn(10), 0.01, 3),
    "ef_sign": (compression.ef_sign(), 1.5, 0.3),
    "one_bit_sgd": (compression.one_bit_sgd(), 1.5, 0.3),
    "natural_dithering": (compression.natural_dithering(), 0.8, 0.7),
    "set": (compression.topk(0.1).with_codec("natural"), 1.5, 0.6),
    "two values": (compression.adaptive(0.1).with_codec("one_bit_sgd"), 1.5, 0.6),
}


@pytest.mark.parametrize("kind", CODED)
@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_codes_in_parts(kind, op):
    """Results are near the means; what they lack is in the rests of both sides, and nothing is
    lost; fewer bytes travel than floats have."""
    given, error, most = CODED[kind]
    compressor = compression.Compressor(given.config)  # of this test's optimizer alone
    model, optimizer = matrices(compressor, op=getattr(hvd, op))
    before = omnihvd.Statistics()
    wanted, arrived = 0, 0
    for step in range(4):
        got = reduce(model, optimizer, [g / 4 for g in of_rank(RANK, step)])[0]
        mean = sum(of_rank(rank, step)[0] / 4 for rank in range(SIZE))
        mean = mean / SIZE if op == "Average" else mean
        wanted, arrived = wanted + mean, arrived + got
        if step == 0:
            assert 0 < (got - mean).norm() / mean.norm() < error
        assert_same_on_all_ranks(got, f"same.{kind}")
    kept = compressor.state_dict()["matrix"]
    rests = hvd.allreduce(kept["rest"], op=getattr(hvd, op), name="rests")
    rests += hvd.allgather(kept["memory"]["sum_rest"], name="sum rests").view(20, 30)
    torch.testing.assert_close(arrived + rests, wanted, rtol=1e-4, atol=1e-4)
    figures = before.read()["compression"]
    headers = 3 * SIZE * 4 * (8 + 5 + 256) if kind == "sketch" else 3 * SIZE * 4 * 14
    assert 4 * figures["kept_elements"] < most * figures["elements"] + headers


def test_sums_of_codes_take_time_that_delay_control_sees():
    """No network keeps a budget of a nanosecond: the ratio falls. An idle one would raise it."""
    topk = compression.topk(0.3).with_codec("natural").with_delay_control(1e-6)
    model, optimizer = matrices(topk)
    before = omnihvd.Statistics()
    for step in range(6):
        reduce(model, optimizer, of_rank(RANK, step))
    assert optimizer._compression.ratio(6) < 0.06
    figures = before.read()["compression"]
    assert figures["code_bytes"] > figures["code_bytes_untimed"] and figures["code_seconds"] > 0
    assert figures["delay_bytes"] > 0 and figures["delay_seconds"] > 0


def test_codes_pass_a_nan_on_and_forget_it():
    model, optimizer = matrices(compression.eight_bit())
    bad = of_rank(RANK, 0)
    if RANK == 1:
        bad[0][3, 3] = float("nan")
    got = reduce(model, optimizer, bad)[0]
    assert got[3, 3].isnan() and got.isnan().sum() == 1
    assert all(g.isfinite().all() for g in reduce(model, optimizer, of_rank(RANK, 1)))


def test_a_budget_controls_an_optimizer_that_knows_nothing_of_it(monkeypatch):
    monkeypatch.setenv("OMNIHVD_DELAY_BUDGET_MS", "1")
    own = compression.topk(0.5)
    for given in (hvd.Compression.none, omnihvd.OmniReduce, own):
        model, optimizer = matrices(given)
        assert optimizer._compression.config.delay.budget_ms == 1
        got = reduce(model, optimizer, of_rank(RANK, 0))[0]
        mean = sum(of_rank(rank, 0)[0] for rank in range(SIZE)) / SIZE
        assert torch.allclose(got, mean, atol=1e-6) == (given is not own)
    assert optimizer._compression is own
    for fixed in (compression.sign_sgd(), compression.topk(0.5).with_floor(0.9)):
        assert matrices(fixed)[1]._compression is fixed and fixed.config.delay is None
    assert matrices(hvd.Compression.fp16)[1]._compression is hvd.Compression.fp16
    monkeypatch.setenv("OMNIHVD_DELAY_BUDGET_MS", "0")
    assert matrices(hvd.Compression.none)[1]._compression is hvd.Compression.none


@pytest.mark.parametrize("norm", [2.0, 1000.0])
def test_gradients_are_clipped_together(norm):
    """By the norm of all of them; the larger one clips nothing."""
    model, optimizer = matrices(compression.topk(1.0).with_clipping(norm, together=True))
    for step in range(2):
        expected = [torch.zeros(p.shape) for p in model.parameters()]
        for rank in range(SIZE):
            own = of_rank(rank, step)
            whole = torch.cat([g.flatten() for g in own]).norm()
            factor = min(1, norm / SIZE**0.5 / whole)
            expected = [e + factor * g / SIZE for e, g in zip(expected, own)]
        got = reduce(model, optimizer, of_rank(RANK, step))
        for ours, right in zip(got, expected):
            torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="clipped together need groups=None"):
        matrices(compression.topk(0.1).with_clipping(1, together=True), groups=1)
    for compressor in (compression.power_sgd(), compression.eight_bit()):
        with pytest.raises(ValueError, match="keeps and sends gradients unclipped"):
            compressor.with_clipping(1)
    with pytest.raises(ValueError, match="clips each parameter's gradient by itself"):
        compression.topk(0.1).with_codec("natural").with_clipping(1, together=True)


def test_communicators_of_grace():
    mean = sum(of_rank(rank, 0)[0] for rank in range(SIZE)) / SIZE
    for communicator in ("sum", "allreduce", "allgather", "broadcast"):
        model, optimizer = matrices(compression.grace(Halves(), None, communicator))
        got = reduce(model, optimizer, of_rank(RANK, 0))[0]
        torch.testing.assert_close(got, mean / 2, rtol=1e-5, atol=1e-6)
    largest = Largest(600)
    model, optimizer = matrices(compression.grace(largest, None, "allgather"))
    reduce(model, optimizer, of_rank(RANK, 0))  # in which ranks compare what they are given
    largest.k = 600 // (1 + RANK)
    expected = torch.zeros(600)
    for rank in range(SIZE):
        values = of_rank(rank, 0)[0].view(-1)
        places = values.abs().topk(600 // (1 + rank)).indices
        expected[places] += values[places] / SIZE
    got = reduce(model, optimizer, of_rank(RANK, 0))[0]
    torch.testing.assert_close(got, expected.view(20, 30), rtol=1e-5, atol=1e-6)


def test_what_grace_aggregates_is_what_each_rank_sent():
    median = Median(lambda tensors: torch.stack(tensors).median(0).values)
    model, optimizer = matrices(compression.grace(median))
    expected = torch.stack([of_rank(rank, 0)[0] for rank in range(SIZE)]).median(0).values
    assert torch.equal(reduce(model, optimizer, of_rank(RANK, 0))[0], expected)
    with pytest.raises(ValueError, match="no plain sum: it has to see what each rank sent"):
        compression.grace(median, None, "sum")
    with pytest.raises(ValueError, match="communicator is 'alltoall'"):
        compression.grace(median, None, "alltoall")


def test_objects_of_grace():
    votes, memory = Signs(torch.sign), Residual()
    model, optimizer = matrices(compression.grace(votes))
    expected = sum(own[0].sign() for own in (of_rank(rank, 0) for rank in range(SIZE)))
    assert torch.equal(reduce(model, optimizer, of_rank(RANK, 0))[0], expected.sign())

    model, optimizer = matrices(compression.grace(Halves(), memory))
    means = [sum(of_rank(rank, step)[0] for rank in range(SIZE)) / SIZE for step in range(3)]
    for step, expected in enumerate((means[0] / 2, means[0] / 4 + means[1] / 2)):
        got = reduce(model, optimizer, of_rank(RANK, step))
        torch.testing.assert_close(got[0], expected, rtol=1e-5, atol=1e-6)
    saved = copy.deepcopy(optimizer.state_dict())
    reduce(model, optimizer, of_rank(RANK, 0))
    optimizer.load_state_dict(saved)
    got = reduce(model, optimizer, of_rank(RANK, 2))
    expected = means[0] / 8 + means[1] / 4 + means[2] / 2
    torch.testing.assert_close(got[0], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="grace's memory is not averaged: save state_dict"):
        optimizer._compression.average_rest()
    with pytest.raises(ValueError, match="an object of GRACE's interface averages by itself"):
        matrices(compression.grace(votes), op=hvd.Sum)
    with pytest.raises(TypeError, match=r"no decompress\(\), which GRACE's interface has"):
        compression.grace(memory and type("Half", (), {"compress": print})())
