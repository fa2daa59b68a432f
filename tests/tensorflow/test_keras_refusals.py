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
