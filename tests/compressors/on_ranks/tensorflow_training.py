"""Run by every rank of a Horovod job (test_whole_path.py): TensorFlow with compression."""

import copy

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import pytest
import tensorflow as tf
from grace_objects import Halves, Residual, Signs
from tried import BLOCK, COMPRESSORS

import omnihvd
from omnihvd import compression
from omnihvd.compression import Compressor

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()


def fresh(compressor):
    """The same compressor without what earlier tests left in it."""
    return Compressor(compressor.config)


def make_model():
    tf.keras.backend.clear_session()  # so that names start again
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(31, activation="tanh"), tf.keras.layers.Dense(10)]
    )
    model.build((None, 12))
    hvd.broadcast_variables(model.variables, root_rank=0)
    return model


def batch(step):
    random = np.random.default_rng(1000 * step + RANK)
    x = random.standard_normal((24, 12)).astype(np.float32)
    return tf.constant(x), tf.constant(x[:, :10].argmax(axis=1))


cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def gradients_of(model, compressor, x, y):
    with tf.GradientTape() as tape:
        loss = cross_entropy(y, model(x))
    if compressor is not None:
        tape = hvd.DistributedGradientTape(tape, compression=compressor)
    return tape.gradient(loss, model.trainable_variables)


def train(model, compressor, steps, graph):
    def step(x, y):
        gradients = gradients_of(model, compressor, x, y)
        for variable, gradient in zip(model.trainable_variables, gradients):
            variable.assign_sub(0.1 * gradient)

    step = tf.function(step) if graph else step
    for i in steps:
        step(*batch(i))


def weights(model):
    return tf.concat([tf.reshape(v, [-1]) for v in model.trainable_variables], 0).numpy()


def assert_same_on_all_ranks(array, name):
    everyone = hvd.allgather(tf.constant(array)[None], name=name).numpy()
    assert all(np.array_equal(theirs, array) for theirs in everyone)


@pytest.mark.parametrize(
    ("kind", "graph"),
    [*((kind, False) for kind in COMPRESSORS), ("random", True), ("momentum", True)],
)
def test_gradients_are_the_mean_of_what_the_ranks_sent(kind, graph):
    """Against gradients computed aside, split by hand, and averaged with no compression."""
    compressor, by_hand = fresh(COMPRESSORS[kind]), fresh(COMPRESSORS[kind])._backend("tensorflow")
    model = make_model()
    step = gradients_of
    if graph:
        step = tf.function(lambda *args: gradients_of(model, compressor, *args[2:]))
    for i in range(4):
        own = gradients_of(model, None, *batch(i))
        reduced = step(model, compressor, *batch(i))
        for variable, gradient, got in zip(model.trainable_variables, own, reduced):
            sent = by_hand.compress(gradient, variable)
            mean = hvd.allreduce(sent, op=hvd.Average, name=f"expected.{variable.name}")
            np.testing.assert_allclose(got, mean, rtol=1e-5, atol=1e-7)
            variable.assign_sub(0.1 * got)
    assert_same_on_all_ranks(weights(model), "weights")


