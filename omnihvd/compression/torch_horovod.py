"""Compression in Horovod's PyTorch optimizer: finds a gradient's parameter, and keeps its state.

Horovod calls `compress(gradient)`, in whatever order gradients become ready, without a name; the
gradient tensor is a new one after each `zero_grad(set_to_none=True)`. But it does so from two
methods of its optimizer, which get the parameters:

    _allreduce_grad_async(parameter)          compresses one gradient
    _grouped_allreduce_grad_async(parameters) compresses one gradient each, in order

So install() wraps the constructor of Horovod's optimizer class, once per process. For an optimizer
with a compressor of ours, the constructor wraps these two methods. They announce the parameters to
`compress` in a context variable, since hooks run on autograd's threads. The constructor also adds
the residuals to the optimizer's state_dict. It leaves other optimizers alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType
from typing import Any, Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from omnihvd.compression import (
    agreement,
    budget,
    checks,
    counters,
    delay,
    order,
    torch_certificate,
    torch_hosts,
    torch_later,
    torch_ops,
)
from omnihvd.compression.codec import Codec
from omnihvd.compression.compressor import Compressor, Config, no_owner
from omnihvd.compression.part_sums import SUM_OF, SUM_REST, lost_of_part, part_of
from omnihvd.compression.split import ParameterState, split_by
from omnihvd.compression.two_steps import Ranks
from omnihvd.intercept import in_use

_KEY = "omnihvd_compression"  # in the optimizer's state_dict
Owner = tuple[ParameterState, int]  # and the number of ranks
_owners: ContextVar[Iterator[Owner] | None] = ContextVar("owners", default=None)

States = dict[Tensor, ParameterState]  # by parameter


class Backend:
    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor
        self._optimizers: WeakKeyDictionary[Any, States] = WeakKeyDictionary()
        self._hosts_first = order.hosts_sum_first()

    @property
    def config(self) -> Config:
        return self._compressor.config

    @property
    def _waits(self) -> bool:
        """Whether sums begin when all gradients are there."""
        return self._hosts_first or self._compressor.config.clip_together

    def attach(self, optimizer: Any) -> None:
        """Makes `optimizer`, new and Horovod's, announce its parameters and save their state."""
        from horovod.torch.mpi_ops import Average, Sum

        if optimizer.op not in (Average, Sum):
            raise ValueError("a compressor needs op=hvd.Average or op=hvd.Sum")
        config = self._compressor.config
        config.summed.check_use(optimizer.op == Average, optimizer._groups is not None)
        states = {p: ParameterState(name) for p, name in optimizer._parameter_names.items()}
        self._optimizers[optimizer] = states
        agree = functools.cache(
            functools.partial(self._agree, next(iter(states.values())).name, optimizer.process_set)
        )

        def several(parameters: Iterable[Tensor]) -> list[Owner]:
            agree()
            if certificate:
                certificate.take(parameters)
            return [(states[parameter], optimizer.process_set.size()) for parameter in parameters]

        certified = torch_certificate.Certificate
        certificate = config.certificate and certified(self._compressor, optimizer)
        optimizer.synchronize = _timed(optimizer.synchronize, self._compressor, certificate)
        if config.sums:
            order.refuse_hosts_first(config.rule.factory, "its codes or factors are of all ranks")
            made = import_module(f"omnihvd.compression.torch_{config.sums}").Sums(
                self._compressor, optimizer
            )
            _sum_by(made, optimizer, states)
        elif self._waits:
            _sum_by(torch_later.Sums(self, optimizer, self._hosts_first), optimizer, states)
        for name, owners_of in (
            ("_allreduce_grad_async", lambda parameter: several([parameter])),
            ("_grouped_allreduce_grad_async", several),
        ):
            setattr(optimizer, name, _announcing(getattr(optimizer, name), owners_of))

        def save(_: Any, state_dict: dict[str, Any]) -> None:
            state_dict[_KEY] = _to_dict(states)

        def load(_: Any, state_dict: dict[str, Any]) -> None:
            _from_dict(states, state_dict.pop(_KEY, {}))

        optimizer.register_state_dict_post_hook(save)
        optimizer.register_load_state_dict_pre_hook(load)

    def _agree(self, name: str, process_set: Any) -> None:
        from horovod.torch.mpi_ops import allgather

        if agreement.wanted(process_set.size()):
            mine = torch.frombuffer(
                bytearray(agreement.encode(self._compressor)), dtype=torch.uint8
            )
            # Horovod reports this name if a rank does not come.
            name = f"compression of the optimizer of {name}, the same on all ranks"
            everyone = allgather(mine.unsqueeze(0), name=name, process_set=process_set)
            agreement.check(theirs.numpy().tobytes() for theirs in everyone)

    def compress(self, gradient: Tensor) -> tuple[Tensor, int | None]:
        """Returns the part to send, and the number of ranks if received() needs the sum."""
        owner = next(_owners.get() or iter(()), None)
        if owner is None:
            raise no_owner()
        state, ranks = owner
        whole = not gradient.is_floating_point() or gradient.numel() == 0
        if whole or self._compressor.config.sums or self._waits:
            return gradient, None
        return self.sent(gradient, state, ranks), ranks

    def sent(self, gradient: Tensor, state: ParameterState, ranks: int) -> Tensor:
        """Returns the part to send; the residual stays in the state."""
        rule = self._compressor.config.rule
        if not rule.replaces:
            return split_by(torch_ops, self._compressor, gradient, state, ranks)
        with counters.timed(gradient.numel()):
            sent, state.memory = rule.replacement(gradient, state.name, state.memory)
            sent = sent.contiguous()
            counters.add_kept(gradient.device, sent.count_nonzero())
        state.step += 1
        return sent

    def received(self, gradient: Tensor, ranks: int) -> Tensor:
        return self._compressor.config.rule.received(gradient, ranks)

    def state_dict(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for states in self._optimizers.values():
            ours = _to_dict(states)
            if not merged.keys().isdisjoint(ours):
                raise ValueError(
                    "two optimizers with this compressor have parameters of the same name: use "
                    "the optimizers' own state_dict(), which holds the compressor's state too"
                )
            merged.update(ours)
        return merged

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        unknown = set(saved)
        for states in self._optimizers.values():
            names = {state.name for state in states.values()}
            _from_dict(states, {name: saved[name] for name in names & set(saved)})
            unknown -= names
        if unknown:
            raise ValueError(f"no optimizer with this compressor has parameters {sorted(unknown)}")

    def average_rest(self) -> None:
        from horovod.torch.mpi_ops import Average, allreduce_async_, synchronize

        if getattr(self.config.rule, "memory_object", None) is not None:
            raise ValueError("grace's memory is not averaged: save state_dict() on every rank")
        handles = []
        for optimizer, states in self._optimizers.items():
            among = optimizer.process_set
            if not among.included():
                continue
            ranks = Ranks(among.rank(), among.size(), optimizer.op == Average)
            for parameter, state in sorted(states.items(), key=lambda item: item[1].name):
                self._make_alike(parameter, state, ranks)
                for kind in ("rest", "velocity"):
                    tensor = getattr(state, kind)
                    if tensor is not None:
                        name = f"omnihvd.{kind}.{state.name}"
                        handles.append(
                            allreduce_async_(tensor, name=name, op=Average, process_set=among)
                        )
        for handle in handles:
            synchronize(handle)

    def _make_alike(self, parameter: Tensor, state: ParameterState, ranks: Ranks) -> None:
        """Before an average: all ranks then have the same kinds of state."""
        config = self._compressor.config
        if config.delay and config.error_feedback:  # ratios differ: another rank may keep something
            state.begin(torch_ops, parameter, config.momentum)
        lost = lost_of_part(torch_ops, state.memory, ranks)
        for kind in (SUM_REST, SUM_OF):
            state.memory.pop(kind, None)
        if lost is not None:
            part = part_of(parameter.numel(), ranks.rank, ranks.size)
            state.rest.view(-1)[part] += lost * (ranks.size if ranks.averages else 1)


def _announcing(method: Callable, owners_of: Callable[[Any], Iterable[Owner]]) -> Callable:
    @functools.wraps(method)
    def call(parameters: Any) -> Any:
        token = _owners.set(iter(owners_of(parameters)))
        try:
            return method(parameters)
        finally:
            _owners.reset(token)

    return call


def _timed(wait: Callable, compressor: Compressor, certificate: Any) -> Callable:
    @functools.wraps(wait)
    def call() -> Any:
        if compressor.config.warm_up:  # it must know the epoch, and one rank compresses nothing
            compressor.ratio(0)
        with delay.exposed():
            wait()
        if certificate:
            certificate.end_step()

    return call


def _sum_by(sums: Any, optimizer: Any, states: States) -> None:
    whole = optimizer._allreduce_grad_async

    def allreduce(parameter: Any) -> Any:
        in_use.warn_if_unused()
        if parameter.grad is None:  # perhaps not on other ranks
            parameter.grad = torch.zeros_like(parameter)
        gradient = parameter.grad
        if gradient.is_sparse and not optimizer.sparse_as_dense:
            return whole(parameter)
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        wait = sums.start(gradient, states[parameter])
        return whole(parameter) if wait is None else (wait, None)

    optimizer._allreduce_grad_async = allreduce


def _to_dict(states: States) -> dict[str, Any]:
    return {state.name: state.save() for state in states.values() if state.step}


def _from_dict(states: States, saved: dict[str, Any]) -> None:
    for parameter, state in states.items():
        copied = functools.partial(torch.Tensor.to, device=parameter.device, copy=True)
        state.load(saved.get(state.name, {}), tuple(parameter.shape), copied)


def install(module: ModuleType) -> None:
    """Makes new optimizers of horovod.torch.optimizer call attach()."""
    if order.hosts_sum_first():
        torch_hosts.allow_process_sets()
    optimizer_class = module._DistributedOptimizer
    construct = optimizer_class.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        checks.called(self._compression)
        none, ops = module.Compression.none, (module.Average, module.Sum)
        self._compression = budget.controlled(self._compression, none, self.op, ops)
        if isinstance(self._compression, Codec):
            self._compression = self._compression.for_optimizer(self)
        if isinstance(self._compression, Compressor):
            self._compression._backend("torch").attach(self)

    optimizer_class.__init__ = __init__


def states_of(optimizer: Any) -> Iterable[ParameterState]:
    compressor = getattr(optimizer, "_compression", None)
    if not isinstance(compressor, Compressor):
        return ()
    states: States = compressor._backend("torch")._optimizers[optimizer]
    return states.values()
