"""On each rank: what training with a compressor is, saves, and refuses (PyTorch)."""

import copy
import io
from contextlib import closing
from itertools import product
from types import SimpleNamespace

import horovod.torch as hvd
import pytest
import torch
from torch_models import (
    BLOCK,
    COMPRESSORS,
    RANK,
    SIZE,
    Model,
    assert_same_on_all_ranks,
    fresh,
    loss_of,
    make,
    train,
    weights,
)

import omnihvd.torch
from omnihvd import compression
from omnihvd.compression import torch_ops
from omnihvd.compression.part_sums import part_of
from omnihvd.compression.split import ParameterState, split_by


@pytest.mark.parametrize(
    ("kind", "groups", "set_to_none", "passes"),
    [(kind, None, True, 1) for kind in COMPRESSORS]
    + [("momentum", *way) for way in product([None, 2], [True, False], [1, 2])],
)
def test_gradients_are_the_mean_of_what_the_ranks_sent(kind, groups, set_to_none, passes):
    """Against gradients computed aside, split by hand, and averaged with no compression."""
    compressor = fresh(COMPRESSORS[kind])
    model = Model(agree=groups is not None)
    model, optimizer = make(compressor, model, groups=groups, backward_passes_per_step=passes)
    states = {}
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    for step in range(4):
        aside = copy.deepcopy(model)
        aside.zero_grad(set_to_none=True)
        for i in range(passes):
            loss_of(aside, step * passes + i).backward()

        torch.optim.Optimizer.zero_grad(optimizer, set_to_none)
        for i in range(passes):
            loss_of(model, step * passes + i).backward()
        optimizer.synchronize()

        for name, p in aside.named_parameters():
            if not p.requires_grad:
                continue
            state = states.setdefault(name, ParameterState(name))
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            sent = split_by(torch_ops, compressor, gradient, state)
            mean = hvd.allreduce(sent, op=hvd.Average, name=f"expected.{name}")
            torch.testing.assert_close(parameters[name].grad, mean, rtol=1e-6, atol=1e-8)
            ours = compressor.state_dict()[name]
            if state.rest is None:
                assert ours["rest"] is None
            else:
                assert torch.equal(ours["rest"], state.rest)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert_same_on_all_ranks(weights(model), "weights")
    assert model.frozen.weight.grad is None


def test_sending_all_blocks_is_training_without_compression():
    trained = []
    for compressor in (compression.block_topk(1.0, BLOCK), hvd.Compression.none):
        model, optimizer = make(compressor)
        train(model, optimizer, range(6))
        trained.append(weights(model))
    assert torch.equal(*trained)


def test_random_blocks_are_the_same_on_all_ranks():
    model, optimizer = make(compression.block_random(0.2, 1, BLOCK))
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.synchronize()
        gradient = model.hidden.weight.grad.reshape(-1)
        nonzero = [bool(block.any()) for block in gradient.split(BLOCK)]
        assert sum(nonzero) == round(0.2 * len(nonzero))
        with optimizer.skip_synchronize():
            optimizer.step()


def make_adam(compressor):
    torch.manual_seed(5)
    model = Model()
    return make(compressor, model, torch.optim.Adam(model.parameters(), lr=0.01))


@pytest.mark.parametrize(
    ("kind", "made"), [*((kind, make) for kind in COMPRESSORS), ("momentum", make_adam)]
)
def test_training_goes_on_from_a_checkpoint_as_if_never_stopped(kind, made):
    """Saved on every rank with the optimizer, through torch.save."""
    model, optimizer = made(fresh(COMPRESSORS[kind]))
    train(model, optimizer, range(4))
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    train(model, optimizer, range(4, 8))

    again, optimizer_again = made(fresh(COMPRESSORS[kind]))
    train(again, optimizer_again, range(2))  # what it remembers of these must go
    file.seek(0)
    saved_model, saved_optimizer = torch.load(file, weights_only=True)
    again.load_state_dict(saved_model)
    optimizer_again.load_state_dict(saved_optimizer)
    train(again, optimizer_again, range(4, 8))
    assert torch.equal(weights(again), weights(model))