def test_random_blocks_are_the_same_on_all_ranks():
    model = make_model()
    gradients = gradients_of(model, compression.block_random(0.2, 1, BLOCK), *batch(0))
    blocks = gradients[0].numpy().reshape(-1)[: 12 * 31 // BLOCK * BLOCK].reshape(-1, BLOCK)
    assert np.count_nonzero(blocks.any(axis=1)) in (4, 5)  # of 23 and a short one


@pytest.mark.parametrize(
    ("kind", "graph"), [("topk", False), ("random", False), ("warm-up", False), ("momentum", True)]
)
def test_training_goes_on_from_a_checkpoint_as_if_never_stopped(kind, graph):
    compressor, model = fresh(COMPRESSORS[kind]), make_model()
    train(model, compressor, range(3), graph)
    saved = copy.deepcopy((model.get_weights(), compressor.state_dict()))
    train(model, compressor, range(3, 6), graph)

    for used in (False, True):  # loaded before its variables are known, and after
        again, other = make_model(), fresh(COMPRESSORS[kind])
        if used:
            train(again, other, range(2), graph)
        again.set_weights(saved[0])
        gradients_of(again, other, *batch(0)) if used else None
        other.load_state_dict(saved[1])
        train(again, other, range(3, 6), graph)
        np.testing.assert_allclose(weights(again), weights(model), rtol=1e-5, atol=1e-7)


def test_state_of_another_shape_is_refused():
    compressor, model = fresh(COMPRESSORS["topk"]), make_model()
    train(model, compressor, range(1), False)
    name = model.trainable_variables[0].name
    with pytest.raises(ValueError, match=r"compression state of .* has shape .3,., the parameter"):
        compressor.load_state_dict({name: {"step": 1, "rest": np.zeros(3), "velocity": None}})


@pytest.mark.parametrize(("optimizer", "passes"), [("legacy", 2), ("current", 1)])
def test_keras_fit(optimizer, passes):
    optimizers = tf.keras.optimizers.legacy if optimizer == "legacy" else tf.keras.optimizers
    compressor = compression.block_topk(0.2, BLOCK)
    model = make_model()
    model.compile(
        hvd_keras.DistributedOptimizer(
            optimizers.SGD(0.3), compression=compressor, backward_passes_per_step=passes
        ),
        cross_entropy,
    )
    x, y = (tf.concat(parts, 0) for parts in zip(*[batch(i) for i in range(8)]))
    history = model.fit(x, y, batch_size=24, epochs=6, shuffle=False, verbose=0).history["loss"]
    assert history[-1] < 0.8 * history[0]
    steps = {state["step"] for state in compressor.state_dict().values()}
    assert steps == {6 * 8 // passes}
    assert_same_on_all_ranks(weights(model), "weights")


def test_sparse_gradients():
    """Made dense, they are compressed; gathered, they pass through."""
    table = tf.Variable(tf.ones([40, 12]), name="table")
    for as_dense in (False, True):
        compressor = compression.block_topk(0.1, BLOCK)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [3, 3, 5 + RANK]) ** 2)
        tape = hvd.DistributedGradientTape(tape, compression=compressor, sparse_as_dense=as_dense)
        (gradient,) = tape.gradient(loss, [table])
        assert isinstance(gradient, tf.IndexedSlices) != as_dense
        assert bool(compressor.state_dict()) == as_dense


def test_variables_of_one_name_are_told_apart():
    variables = [tf.Variable(tf.ones(5)), tf.Variable(tf.ones(7))]
    compressor = compression.block_topk(0.5, BLOCK)
    with tf.GradientTape() as tape:
        loss = sum(tf.reduce_sum(v * v) for v in variables)
    hvd.DistributedGradientTape(tape, compression=compressor).gradient(loss, variables)
    assert set(compressor.state_dict()) == {"Variable:0", "Variable:0#2"}


def test_epochs_can_be_told_inside_a_graph():
    compressor = compression.block_topk(0.05, BLOCK).with_warmup(2, 0.8)
    model = make_model()
    with pytest.raises(RuntimeError, match="set_epoch"):
        gradients_of(model, compressor, *batch(0))
    compressor.set_epoch(0)
    step = tf.function(lambda x, y: gradients_of(model, compressor, x, y))
    nonzeros = []
    for epoch in range(3):
        compressor.set_epoch(epoch)
        nonzeros.append(np.count_nonzero(step(*batch(0))[0]))
    assert nonzeros[0] > 2 * nonzeros[1] > 4 * nonzeros[2] > 0


