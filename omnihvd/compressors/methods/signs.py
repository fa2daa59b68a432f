"""Signs: Karimireddy et al., "Error feedback fixes SignSGD" (ICML 2019), and Signum of Bernstein et
al., "signSGD: compressed optimisation for non-convex problems" (ICML 2018), by majority vote."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from omnihvd.compressors.rules import Call, ElementRule

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class EfSign(ElementRule):
    """Each element's sign, times the mean of the absolute values."""

    factory = "ef_sign"

    def sent(self, total: Any, call: Call) -> Any:
        ops = call.ops
        return ops.times(ops.sign(total), ops.mean(ops.abs(total)))


@dataclass(frozen=True)
class Signum(ElementRule):
    """The sign of each element's momentum: m = beta m + (1 - beta) g. The result is the sign of the
    sum, so -1, 0 or 1, whatever the gradient's size: the learning rate is the step."""

    factory = "signum"
    error_feedback = None
    beta: float

    def memory(self, name: str, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        import numpy as np

        return {"momentum": np.zeros(int(np.prod(shape)), np.float32)}

    def sent(self, total: Any, call: Call) -> Any:
        ops = call.ops
        momentum = ops.like(call.memory["momentum"], total)
        momentum = ops.times(momentum, self.beta) + ops.times(total, 1 - self.beta)
        call.memory["momentum"] = ops.finite(momentum)
        return ops.sign(momentum)

    def received(self, ops: ModuleType, gradient: Any, ranks: int) -> Any:
        return ops.sign(gradient)
