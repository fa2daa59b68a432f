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
