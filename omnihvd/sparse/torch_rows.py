"""Sparse gradients of PyTorch under `hvd.DistributedOptimizer(..., compression=OmniReduce)`."""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any

import torch
from horovod.torch import mpi_ops as hvd

from omnihvd.intercept.horovod_library import on_init
from omnihvd.log import warn_once_per_job
from omnihvd.sparse import gradients
from omnihvd.sparse.row_union import RowUnion


class Reduction:
    """The reduction of a sparse COO gradient by Horovod, in two phases, each begun on all ranks.

    gradient: any number of sparse and dense dimensions, any dtype that Horovod sums; empty on ranks
    without entries. op: hvd.Sum or hvd.Average. The constructor begins to gather the entries'
    positions. begin_sum() waits for them and begins the sum of the values, with zeros at positions
    that this rank does not have. Where ranks share few positions, it gathers the values instead.
    result() waits for either.
    """

    def __init__(self, gradient: torch.Tensor, name: str, op: Any, process_set: Any) -> None:
        self._union = RowUnion(gradient)
        self._name, self._op, self._set = name, op, process_set
        rows = self._union.rows
        self._rows = hvd.allgather_async(rows, name=f"{name}.rows", process_set=process_set)

    def begin_sum(self) -> None:
        self._union.unite(hvd.synchronize(self._rows))
        self._gathers = self._union.few_shared(self._set.size())
        options = {"name": f"{self._name}.values", "process_set": self._set}
        if self._gathers:
            values = self._union.values
            gradients.count_gathered(values.numel() * values.element_size())
            self._values = hvd.allgather_async(values, **options)
        else:
            self._values = hvd.allreduce_async_(self._union.matrix(), op=self._op, **options)

    def result(self) -> torch.Tensor:
        """The union of all ranks' entries, coalesced."""
        total = hvd.synchronize(self._values)
        if self._gathers:
            total = self._union.merge(total)
            if self._op == hvd.Average:
                total /= self._set.size()
        return self._union.result(total)


class Reductions:
    """The reductions of one optimizer's step, by parameter name."""

    def __init__(self) -> None:
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """Forgets unfinished reductions and the other ranks: in an elastic job some may be new."""
        self._gathering: dict[str, Reduction] = {}
        self._summing: dict[str, Reduction] = {}
        self._kinds: torch.Tensor | None = None  # of the parameters' gradients, by name

    def begin(self, gradient: torch.Tensor, name: str, op: Any, process_set: Any) -> None:
        self._gathering[name] = Reduction(gradient, name, op, process_set)

    def result(self, name: str) -> torch.Tensor:
        """The reduced gradient. Call it once the gradients of all parameters have begun, in any
        order."""
        # Ranks may call in different orders. If each began and awaited one sum at a time, they
        # would deadlock; so the first call begins all sums.
        for other in sorted(self._gathering):
            self._summing[other] = self._gathering.pop(other)
            self._summing[other].begin_sum()
        return self._summing.pop(name).result()

    def give_missing_rows(self, parameters: dict[str, torch.Tensor], process_set: Any) -> None:
        """Collective. Gives a parameter without a gradient here an empty sparse one, if its
        gradient is sparse on other ranks. Horovod would send dense zeros, and they would match no
        sum of the other ranks.

        A parameter alone does not tell the kind of its gradient. So ranks exchange the kinds in the
        first steps, until every parameter has had a gradient on some rank; all ranks see that
        alike. They do so by a sum, since Horovod makes no allgather while a rank has joined
        (hvd.join()); that rank adds zeros.
        """
        names = sorted(parameters)
        if self._kinds is None or bool((self._kinds == _UNKNOWN).any()):
            mine = torch.tensor([_kind(parameters[name]) for name in names])
            name = f"omnihvd.kinds.{names[0]}"
            self._kinds = hvd.allreduce(mine, name=name, op=hvd.Sum, process_set=process_set)
        for name, kind in zip(names, self._kinds.tolist()):
            if kind >= _SPARSE and parameters[name].grad is None:
                parameters[name].grad = _no_rows(parameters[name])


_all: weakref.WeakSet[Reductions] = weakref.WeakSet()
_UNKNOWN, _DENSE, _SPARSE = 0, 1, 2**32  # their sum tells whether any rank is sparse


def _forget_all(_: Any) -> None:
    for reductions in list(_all):
        reductions.forget()


def _kind(p: torch.Tensor) -> int:
    if p.grad is None:
        return _UNKNOWN
    return _SPARSE if p.grad.is_sparse else _DENSE


def _no_rows(p: torch.Tensor) -> torch.Tensor:
    rows = torch.empty(1, 0, dtype=torch.int64, device=p.device)
    values = p.new_empty(0, *p.shape[1:])
    return torch.sparse_coo_tensor(rows, values, p.shape, check_invariants=False).detach()


def install(optimizer: ModuleType) -> None:
    """Wraps two methods of horovod.torch.optimizer's class, for optimizers yet to be made."""
    on_init(_forget_all)
    join = hvd.mpi_lib.horovod_torch_join

    def forget_and_join(*args: Any) -> Any:
        _forget_all(None)  # a rank that has joined does not learn what the others do
        return join(*args)

    hvd.mpi_lib.horovod_torch_join = forget_and_join
    cls = optimizer._DistributedOptimizer
    synchronize, reduce_sparse = cls.synchronize, cls._sparse_allreduce_grad_async

    def reductions_of(self: Any) -> Reductions | None:
        """The optimizer's reductions; None: its sparse gradients are left to Horovod."""
        if self.sparse_as_dense or not gradients.takes(self._compression):
            return None
        if self.op not in (hvd.Sum, hvd.Average):
            warn_once_per_job(
                f"sparse gradients with op {self.op} are left to Horovod's allgather: omnihvd sums "
                "those of hvd.Average and hvd.Sum"
            )
            return None
        found: Reductions = self.__dict__.setdefault("_omnihvd_reductions", Reductions())
        return found

    @functools.wraps(synchronize)
    def synchronize_all(self: Any) -> None:
        takes_part = self._requires_update and self.process_set.included()
        reductions = reductions_of(self) if takes_part and self._groups is None else None
        if reductions is not None:
            named = {self._parameter_names[p]: p for p in self._requires_update}
            reductions.give_missing_rows(named, self.process_set)
        synchronize(self)

    @functools.wraps(reduce_sparse)
    def sparse_allreduce_grad_async(self: Any, p: torch.Tensor, name: str) -> Any:
        reductions = reductions_of(self)
        if reductions is None or p.grad is None:
            return reduce_sparse(self, p, name)
        reductions.begin(p.grad, name, self.op, self.process_set)
        return functools.partial(reductions.result, name), None

    cls.synchronize = synchronize_all
    cls._sparse_allreduce_grad_async = sparse_allreduce_grad_async