def test_what_cannot_work_is_refused():
    compressor = compression.block_topk(0.1, BLOCK)
    with pytest.raises(RuntimeError, match="which parameter"):
        hvd.allreduce(tf.ones(5), compression=compressor)
    with pytest.raises(ValueError, match=r"a compressor needs op=hvd.Average or op=hvd.Sum"):
        hvd.DistributedGradientTape(tf.GradientTape(), compression=compressor, op=hvd.Adasum)
    with (
        tf.Graph().as_default(),
        pytest.raises(RuntimeError, match="needs TensorFlow 2: it keeps state"),
    ):
        variable = tf.compat.v1.get_variable("v", [5])
        compressor._backend("tensorflow").compress(tf.ones(5), variable)
    with pytest.raises(NotImplementedError, match="is for PyTorch: save state_dict"):
        compressor.average_rest()


def test_ranks_must_compress_alike():
    compressor = compression.topk(0.1 if RANK else 0.2)
    with pytest.raises(
        RuntimeError, match=r"rank 1 compresses with topk\(ratio=0.1\), rank 0 with"
    ):
        gradients_of(make_model(), compressor, *batch(0))


def of_rank(rank, step):
    random = np.random.default_rng(100 * step + rank)
    return [random.standard_normal(shape).astype(np.float32) for shape in ((20, 30), (7,))]


def reducer(compressor, graph):
    """A function of gradients, as they are."""
    variables = [tf.Variable(tf.zeros(g.shape), name=f"v{i}") for i, g in enumerate(of_rank(0, 0))]

    def reduce(*gradients):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v * g) for v, g in zip(variables, gradients)])
        return hvd.DistributedGradientTape(tape, compression=compressor).gradient(loss, variables)

    return tf.function(reduce) if graph else reduce


