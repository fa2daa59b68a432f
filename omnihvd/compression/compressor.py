"""The object given to Horovod's `compression=` argument."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from omnihvd import engine
from omnihvd.compression import checks
from omnihvd.compression.certificate import Gauge
from omnihvd.compression.delay import DelayControl, Monitor, start_of
from omnihvd.compression.methods.coded_set import CodedSet
from omnihvd.compression.methods.eight_bit import EightBit
from omnihvd.compression.methods.powers import Natural, NaturalDithering
from omnihvd.compression.methods.signs import EfSign, OneBitSgd
from omnihvd.compression.rules import BlockRule, CodedRule, Rule, WarmUp
from omnihvd.intercept import in_use
from omnihvd.intercept.after_import import part

CODECS: dict[str, CodedRule] = {
    "natural": Natural(),
    "natural_dithering": NaturalDithering(4),
    "eight_bit": EightBit(),
    "ef_sign": EfSign(),
    "one_bit_sgd": OneBitSgd(),
}


@dataclass(frozen=True)
class Config:
    rule: Rule
    block_size: int  # elements
    error_feedback: bool = True
    momentum: float = 0.0
    warm_up: WarmUp | None = None
    delay: DelayControl | None = None
    codec: CodedRule | None = None  # of the values that are sent
    clip: float | None = None  # an L2 norm
    clip_together: bool = False  # of all parameters' gradients, not of each
    certificate: bool = False
    floor: float | None = None  # a cosine

    @classmethod
    def of(cls, rule: Rule, block_size: int) -> Config:
        """With the rule's own defaults."""
        return cls(rule, block_size, bool(rule.error_feedback), rule.momentum)

    @property
    def summed(self) -> Rule:
        """The rule that makes the sums, where `sums` says that one does."""
        return self.codec or self.rule

    @property
    def sums(self) -> str:
        """As Rule.sums."""
        return self.summed.sums

    def clipping(self, norm: Any, ranks: int) -> Any:
        """The factor that clips a gradient of this norm. norm: a tensor."""
        share = (self.clip or 0.0) / ranks**0.5
        return (share / (norm + 1e-30)).clip(max=1.0)


