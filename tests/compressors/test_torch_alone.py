"""Compressors in Horovod's PyTorch optimizer: one rank, without a launcher.

Its sums are its own tensors, so stand-ins for Horovod's calls and for its optimizer are enough.
"""

import sys
import types

import numpy as np
import pytest
from test_certificate import Kept, numbered

from omnihvd import compression
from omnihvd.compression import counters
from omnihvd.compression.certificate import EVERY
from omnihvd.intercept import in_use
from omnihvd.statistics import had_a_part

torch = pytest.importorskip("torch")

from omnihvd.compression import (  # noqa: E402
    torch_codecs,
    torch_grace,
    torch_memory,
    torch_ops,
    torch_two_steps,
)
from omnihvd.compression.split import ParameterState  # noqa: E402


@pytest.fixture(autouse=True)
def horovod(monkeypatch):
    """In place of horovod.torch.mpi_ops. A handle is the result."""
    ops = types.SimpleNamespace(
        Average="Average",
        Sum="Sum",
        allreduce_async=lambda tensor, **how: tensor.clone(),
        allreduce_async_=lambda tensor, **how: tensor,
        allgather=None,  # which no rank alone calls
        allgather_async=lambda tensor, **how: tensor.clone(),
        alltoall_async=lambda tensor, splits, **how: (tensor.clone(), splits),
        poll=lambda handle: False,
        synchronize=lambda handle: handle,
    )
    monkeypatch.setitem(sys.modules, "horovod.torch", types.SimpleNamespace(mpi_ops=ops))
    monkeypatch.setitem(sys.modules, "horovod.torch.mpi_ops", ops)
    monkeypatch.delitem(sys.modules, "horovod.tensorflow", raising=False)  # has a state of its own
    monkeypatch.setattr(in_use, "warn_if_unused", lambda: None)
    return ops


class Optimizer:
    """As much of Horovod's as compressors use."""

    op, sparse_as_dense, _groups = "Average", False, None

    def __init__(self, compressor, sizes):
        self.parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
        self._parameter_names = {p: f"p{number}" for number, p in enumerate(self.parameters)}
        self.process_set = types.SimpleNamespace(
            ranks=None, rank=lambda: 0, size=lambda: 1, included=lambda: True
        )
        self._compressor = compressor
        compressor._backend("torch").attach(self)

    def _allreduce_grad_async(self, parameter):
        sent, ctx = self._compressor.compress(parameter.grad)
        parameter.grad = self._compressor.decompress(sent, ctx)

    def _grouped_allreduce_grad_async(self, parameters):
        raise NotImplementedError

    def synchronize(self):
        pass

    def register_state_dict_post_hook(self, hook):
        pass

    register_load_state_dict_pre_hook = register_state_dict_post_hook

    def step(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients):
            parameter.grad = torch.tensor(gradient)
            self._allreduce_grad_async(parameter)
        self.synchronize()
        return [parameter.grad.numpy() for parameter in self.parameters]


def test_a_certificate_compares_the_true_gradients_with_those_received():
    """Each step those of the step before; over a rotation, exactly."""
    compressor = compression.block_topk(0.5, 8).with_error_feedback(False).with_certificate()
    compressor.gauge = kept = Kept()
    kept.vote, kept.level, sizes = 3, 0, [300, 7, 41]
    optimizer, true = Optimizer(compressor, sizes), numbered(sizes)
    for _ in range(EVERY + 1):
        received = optimizer.step(true)
    a, b = (np.concatenate(arrays).astype(np.float64) for arrays in (true, received))
    assert 0 < np.count_nonzero(b) < np.count_nonzero(a)
    found = np.sum([products for products, _, _ in kept.found], axis=0)
    assert found.tolist() == [EVERY * float(x @ y) for x, y in ((a, a), (b, b), (a, b))]
    assert {level for _, _, level in kept.found} == {3}


def test_the_mean_of_residuals_replaces_them(horovod):
    """As though another rank had none."""
    averaged = []

    def average(tensor, name, op, process_set):
        averaged.append((name, op))
        return tensor.mul_(0.5)

    compressor = compression.block_topk(0.5, 8).with_momentum_correction(0.9)
    optimizer = Optimizer(compressor, [32, 24])
    optimizer.step(numbered([32, 24]))
    before = compressor.state_dict()
    before = {(name, kind): state[kind].clone() for name, state in before.items()
              for kind in ("rest", "velocity")}  # fmt: skip
    horovod.allreduce_async_ = average
    compressor.average_rest()
    assert sorted(averaged) == sorted((f"omnihvd.{k}.{name}", "Average") for name, k in before)
    for (name, kind), tensor in before.items():
        assert tensor.any() and torch.equal(compressor.state_dict()[name][kind], tensor / 2)


@pytest.mark.parametrize("name", ("sign", "one_bit"))
def test_a_short_last_block_has_the_scale_of_what_it_sends(name):
    """The residual counts, and what fills the block up does not."""
    codec = getattr(compression, name)()
    codec.rests[0, "bias"] = torch.ones(10)
    envelope = torch_codecs.Envelope(codec, torch.zeros(10))
    envelope.begin(1.0, "bias", "Sum", types.SimpleNamespace(process_set_id=0))
    sent = envelope._floats(envelope.made)[:10]
    torch.testing.assert_close(sent, torch.ones(10))
    assert not codec.rests[0, "bias"].any()


