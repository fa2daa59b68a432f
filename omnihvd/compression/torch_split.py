"""Splits PyTorch's gradients: split.py by PyTorch's functions."""

from __future__ import annotations

import torch
from torch import Tensor

from omnihvd.compression import split as core
from omnihvd.compression import torch_ops
from omnihvd.compression.compressor import Compressor, Config
from omnihvd.compression.split import ParameterState as ParameterState


@torch.no_grad()
def split_by(
    compressor: Compressor, gradient: Tensor, state: ParameterState, ranks: int = 1
) -> Tensor:
    sent: Tensor = core.split_by(torch_ops, compressor, gradient, state, ranks)
    return sent


@torch.no_grad()
def split(gradient: Tensor, state: ParameterState, config: Config, ratio: float) -> Tensor:
    sent: Tensor = core.split(torch_ops, gradient, state, config, ratio)
    return sent
