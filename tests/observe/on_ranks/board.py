"""TensorBoard's writer and reader without TensorFlow: its import takes seconds."""

from __future__ import annotations

import sys
import types

import tensorboard.compat

tensorboard.compat.notf = sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from torch.utils.tensorboard import SummaryWriter  # noqa: E402

__all__ = ["EventAccumulator", "SummaryWriter"]
