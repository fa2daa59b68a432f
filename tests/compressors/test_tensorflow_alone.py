"""Compressors in Horovod's TensorFlow optimizers: one rank, without a launcher.

Stand-ins for Horovod's sums return what the rank gave.
"""

import sys
import types

import numpy as np
import pytest
from test_certificate import Kept, chosen, numbered

from omnihvd import compression
from omnihvd.compression import counters
from omnihvd.compression.certificate import Blocks
from omnihvd.compression.split import ParameterState as State

tf = pytest.importorskip("tensorflow")

from omnihvd.compression import (  # noqa: E402
    tensorflow_certificate,
    tensorflow_horovod,
    tensorflow_two_steps,
)


def constants(arrays):
    return [tf.constant(array) for array in arrays]


@pytest.mark.parametrize("averages", [False, True])
def test_a_certificate_compares_what_numpy_chooses(averages):
    sizes, ranks = [4000, 100], 2
    compressor = compression.block_topk(0.5, 8).with_certificate()
    compressor.gauge, by_hand = Kept(), Kept()
    compressor.gauge.vote, compressor.gauge.models, by_hand.vote = 3, {}, 3
    blocks = Blocks(by_hand, sizes, 8)
    among = types.SimpleNamespace(
        size=ranks,
        averages=averages,
        reduce=lambda own, name, averages, **how: own if averages else ranks * own,
    )
    for step in range(3):
        true, received = numbered(sizes, step), numbered(sizes, 17 * step)
        end = tensorflow_certificate.begin(compressor, constants(true), true, among)
        assert len(end(constants(received))) == 2
        own = np.append(chosen(blocks, true)[:-1], np.float32(3))
        sums = (own, 1) if averages else (ranks * own, ranks)
        blocks.compare(sums[0], chosen(blocks, received), sums[1])
        blocks.step += 1
    assert compressor.gauge.found == by_hand.found
    assert {level for _, _, level in by_hand.found} == {3}


@pytest.mark.parametrize(("together", "expected"), [(True, [0.3, 0.4]), (False, [0.5, 0.5])])
def test_four_ranks_clip_to_half_of_the_norm(together, expected):
    """All gradients by their common norm of 5, or each by its own."""
    compressor = compression.block_topk(1.0).with_clipping(1, together=together)
    among = types.SimpleNamespace(size=lambda: 4)
    gradients, integers = constants([[3.0, 0.0], [4.0, 0.0]]), tf.constant([7])
    variables = [tf.Variable(g, name=str(n)) for n, g in enumerate([*gradients, integers])]
    sums = tensorflow_horovod._compressed(compressor, among)
    *sent, whole, none = sums([*gradients, integers, None], [*variables, None], lambda sent: sent)
    np.testing.assert_allclose(sent, [[e, 0] for e in expected], rtol=1e-6)
    assert whole.numpy() == [7] and none is None


def test_the_time_of_sums_is_exposed_and_nothing_is_lost():
    before = counters.stats()["exposed_seconds"]
    rows = tf.IndexedSlices(tf.constant([[2.0]]), tf.constant([5]))
    given = [tf.constant(1.0), rows, None]
    one, sparse, none = tensorflow_horovod._timed(given, lambda: given)
    assert one.numpy() == 1 and none is None
    assert sparse.values.numpy() == 2 and sparse.indices.numpy() == 5
    assert 0 < counters.stats()["exposed_seconds"] - before < 60


class Set:
    """A process set."""

    def __init__(self, ranks):
        self.size = lambda: ranks


def test_ranks_agree_once(monkeypatch):
    asked = []

    def allgather(mine, name, process_set):
        asked.append(process_set)
        return tf.concat([mine, mine], 0)

    hvd = types.SimpleNamespace(allgather=allgather)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", hvd)
    among, alone = Set(2), Set(1)
    backend = tensorflow_horovod.Backend(compression.topk(0.1))
    for _ in range(2):
        backend.agree(among)
    backend.agree(alone)
    assert asked == [among]
    hvd.allgather = lambda mine, **_: tf.concat([mine, mine + 1], 0)
    with pytest.raises(RuntimeError, match=r"rank 1 compresses with .*: all ranks must be"):
        tensorflow_horovod.Backend(compression.topk(0.1)).agree(among)


def test_graph_sessions_are_refused(monkeypatch):
    monkeypatch.setattr(tf.compat.v1, "executing_eagerly_outside_functions", lambda: False)
    backend, gradient = tensorflow_horovod.Backend(compression.topk(0.1)), tf.constant([1.0])
    with pytest.raises(RuntimeError, match="compression needs TensorFlow 2: it keeps state"):
        backend.compress(gradient, tf.Variable(gradient))


def test_codes_of_one_rank_go_to_no_other():
    """This rank keeps all that is lost, on both sides."""
    compressor, state = compression.eight_bit().with_error_feedback(), State("p")
    among = types.SimpleNamespace(
        rank=0,
        size=1,
        averages=True,
        alltoall=lambda code, splits, name: code,
        allgather=lambda code, name: code,
    )
    gradient = tf.random.stateless_normal([2, 50], [1, 2])
    before = counters.codes()
    summed = tensorflow_two_steps.start(compressor, gradient, state, among)()
    assert counters.codes() == before
    owed = state.rest + state.memory["sum_rest"].reshape(2, 50)
    np.testing.assert_allclose(summed + owed, gradient, rtol=1e-5, atol=1e-5)


def reducer(compressor, groups=None):
    """Horovod's function for gradients, on a rank outside of the process set."""

    def make(name, device_dense, device_sparse, compression, sparse_as_dense, op,
             gradient_predivide_factor, groups, process_set):  # fmt: skip
        return lambda grads, vars, use_generic_names=False: grads

    none = types.SimpleNamespace(none=None)
    hvd = types.SimpleNamespace(_make_allreduce_grads_fn=make, Average=0, Sum=1, Compression=none)
    tensorflow_horovod.install(hvd)
    others = types.SimpleNamespace(size=lambda: 2, included=lambda: False)
    return hvd._make_allreduce_grads_fn("", "", "", compressor, False, 0, 1.0, groups, others)


def test_a_rank_outside_of_the_process_set_keeps_its_gradients():
    gradient = tf.range(100.0)
    (got,) = reducer(compression.topk(0.1))([gradient], [tf.Variable(gradient)])
    np.testing.assert_array_equal(got, gradient)


@pytest.mark.parametrize(
    ("compressor", "said"),
    [
        (compression.power_sgd(2), "power_sgd sums each parameter in two steps"),
        (compression.topk(0.1).with_codec("natural"), "natural sums each parameter in two steps"),
    ],
)
def test_sums_in_two_steps_have_no_groups(compressor, said):
    reducer(compressor)
    reducer(compression.topk(0.1), groups=2)
    with pytest.raises(ValueError, match=f"{said}: it needs groups=None"):
        reducer(compressor, groups=2)


@pytest.mark.parametrize("budget", ["0", "100"])
def test_elastic_jobs_are_refused(monkeypatch, budget):
    """Graphs keep the number of ranks. Without a compressor Horovod asks for it in each step."""
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    monkeypatch.setenv("OMNIHVD_DELAY_BUDGET_MS", budget)
    said = "compressors and OMNIHVD_DELAY_BUDGET_MS are not for elastic jobs under TensorFlow: use"
    with pytest.raises(ValueError, match=f"{said} OmniReduce or a codec"):
        reducer(compression.topk(0.1))
    if budget == "0":
        reducer(compression.OmniReduce)
    else:
        with pytest.raises(ValueError, match=said):
            reducer(compression.OmniReduce)