def test_state_of_the_compressor_alone_can_be_saved():
    compressor, other = compression.block_topk(0.1, BLOCK), compression.block_topk(0.1, BLOCK)
    model, optimizer = make(compressor)
    train(model, optimizer, range(3))
    again, optimizer_again = make(other, copy.deepcopy(model))
    other.load_state_dict(copy.deepcopy(compressor.state_dict()))
    train(model, optimizer, range(3, 6))
    train(again, optimizer_again, range(3, 6))
    assert torch.equal(weights(again), weights(model))
    with pytest.raises(ValueError, match=r"this compressor has parameters .*nobody"):
        other.load_state_dict({"nobody": {"step": 1, "rest": None, "velocity": None}})
    with pytest.raises(ValueError, match=r"compression state of hidden.bias has shape"):
        other.load_state_dict(
            {"hidden.bias": {"step": 1, "rest": torch.zeros(2), "velocity": None}}
        )


def test_checkpoint_of_a_job_without_compression_loads():
    model, optimizer = make(hvd.Compression.none)
    train(model, optimizer, range(2))
    compressor = compression.block_topk(0.1, BLOCK)
    again, optimizer_again = make(compressor)
    train(again, optimizer_again, range(2))
    optimizer_again.load_state_dict(optimizer.state_dict())
    assert compressor.state_dict() == {}
    train(again, optimizer_again, range(2))


def test_one_rank_can_save_for_all_after_averaging():
    compressor = compression.block_topk(0.1, BLOCK).with_momentum_correction(0.5)
    model, optimizer = make(compressor)
    train(model, optimizer, range(3))
    before = copy.deepcopy(compressor.state_dict())
    compressor.average_rest()
    for name, state in compressor.state_dict().items():
        for kind in ("rest", "velocity") if state["rest"] is not None else ():
            mean = hvd.allreduce(before[name][kind], op=hvd.Average, name=f"{kind}.{name}")
            torch.testing.assert_close(state[kind], mean)
            assert_same_on_all_ranks(state[kind], f"same.{kind}.{name}")
        assert state["step"] == 3
    assert compressor.state_dict()["hidden.weight"]["rest"].any()
    root = hvd.broadcast_object(optimizer.state_dict(), 0)
    again, optimizer_again = make(fresh(compressor), copy.deepcopy(model))
    optimizer_again.load_state_dict(root)
    train(model, optimizer, range(3, 6))
    train(again, optimizer_again, range(3, 6))
    torch.testing.assert_close(weights(again), weights(model))


def test_what_sums_of_codes_have_lost_is_averaged_too():
    """Each rank loses something of its own part of the sum; another rank has another part."""
    compressor = compression.ef_sign()
    model, optimizer = make(compressor)
    train(model, optimizer, range(2))
    owed, lost_here = {}, 0
    for name, state in compressor.state_dict().items():
        rest, lost = state["rest"].clone().view(-1), state["memory"]["sum_rest"]
        rest[part_of(len(rest), RANK, SIZE)] += SIZE * lost
        owed[name] = hvd.allreduce(rest, op=hvd.Average, name=f"owed.{name}")
        lost_here += lost.count_nonzero()
    assert lost_here > 0
    compressor.average_rest()
    for name, state in compressor.state_dict().items():
        torch.testing.assert_close(state["rest"].view(-1), owed[name])
        assert "sum_rest" not in state["memory"]
    train(model, optimizer, range(2, 4))


def test_ranks_of_other_ratios_average_what_some_keep():
    compressor = compression.block_topk(1.0, BLOCK).with_delay_control(50)
    model, optimizer = make(compressor)
    train(model, optimizer, range(1))
    if RANK == 0:
        one = {"step": 1, "rest": torch.ones_like(model.hidden.bias), "velocity": None}
        compressor.load_state_dict({"hidden.bias": one})
    compressor.average_rest()
    rest = compressor.state_dict()["hidden.bias"]["rest"]
    torch.testing.assert_close(rest, torch.full_like(rest, 1 / SIZE))


