"""Keras models that cannot be trained on."""

from __future__ import annotations

import types

import pytest


def test_a_model_without_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = pytest.importorskip("omnihvd.keras", exc_type=ImportError)
    model = types.SimpleNamespace(optimizer=None)
    monkeypatch.setattr(ours.tf.keras.models, "load_model", lambda *_, **__: model)
    with pytest.raises(
        ValueError, match=r"a.keras: the model was saved without an optimizer; comp"
    ):
        ours.load_model("a.keras")


def test_variables_of_an_optimizer_may_be_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Keras 2's LossScaleOptimizer of a legacy optimizer."""
    ours = pytest.importorskip("omnihvd.keras", exc_type=ImportError)
    sent: list[object] = []
    monkeypatch.setattr(ours.hvd, "broadcast_variables", lambda all_, root_rank: sent.extend(all_))
    weight, moment = ours.tf.Variable(1.0), ours.tf.Variable(2.0)
    for variables in ([moment], lambda: [moment]):
        sent.clear()
        callback = ours.BroadcastCallback()
        optimizer = types.SimpleNamespace(variables=variables)
        model = types.SimpleNamespace(variables=[weight], optimizer=optimizer)
        monkeypatch.setattr(type(callback), "model", model, raising=False)
        callback.on_train_batch_end(0)
        assert len(sent) == 2


def test_an_elastic_job_of_one_rank_reduces(monkeypatch: pytest.MonkeyPatch) -> None:
    """In graphs, too, which outlive the number of ranks: Horovod asks for it in each step."""
    ours = pytest.importorskip("omnihvd.keras", exc_type=ImportError)
    import keras

    reduced: list[object] = []

    def reduce(gradients: list[object], variables: list[object]) -> list[object]:
        reduced.append(variables)
        return gradients

    monkeypatch.setattr(ours.hvd, "_make_allreduce_grads_fn", lambda **_: reduce)
    one_rank = types.SimpleNamespace(size=lambda: 1)
    for elastic in ("0", "1"):
        monkeypatch.setenv("HOROVOD_ELASTIC", elastic)
        weight, sgd = keras.Variable([1.0]), keras.optimizers.SGD(1.0)
        ours.DistributedOptimizer(sgd, process_set=one_rank).apply([ours.tf.ones(1)], [weight])
        assert len(reduced) == int(elastic)
        assert weight.numpy() == 0