@pytest.mark.parametrize("graph", [False, True])
def test_power_sgd_is_that_of_the_paper(graph):
    compressor = compression.power_sgd(2)
    reduce, rule = reducer(compressor, graph), compressor.config.rule
    right = rule.memory("v0:0", (20, 30))["right"]
    rests = [0] * SIZE
    for step in range(3):
        everyone = [of_rank(rank, step) for rank in range(SIZE)]
        got = reduce(*map(tf.constant, of_rank(RANK, step)))
        totals = [own[0] + rest for own, rest in zip(everyone, rests)]
        left = np.linalg.qr(sum(totals) @ right / SIZE)[0]
        right = sum(totals).T @ left / SIZE
        rests = [total - left @ right.T for total in totals]
        np.testing.assert_allclose(got[0], left @ right.T, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(got[1], np.mean([own[1] for own in everyone], 0), rtol=1e-5)
        rest = compressor.state_dict()["v0:0"]["rest"]
        np.testing.assert_allclose(rest, rests[RANK], rtol=1e-3, atol=1e-4)


def test_objects_of_grace_and_signum():
    expected = np.sign(sum(np.sign(of_rank(rank, 0)[0]) for rank in range(SIZE)))
    votes = Signs(tf.sign)
    for compressor in (
        compression.grace(votes), compression.grace(votes, None, "broadcast"),
        compression.signum(0.0), compression.sign_sgd(),
    ):  # fmt: skip
        got = reducer(compressor, graph=True)(*map(tf.constant, of_rank(RANK, 0)))
        np.testing.assert_array_equal(got[0], expected)
    reduce = reducer(compression.grace(Halves(), Residual()), graph=False)
    means = [sum(of_rank(rank, step)[0] for rank in range(SIZE)) / SIZE for step in range(2)]
    for step, expected in enumerate((means[0] / 2, means[0] / 4 + means[1] / 2)):
        got = reduce(*map(tf.constant, of_rank(RANK, step)))
        np.testing.assert_allclose(got[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    ("made", "error"),
    [(compression.eight_bit(), 0.05), (compression.topk(0.9).with_codec("natural"), 0.6)],
)
def test_codes_in_parts(graph, made, error):
    compressor = fresh(made)
    reduce, wanted, arrived = reducer(compressor, graph), 0, 0
    for step in range(3):
        got = reduce(*map(tf.constant, of_rank(RANK, step)))[0].numpy()
        mean = np.mean([of_rank(rank, step)[0] for rank in range(SIZE)], 0)
        if step == 0:
            assert 0 < np.linalg.norm(got - mean) < error * np.linalg.norm(mean)
        wanted, arrived = wanted + mean, arrived + got
    kept = compressor.state_dict()["v0:0"]
    rest = hvd.allreduce(kept["rest"], name="rests").numpy()
    rest += hvd.allgather(kept["memory"]["sum_rest"], name="sum rests").numpy().reshape(20, 30)
    np.testing.assert_allclose(arrived + rest, wanted, rtol=1e-4, atol=1e-4)


def test_delay_control_follows_the_sums():
    compressor = compression.block_topk(0.5, BLOCK).with_delay_control(1e-6, min_ratio=0.05)
    before = omnihvd.Statistics()
    train(make_model(), compressor, range(12), graph=True)
    assert compressor.ratio(12) == 0.05
    figures = before.read()["compression"]
    assert 0 < figures["exposed_seconds"] < 60


def test_gradients_are_clipped_together():
    model, norm = make_model(), 0.1
    compressor = compression.topk(1.0).with_clipping(norm, together=True)
    clipped = gradients_of(model, compressor, *batch(0))
    own = gradients_of(model, None, *batch(0))
    factor = norm / SIZE**0.5 / tf.linalg.global_norm(own)
    assert factor < 1
    for i, (gradient, of_rank) in enumerate(zip(clipped, own)):
        mean = hvd.allreduce(factor * of_rank, name=f"clipped {i}")
        np.testing.assert_allclose(gradient, mean, rtol=1e-4, atol=1e-6)


def test_a_budget_controls_tapes_that_know_nothing_of_it(monkeypatch):
    """Each step has a tape of its own, and all have one compressor, which sees the steps end."""
    monkeypatch.setenv("OMNIHVD_DELAY_BUDGET_MS", "100000")
    model, before = make_model(), omnihvd.Statistics()
    for step in range(4):
        reduced = gradients_of(model, hvd.Compression.none, *batch(step))
        own = gradients_of(model, None, *batch(step))
        for i, (gradient, of_rank) in enumerate(zip(reduced, own)):
            mean = hvd.allreduce(of_rank, name=f"own {i}")
            np.testing.assert_allclose(gradient, mean, rtol=1e-5, atol=1e-7)
    assert before.read()["compression"]["controlled_steps"] == 3


def test_synchronized_batch_norms_are_those_of_all_ranks():
    """PyTorch's are for GPUs."""
    whole = np.random.default_rng(0).standard_normal((8 * SIZE, 5)).astype(np.float32)
    layer, alone = hvd.SyncBatchNormalization(), tf.keras.layers.BatchNormalization()
    got = layer(tf.constant(whole[8 * RANK : 8 * RANK + 8]), training=True)
    expected = alone(tf.constant(whole), training=True)[8 * RANK : 8 * RANK + 8]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_certificate_says_what_was_lost():
    for made, graph, least, most in (
        (compression.block_topk(1.0, BLOCK), False, 0.999999, 1.000001),
        (compression.topk(0.02), True, 0.0, 0.9),
    ):
        figures = omnihvd.Statistics()
        train(make_model(), fresh(made.with_certificate()), range(20), graph)
        found = figures.read()["compression"]
        assert found["certified_steps"] == 20 and least < found["cosine"] < most


def test_a_floor_sends_more_on_all_ranks():
    compressor = fresh(compression.topk(0.02).with_floor(0.9))
    train(make_model(), compressor, range(120), graph=True)
    ratios = hvd.allgather_object(compressor.ratio(120))
    assert set(ratios) == {ratios[0]} and ratios[0] > 0.1