def test_elastic_state_is_restored_and_synced():
    compressor = compression.block_topk(0.1, BLOCK)
    model, optimizer = make(compressor)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
    train(model, optimizer, range(2))
    state.save()
    rest = compressor.state_dict()["hidden.weight"]["rest"].clone()
    train(model, optimizer, range(2, 4))
    after = weights(model)
    state.restore()
    assert torch.equal(compressor.state_dict()["hidden.weight"]["rest"], rest)
    state.sync()
    train(model, optimizer, range(2, 4))
    assert torch.equal(weights(model), after)


def test_optimizer_state_can_be_broadcast_at_the_start():
    model, optimizer = make_adam(compression.block_topk(0.1, BLOCK))
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    train(model, optimizer, range(2))
    assert_same_on_all_ranks(weights(model), "weights")


@pytest.mark.parametrize("as_dense", [True, False])
def test_sparse_gradients(as_dense):
    """Made dense, they are compressed; gathered, they pass through."""
    compressor = compression.block_topk(0.1, BLOCK)
    model, optimizer = make(compressor, Model(sparse=True), sparse_as_dense=as_dense)
    train(model, optimizer, range(3))
    assert ("embedding.weight" in compressor.state_dict()) == as_dense
    assert "hidden.weight" in compressor.state_dict()
    assert_same_on_all_ranks(weights(model), "weights")


def test_one_compressor_can_serve_two_optimizers():
    compressor = compression.block_topk(0.1, BLOCK)
    parts = [torch.nn.Linear(12, 31), torch.nn.Linear(31, 10)]
    optimizers = []
    for i, part in enumerate(parts):
        hvd.broadcast_parameters(part.state_dict(), 0)
        names = [(f"part{i}.{name}", p) for name, p in part.named_parameters()]
        sgd = torch.optim.SGD(part.parameters(), lr=0.1)
        optimizers.append(hvd.DistributedOptimizer(sgd, names, compressor))
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        parts[1](parts[0](torch.randn(8, 12))).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert set(compressor.state_dict()) == {
        f"part{i}.{name}" for i in range(2) for name in ("weight", "bias")
    }
    for i, part in enumerate(parts):
        assert_same_on_all_ranks(weights(part), f"weights{i}")


def test_names_that_collide_are_not_merged():
    compressor = compression.block_topk(0.5, BLOCK)
    kept = []  # optimizers that end are forgotten
    for _ in range(2):
        part = torch.nn.Linear(3, 3)
        sgd = torch.optim.SGD(part.parameters(), lr=0.1)
        kept.append(hvd.DistributedOptimizer(sgd, part.named_parameters(), compressor))
        part(torch.randn(2, 3)).sum().backward()
        kept[-1].step()
    with pytest.raises(ValueError, match="have parameters of the same name"):
        compressor.state_dict()


def test_process_sets():
    some = hvd.add_process_set(list(range(SIZE - 1)))
    compressor = compression.block_topk(0.1, BLOCK)
    model, optimizer = make(compressor, process_set=some)
    before = weights(model)
    train(model, optimizer, range(3))
    compressor.average_rest()
    everyone = hvd.allgather(weights(model).unsqueeze(0), name="weights")
    assert all(torch.equal(theirs, everyone[0]) for theirs in everyone[: SIZE - 1])
    assert not torch.equal(weights(model), before)
    assert bool(compressor.state_dict()) == some.included()
    hvd.remove_process_set(some)


def test_warm_up_without_an_epoch_stops_the_first_step():
    compressor = compression.block_topk(0.1, BLOCK).with_warmup()
    model, _optimizer = make(compressor)
    with pytest.raises(RuntimeError, match="set_epoch"):
        loss_of(model, 0).backward()
    compressor.set_epoch(0)


def test_adasum_is_refused():
    model = torch.nn.Linear(4, 4)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        sgd, model.named_parameters(), compression.block_topk(0.1), op=hvd.Adasum
    )
    with pytest.raises(RuntimeError, match=r"hvd\.Average"):
        model(torch.ones(1, 4)).sum().backward()
    del optimizer


