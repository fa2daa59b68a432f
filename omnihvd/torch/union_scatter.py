"""FSDP2's reduce-scatter for any device and backend, on the union of the ranks' non-zero blocks, by
PyTorch's own operators and the backend's collectives.

Each rank gets the sum of its share. The backend scatters equal shares, so each has as many blocks
as the share with the largest union; blocks that are zero on all ranks fill the others.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from omnihvd.torch.union import UnionRule, marks_of, reduce_scatter


class UnionReduceScatter(UnionRule):
    """A reduce-scatter for `FSDPModule.set_custom_reduce_scatter`. All ranks give equal arguments.

    block_size, densest, least_bytes, `elements` and `summed`: as in UnionState, with the fullest
    share for the union.
    """

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """output_tensor, of n elements: gets this rank's share of the sum of all ranks'
        input_tensor, of n elements a rank. The current stream's work is queued when this returns.
        Where it looks at the blocks, the host waits once for that stream: it must know the size.
        ValueError for async_op, which FSDP does not use.
        """
        if async_op:
            raise ValueError("async_op=True: this reduce-scatter is queued when it returns")
        shares = input_tensor.view(group.size(), -1)
        self.elements += input_tensor.numel()
        body, rest = self.split(shares)
        blocks, key = body.shape[1], (input_tensor.numel(), input_tensor.dtype)
        large = blocks > 0 and input_tensor.nbytes >= self.least_bytes
        if large and self._patience[key].looks():
            marks = marks_of(body)
            dist.all_reduce(marks, ReduceOp.MAX, group=group)
            fullest = int(marks.sum(1, dtype=torch.int64).max())
            if not self.is_dense(key, fullest, blocks):
                rows = marks.argsort(dim=1, descending=True, stable=True)[:, :fullest]
                self._sum_rows(body, rows, rest, output_tensor, group, op)
                return
        self.summed += input_tensor.numel()
        reduce_scatter(output_tensor, input_tensor, op=op, group=group)

    def _sum_rows(
        self,
        body: torch.Tensor,
        rows: torch.Tensor,
        rest: torch.Tensor,
        output: torch.Tensor,
        group: Any,
        op: Any,
    ) -> None:
        """body: shares x blocks x elements. rows: of each share, equally many. rest: the elements
        of each share behind its blocks."""
        places = rows.unsqueeze(2).expand(-1, -1, self.block_size)
        packed = torch.cat([body.gather(1, places).flatten(1), rest], dim=1)
        mine = packed.new_empty(packed.shape[1])
        if len(mine) > 0:
            reduce_scatter(mine, packed.view(-1), op=op, group=group)
        output.zero_()
        blocks, behind = self.split(output)
        width = len(mine) - len(behind)
        blocks.index_copy_(0, rows[group.rank()], mine[:width].view(-1, self.block_size))
        behind.copy_(mine[width:])
        self.summed += packed.numel()


def scatter_unions(model: torch.nn.Module, **options: Any) -> None:
    """After fully_shard(): gives each of the model's FSDP modules a UnionReduceScatter.

    options: its arguments. It uses PyTorch's operators alone, and has run on CPUs only. There FSDP2
    needs no line, and omnihvd's own reduce-scatter is faster. RuntimeError where PyTorch is too
    old, or `model` has no FSDP module.
    """
    from torch.distributed import fsdp  # takes a second

    kind, name = getattr(fsdp, "FSDPModule", None), "set_custom_reduce_scatter"
    if kind is None or not hasattr(kind, name):
        raise RuntimeError(
            f"FSDP of PyTorch {torch.__version__} takes no other reduce-scatter: use 2.8 or newer"
        )
    modules = [module for module in model.modules() if isinstance(module, kind)]
    if not modules:
        raise RuntimeError("no module of the model is sharded: use fully_shard() first")
    for module in modules:
        getattr(module, name)(UnionReduceScatter(**options))