class Compressor:
    """Sends a part of each gradient and keeps the residual for the next step.

    Pass it to `hvd.DistributedOptimizer` (PyTorch, TensorFlow, Keras) or to TensorFlow's
    `hvd.DistributedGradientTape`. Horovod gives a compressor the bare gradient; in these places it
    learns which parameter the gradient belongs to. The reduction must be `hvd.Average` or
    `hvd.Sum`. Sparse gradients (without `sparse_as_dense`) and integers are sent whole.

    The `with_...` methods return a new compressor and leave this one as it is.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.epoch: float | None = None
        self._backends: dict[str, Any] = {}
        self._monitor: Monitor | None = None
        self.gauge = Gauge(config.floor, config.rule)
        self.together = config.rule.together()
        for framework in ("torch", "tensorflow"):  # to load a state into
            if f"horovod.{framework}" in sys.modules:
                self._backend(framework)

    def __getstate__(self) -> dict[str, Any]:
        """Pickles without the state kept for Horovod's optimizers."""
        return {**self.__dict__, "_backends": {}, "_monitor": None}

    def __repr__(self) -> str:
        """The call that makes it, with the arguments that differ from the defaults."""
        config, plain = self.config, Config.of(self.config.rule, self.config.block_size)
        given = config.rule.arguments()
        if isinstance(config.rule, BlockRule):
            given.append(("block_size", str(config.block_size)))
        text = f"{config.rule.factory}({_arguments(given)})"
        if config.error_feedback != plain.error_feedback:
            text += f".with_error_feedback({config.error_feedback})"
        if config.momentum != plain.momentum:
            text += f".with_momentum_correction({config.momentum})"
        for name, control in (("warmup", config.warm_up), ("delay_control", config.delay)):
            if control:
                given = [(field, repr(value)) for field, value in vars(control).items()]
                text += f".with_{name}({_arguments(given)})"
        if config.codec is not None:
            text += f".with_codec({config.codec.factory!r})"
        if config.clip is not None:
            text += f".with_clipping({config.clip}{', together=True' * config.clip_together})"
        if config.certificate:
            text += f".with_floor({config.floor})" if config.floor else ".with_certificate()"
        return text

    def with_error_feedback(self, enabled: bool = True) -> Compressor:
        """Turns error feedback on (the default) or off.

        With it, the unsent part is kept for the next step; without it, it is dropped. Without it,
        `block_random` and `randomk` scale their elements to have the gradient as expectation; the
        other rules are then biased.
        """
        if enabled and self.config.rule.error_feedback is None:
            raise ValueError(
                f"{self.config.rule.factory} keeps no residual, so it sends nothing later"
            )
        return self._with(error_feedback=enabled)

    def with_momentum_correction(self, momentum: float) -> Compressor:
        """Applies momentum before selection (Lin et al., "Deep Gradient Compression", ICLR 2018).

        velocity = momentum * velocity + gradient is accumulated and sent in place of the gradient,
        and cleared where a part was sent. The optimizer's own must be 0. 0 <= momentum < 1.
        """
        if self.config.rule.sums:
            raise ValueError(f"{self.config.rule.factory} has no momentum that is corrected")
        if not 0 <= checks.number("momentum", momentum) < 1:
            raise ValueError(f"momentum is {momentum}: it must be at least 0 and less than 1")
        return self._with(momentum=float(momentum))

    def with_codec(self, codec: str) -> Compressor:
        """Sends the chosen values in fewer bits, and their positions as a set.

        codec: "natural" (powers of two, 8 bits), "natural_dithering" (4 bits), "eight_bit", or in
        one bit "ef_sign" and "one_bit_sgd" (all that adaptive() sends). Sums are encoded, too
        (part_sums.py). Error feedback keeps the encoding error on both sides. Under Horovod only.
        """
        if codec not in CODECS:
            raise ValueError(f"codec is {codec!r}: it must be one of {tuple(CODECS)}")
        if self.config.rule.sums or self.config.rule.replaces:
            raise ValueError(f"{self.config.rule.factory} sends no values that could be coded")
        return self._with(codec=CodedSet(CODECS[codec]))

    def with_clipping(self, norm: float, together: bool = False) -> Compressor:
        """Clips gradients to an L2 norm of `norm` / sqrt(ranks), before anything is kept or sent.

        The sum over all ranks then has a norm of about `norm` (Lin et al., "Deep Gradient
        Compression", ICLR 2018, 3.2). Remove other clipping from the training.

        together: clip by the norm of all parameters' gradients, as in the paper; sums then wait for
        the last gradient. Otherwise each gradient is clipped by its own norm, as in the authors'
        code. Supported in Horovod's optimizers and tape with groups=None.
        """
        if not 0 < checks.number("norm", norm) < float("inf"):
            raise ValueError(f"norm is {norm}: it must be above 0, and finite")
        if self.config.rule.sums or self.config.rule.replaces:
            raise ValueError(f"{self.config.rule.factory} keeps and sends gradients unclipped")
        return self._with(clip=float(norm), clip_together=together)

    def with_warmup(
        self, epochs: float = 5, start: float = 0.25, steps_per_epoch: int | None = None
    ) -> Compressor:
        """Lets the ratio fall exponentially from `start` to its final value over `epochs`.

        The epoch is the last argument of `set_epoch()` or, if it was never called, the number of
        optimizer steps over `steps_per_epoch`. Only for rules with a ratio.
        """
        ratio = getattr(self.config.rule, "ratio", None)
        if ratio is None:
            raise ValueError(
                f"warm-up lowers a ratio, which {self.config.rule.factory} does not have"
            )
        epochs, start = checks.number("epochs", epochs), checks.number("start", start)
        if not epochs > 0 or not ratio <= start <= 1:
            raise ValueError(
                f"warm-up over {epochs} epochs from {start}: epochs must be positive, and start "
                f"between the final ratio ({ratio}) and 1"
            )
        if steps_per_epoch is not None:
            steps_per_epoch = checks.count("steps_per_epoch", steps_per_epoch, 1)
        return self._with(warm_up=WarmUp(epochs, start, steps_per_epoch))

    def with_delay_control(self, budget_ms: float, min_ratio: float = 0.001) -> Compressor:
        """Adapts the ratio to the network: a step's sums should take `budget_ms` on this rank.

        The ratio starts at the rule's own, stays at or above `min_ratio`, and rises to 1 on an idle
        network; delay.py states the control law. A threshold rule has no ratio: its threshold is
        multiplied by 1/ratio - 1, and the ratio starts at 0.5. Not for rules that must send equal
        amounts on all ranks.
        """
        rule = self.config.rule
        if not rule.adjustable:
            raise ValueError(f"{rule.factory} cannot send more or less from step to step")
        if not 0 < checks.number("budget_ms", budget_ms) < float("inf"):
            raise ValueError(f"budget_ms is {budget_ms}: it must be above 0, and finite")
        checks.ratio(min_ratio, "min_ratio")
        return self._with(delay=DelayControl(float(budget_ms), float(min_ratio)))

    def with_certificate(self) -> Compressor:
        """Estimates how near the optimizer's gradient is to the true one, from one block in 256,
        which each step sums whole as well: `cosine` and `relative_error` in
        omnihvd.stats()["compression"]. In Horovod's optimizers and tape; not in elastic jobs."""
        return self._with(certificate=True)

    def with_floor(self, cosine: float = 0.9) -> Compressor:
        """with_certificate(), and sends more while the cosine is below `cosine`.

        Ratios double and thresholds halve until all is sent; a negative cosine sends all at once.
        Far above the floor they return. For rules with a ratio or a threshold."""
        rule = self.config.rule
        if not hasattr(rule, "ratio") and not hasattr(rule, "threshold"):
            raise ValueError(f"{rule.factory} has no more to send: use with_certificate()")
        return self._with(certificate=True, floor=checks.ratio(cosine, "cosine"))

    def set_epoch(self, epoch: float) -> None:
        """Sets the warm-up's epoch, from 0; call it where you call DistributedSampler.set_epoch."""
        self.epoch = checks.number("epoch", epoch)

    def ratio(self, step: int) -> float:
        """The ratio at the `step`-th compression of a parameter; 1 for rules without a ratio."""
        more = 2.0**self.gauge.level
        if self.config.floor is not None and hasattr(self.config.rule, "threshold"):
            return more / (1 + more) if self.gauge.level < self.gauge.last else 1.0
        return min(1.0, self._planned(step) * more)

    def _planned(self, step: int) -> float:
        if self.config.delay is not None:
            if self._monitor is None:
                self._monitor = Monitor(self.config.delay, start_of(self.config.rule))
            return self._monitor.ratio(step)
        warm_up = self.config.warm_up
        ratio: float = getattr(self.config.rule, "ratio", 1.0)
        if warm_up is None:
            return ratio
        if self.epoch is not None:
            return warm_up.ratio(ratio, self.epoch)
        if warm_up.steps_per_epoch is None:
            raise RuntimeError(
                "with_warmup() cannot know the epoch: give it steps_per_epoch, or call "
                "set_epoch(epoch) on the compressor at the start of every epoch"
            )
        return warm_up.ratio(ratio, step / warm_up.steps_per_epoch)

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """Horovod's interface. Returns the part to send (dense, same shape and dtype as the
        gradient) and the number of ranks."""
        in_use.warn_if_unused()
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(tensor, torch.Tensor):
            return self._backend("torch").compress(tensor)
        raise no_owner()

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """Horovod's interface. Returns the gradient for the optimizer from the reduced one."""
        return tensor if ctx is None else self._backend("torch").received(tensor, ctx)

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals, by parameter name.

        They differ from rank to rank: save them on every rank, or call `average_rest()` on all
        ranks first. PyTorch: the optimizer's state_dict has them already. TensorFlow: NumPy arrays.
        """
        states: dict[str, Any] = {}
        for backend in self._backends.values():
            states.update(backend.state_dict())
        return states

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Replaces all residuals by those of `state_dict()`; wrap the optimizer first."""
        for backend in self._backends.values():
            backend.load_state_dict(states)

    def average_rest(self) -> None:
        """Replaces every rank's residuals by their mean. Collective: call it on all ranks.

        The sum over the ranks stays the same, so training continues unchanged. One rank's
        checkpoint then serves any number of ranks: call this before rank 0 saves. PyTorch only.
        """
        for backend in self._backends.values():
            backend.average_rest()

    def change(self, **changes: Any) -> None:
        """Changes its Config, before the first use."""
        self.config = self._with(**changes).config

    def _with(self, **changes: Any) -> Compressor:
        config = dataclasses.replace(self.config, **changes)
        if config.momentum and not config.error_feedback:
            raise ValueError("momentum correction accumulates the unsent: it needs error feedback")
        if config.clip_together and config.codec:
            raise ValueError("with_codec() clips each parameter's gradient by itself")
        if config.delay and (config.warm_up or config.floor):
            other = "warm-up" if config.warm_up else "a floor"
            raise ValueError(f"{other} and delay control would both set the ratio")
        return Compressor(config)

    def _backend(self, framework: str) -> Any:
        if framework not in self._backends:
            module: Any = part(f"omnihvd.compression.{framework}_horovod")
            self._backends[framework] = module.Backend(self)
        return self._backends[framework]


def _arguments(given: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given)


def default_block_size() -> int:
    """The engine's block size, in elements."""
    return int(engine.session.settings_from_environment().block_size)


def no_owner() -> RuntimeError:
    return RuntimeError(
        "a compressor does not know which parameter this gradient belongs to. Use it in "
        "hvd.DistributedOptimizer (or TensorFlow's DistributedGradientTape) with op=hvd.Average or "
        "hvd.Sum"
    )