def test_other_reductions_are_refused():
    with pytest.raises(ValueError, match=r"a compressor needs op=hvd.Average or op=hvd.Sum"):
        make(compression.block_topk(0.1), op=hvd.Max)


def test_allreduce_of_a_bare_tensor_is_refused():
    with pytest.raises(RuntimeError, match="which parameter"):
        hvd.allreduce(torch.ones(5), compression=compression.block_topk(0.1))


def test_other_optimizers_are_untouched():
    model, optimizer = make(hvd.Compression.fp16)
    assert "_allreduce_grad_async" not in vars(optimizer)
    train(model, optimizer, range(2))
    assert set(optimizer.state_dict()) == {"state", "param_groups"}


def test_ranks_must_compress_alike():
    model, _optimizer = make(compression.topk(0.1 if RANK else 0.2))
    with pytest.raises(
        RuntimeError, match=r"rank 1 compresses with topk\(ratio=0.1\), rank 0 with"
    ):
        loss_of(model, 0).backward()


def test_delay_control_follows_the_sums():
    """A budget that no sum can keep to, and one that any can."""
    for budget, ratio in ((1e-6, 0.05), (1e6, 1.0)):
        compressor = compression.topk(0.5).with_delay_control(budget, min_ratio=0.05)
        step = omnihvd.Statistics()
        model, optimizer = make(compressor)
        scalars = set()
        writer = SimpleNamespace(add_scalar=lambda name, *_, scalars=scalars: scalars.add(name))
        with closing(omnihvd.torch.StatsWriter(writer, optimizer)):
            train(model, optimizer, range(30))
        written = {"ratio", "bandwidth", "delay", "exposed"}
        assert {f"omnihvd/compression_{name}" for name in written} <= scalars
        assert compressor.ratio(30) == ratio
        figures = step.read()["compression"]
        assert figures["controlled_steps"] == 29 or figures["controlled_steps"] == 30
        assert 0.05 <= figures["ratio"] <= 1 and figures["exposed_seconds"] > 0
        assert figures["bandwidth"] is not None and figures["delay_seconds"] > 0


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_a_certificate_over_a_rotation_is_what_compression_did(op):
    """The same gradients in each step, sent by random elements without a residual, so that the sums
    over 256 steps have a closed form."""
    compressor = compression.randomk(0.5, 3).with_error_feedback(False).with_certificate()
    layer = torch.nn.Linear(700, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=0), layer.named_parameters(), compressor, op=op
    )
    scale = (SIZE + 1) / 2 * (1 if op == hvd.Average else SIZE)
    figures, everything = omnihvd.Statistics(), 0.0
    for step in range(257):  # the last one's blocks would be summed beside the next
        optimizer.zero_grad()
        for number, p in enumerate(layer.parameters()):
            p.grad = (RANK + 1) * (torch.arange(p.numel()) % 7 + 1.0 + number).view_as(p)
            hook = optimizer._make_hook(p)
            hook()
        optimizer.step()
        if step < 256:
            everything += sum(float(p.grad.double().square().sum()) for p in layer.parameters())
    found = figures.read()["compression"]
    row = torch.arange(700.0) % 7 + 1
    assert found["certified_steps"] == 256
    assert found["certified_true"] == 256 * scale**2 * float(row.dot(row) + 4)
    assert found["certified_received"] == pytest.approx(everything, rel=0.2)
    assert found["cosine"] == pytest.approx(0.5**0.5, abs=0.05)


def test_a_floor_sends_more_on_all_ranks():
    compressor = fresh(compression.topk(0.02).with_floor(0.9))
    model, optimizer = make(compressor)
    train(model, optimizer, range(150))
    ratios = hvd.allgather_object(compressor.ratio(150))
    assert set(ratios) == {ratios[0]} and ratios[0] > 0.1
    assert_same_on_all_ranks(weights(model), "weights under a floor")
