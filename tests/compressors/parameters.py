"""One parameter on one rank, in each framework, behind one interface of NumPy arrays.

Values are float64 whatever the dtype under test: all dtypes fit in it.
"""

from __future__ import annotations

import dataclasses
import importlib.util

import numpy as np
import pytest

from omnihvd.compression import Compressor


class TorchParameter:
    def __init__(self, compressor: Compressor, name: str, dtype: str, device: str = "cpu") -> None:
        import torch

        from omnihvd.compression.split import ParameterState

        self._compressor = compressor
        self._dtype, self._device = getattr(torch, dtype), device
        self._state = ParameterState(name)

    def round(self, values: np.ndarray) -> np.ndarray:
        """The values that the dtype has for these."""
        import torch

        return torch.tensor(values).to(self._dtype).double().numpy()

    def send(self, gradient: np.ndarray) -> np.ndarray:
        import torch

        from omnihvd.compression import torch_ops
        from omnihvd.compression.split import split_by

        self._shape = gradient.shape
        tensor = torch.tensor(gradient).to(self._device, self._dtype)
        sent = split_by(torch_ops, self._compressor, tensor, self._state)
        assert sent.dtype == self._dtype and sent.shape == tensor.shape
        return sent.double().cpu().numpy()

    def kept(self, kind: str) -> np.ndarray | None:
        """The "rest" or the "velocity"."""
        tensor = getattr(self._state, kind)
        if tensor is None and self._compressor.config.error_feedback:
            return np.zeros(self._shape)  # nothing has ever stayed
        return None if tensor is None else tensor.double().cpu().numpy()

    def memory(self) -> dict[str, np.ndarray]:
        return {name: tensor.cpu().numpy() for name, tensor in self._state.memory.items()}


class TensorFlowParameter:
    def __init__(self, compressor: Compressor, name: str, dtype: str) -> None:
        import tensorflow as tf

        from omnihvd.compression.tensorflow_horovod import Backend

        # State lives in the compressor: a copy, so that each parameter here has its own.
        self._backend = Backend(Compressor(dataclasses.replace(compressor.config)))
        self._dtype, self._name = getattr(tf, dtype), name
        self._variable = None

    def round(self, values: np.ndarray) -> np.ndarray:
        import tensorflow as tf

        return tf.cast(tf.cast(values, self._dtype), tf.float64).numpy()

    def send(self, gradient: np.ndarray) -> np.ndarray:
        import tensorflow as tf

        tensor = tf.cast(gradient, self._dtype)
        if self._variable is None:
            self._variable = tf.Variable(tensor, name=self._name)
        sent = self._backend.compress(tensor, self._variable)
        assert sent.dtype == self._dtype and sent.shape == tensor.shape
        return tf.cast(sent, tf.float64).numpy()

    def kept(self, kind: str) -> np.ndarray | None:
        (state,) = self._backend.state_dict().values()
        if state[kind] is None and self._backend._compressor.config.error_feedback:
            return np.zeros(self._variable.shape)  # nothing has ever stayed
        return None if state[kind] is None else state[kind].astype(np.float64)

    def memory(self) -> dict[str, np.ndarray]:
        (state,) = self._backend.state_dict().values()
        return state["memory"]


def make(framework: str, compressor: Compressor, name: str = "p", dtype: str = "float32"):
    """framework: "torch", "torch on cuda" or "tensorflow"."""
    if framework == "tensorflow":
        return TensorFlowParameter(compressor, name, dtype)
    return TorchParameter(compressor, name, dtype, "cuda" if framework.endswith("cuda") else "cpu")


def has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


FRAMEWORKS = [
    pytest.param(
        framework,
        marks=[
            pytest.mark.skipif(
                importlib.util.find_spec(framework.split()[0]) is None, reason="not installed"
            ),
            *marks,
        ],
    )
    for framework, marks in (
        ("torch", []),
        ("tensorflow", []),
        (
            "torch on cuda",
            [
                pytest.mark.gpu,
                pytest.mark.skipif(not has_cuda(), reason="no CUDA device"),
            ],
        ),
    )
]
