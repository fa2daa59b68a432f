"""Makes a Keras 3 optimizer reduce gradients over all ranks before it applies them.

Horovod's optimizer overrides methods of Keras 2 that Keras 3 does not call.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from omnihvd.sparse.tensorflow_rows import of_tensorflow

INNER = """\
{outer} is around an optimizer of omnihvd.keras.DistributedOptimizer, so ranks may decide by their \
own gradients whether they reduce (LossScaleOptimizer does): they would sum gradients of different \
steps, or wait for ever. Wrap the outer one: DistributedOptimizer({outer}({inner}(...)))"""
UNSCALED = """\
under the policy mixed_float16 DistributedOptimizer divides gradients by a loss scale, as \
model.compile() has it, but this loop did not scale the loss. Call \
loss = optimizer.scale_loss(loss) before the gradients, or make the optimizer before the policy is \
set"""

XLA = """\
XLA cannot compile Horovod's sums (with GPUs Keras 3 has it compile by default): \
model.compile(..., jit_compile=False)"""


def distribute(
    optimizer: Any,
    *,
    compression: Any,
    op: Any,
    process_set: Any = hvd.global_process_set,
    sparse_as_dense: bool = False,
) -> Any:
    """Makes the optimizer's `apply` reduce, and returns the same object.

    Its class stays, so a saved model names the original class, even one registered with Keras. A
    second call replaces the settings of the first.
    """
    waits_for_scale = _needs_loss_scale(optimizer)
    if waits_for_scale:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    cls = type(optimizer)
    reduce = hvd._make_allreduce_grads_fn(
        name=f"Distributed{cls.__name__}",
        device_dense="",
        device_sparse="",
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=1.0,
        groups=None,
        process_set=process_set,
    )
    is_outermost = False
    is_elastic = os.environ.get("HOROVOD_ELASTIC") == "1"  # graphs outlive the number of ranks

    def apply(grads: Any, trainable_variables: Any = None) -> None:
        nonlocal is_outermost
        if not is_outermost:
            _refuse_to_be_inner(optimizer)
            is_outermost = True
        _refuse_xla()
        if waits_for_scale:
            raise RuntimeError(UNSCALED)
        if is_elastic or process_set.size() > 1:
            variables = trainable_variables or optimizer._trainable_variables
            grads = reduce(list(grads), [of_tensorflow(variable) for variable in variables])
        cls.apply(optimizer, grads, trainable_variables)

    def scale_loss(loss: Any) -> Any:
        nonlocal waits_for_scale
        waits_for_scale = False
        return cls.scale_loss(optimizer, loss)

    optimizer.apply = apply
    optimizer.scale_loss = scale_loss
    return optimizer


def _needs_loss_scale(optimizer: Any) -> bool:
    """Whether model.compile() would put a LossScaleOptimizer around it.

    A LossScaleOptimizer skips the step, reductions included, on a rank with overflowed gradients.
    It must see the sums, which are the same on all ranks.
    """
    is_scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return keras.config.dtype_policy().name == "mixed_float16" and not is_scaled


def _refuse_to_be_inner(optimizer: Any) -> None:
    """Raises if another optimizer calls this one. Keras does not tell it; the stack does."""
    frame: FrameType | None = sys._getframe(2)
    while frame:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.optimizers.Optimizer) and caller is not optimizer:
            names = {"outer": type(caller).__name__, "inner": type(optimizer).__name__}
            raise RuntimeError(INNER.format(**names))
        frame = frame.f_back


def _refuse_xla() -> None:
    """Raises under XLA: TensorFlow's own error names neither the cause nor the remedy."""
    has_operators = os.environ.get("HOROVOD_ENABLE_XLA_OPS") == "1"
    if not has_operators and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise RuntimeError(XLA)