def test_the_state_of_a_rule_begins_beside_what_sums_have_lost():
    compressor = compression.sidco(0.01)
    state = ParameterState("p", memory={"sum_rest": torch.ones(3)})
    memory = state.remember(torch_ops, compressor.config.rule, torch.zeros(5000))
    assert memory.keys() > {"sum_rest", "fit"} and memory["sum_rest"].all()


class Halves:
    """An object of GRACE's interface. It sends a half, and the factor as a tensor of no
    dimension."""

    average = True

    def compress(self, tensor, name):
        return [tensor / 2, torch.tensor(2.0)], tensor.shape

    def decompress(self, tensors, ctx):
        half, factor = tensors
        assert half.shape == ctx and factor.shape == ()
        return half * factor


@pytest.mark.parametrize("communicator", ["allreduce", "allgather"])
def test_graces_communicators_bring_the_gradient(communicator):
    compressor = compression.grace(Halves(), None, communicator)
    optimizer = types.SimpleNamespace(process_set=None)
    sums, state = torch_grace.Sums(compressor, optimizer), ParameterState("p")
    for shape in ((1,), (5,), (2, 3)):
        gradient = torch.randn(shape, dtype=torch.float64)
        wait = sums.start(gradient, state)
        assert torch.equal(wait(), gradient), "a gradient of one element is no exception"
    for whole in (torch.zeros(0), torch.ones(3, dtype=torch.int32)):
        assert sums.start(whole, state) is None
    assert state.step == 3


@pytest.mark.parametrize("beside", [False, True])
def test_codes_are_timed_while_the_rank_waits_for_them(horovod, beside):
    """beside: the first exchange has ended before."""
    horovod.poll = lambda handle: beside
    compressor = compression.eight_bit().with_error_feedback()
    process_set = types.SimpleNamespace(rank=lambda: 0, size=lambda: 1)
    optimizer = types.SimpleNamespace(process_set=process_set, op="Average")
    state, gradient = ParameterState("p"), torch.randn(2, 50)
    before = counters.codes()
    wait = torch_two_steps.Sums(compressor, optimizer).start(gradient, state)
    result = wait()
    assert 0 < counters.codes()[2] - before[2] < 60
    assert result.shape == gradient.shape
    owed = state.rest + state.memory["sum_rest"].view(2, 50)
    torch.testing.assert_close(result + owed, gradient)


@pytest.mark.parametrize("deterministic", ["0", "1"])
def test_seeds_of_codecs_follow_name_and_step_where_runs_reproduce(monkeypatch, deterministic):
    """Else the header has 0, and the engine draws one."""
    monkeypatch.setenv("OMNIHVD_DETERMINISTIC", deterministic)

    def run():
        monkeypatch.setattr(torch_codecs, "_steps", torch_codecs.Counter())
        headers = []
        for name in ("a", "a", "b"):
            made, envelope = torch_codecs.compress(compression.codecs.natural(), torch.ones(9))
            envelope.begin(1.0, name, "Sum", types.SimpleNamespace(process_set_id=0))
            size = len(envelope.format.header())
            headers.append(made.numpy().tobytes()[:size])
        return headers

    assert run() == run()
    assert len(set(run())) == (3 if deterministic == "1" else 1)


def test_the_memory_of_a_large_tensor_is_reused_once_nothing_refers_to_it(monkeypatch):
    monkeypatch.setattr(torch_memory, "_kept", {})
    size = torch_memory.LARGE // 4
    first, beside = torch_memory.int32(size), torch_memory.int32(size)
    place = first.data_ptr()
    assert beside.data_ptr() != place
    del first
    assert torch_memory.int32(size).data_ptr() == place


def test_a_certificate_leaves_out_what_another_optimizer_reduces():
    compressor = compression.block_topk(1.0, 8).with_certificate()
    compressor.gauge = kept = Kept()
    kept.vote = kept.level = 0
    optimizer = Optimizer(compressor, [300, 300])
    optimizer.parameters[1].grad = torch.ones(300)  # named here, too
    for _ in range(EVERY + 1):
        optimizer.step(numbered([300]))
    assert any(found.true for found, _, _ in kept.found)
    assert all(found.true == found.received == found.both for found, _, _ in kept.found)


def test_a_set_of_codes_is_a_sum_of_its_own(monkeypatch):
    """So no notice says that no sum was taken over."""
    monkeypatch.setattr(counters, "_has_own_sums", False)
    process_set = types.SimpleNamespace(rank=lambda: 0, size=lambda: 1)
    optimizer = types.SimpleNamespace(process_set=process_set, op="Average")
    compressor = compression.topk(0.1).with_codec("natural")
    wait = torch_two_steps.Sums(compressor, optimizer).start(
        torch.arange(1.0, 101), ParameterState("p")
    )
    assert torch.count_nonzero(wait()) == 10 and counters.has_own_sums()
    assert had_a_part({"calls": 0, "sparse": {"gradients": 0}})
