"""Allreduces of the non-zero blocks only, under torch.distributed, on the CPU.

    import omnihvd.torch
    torch.distributed.init_process_group("omnihvd")  # or "cpu:omnihvd,cuda:nccl"

or, for DDP alone, on any process group:

    ddp.register_comm_hook(None, omnihvd.torch.allreduce_hook)

All settings: `omnihvd check --settings`. On GPUs: `import omnihvd` before
`init_process_group("nccl")`, `union_hook`; `scatter_unions` for FSDP2, `sum_unions` for Horovod.
"""

from __future__ import annotations

from omnihvd.intercept import torch_gloo
from omnihvd.torch.codec import CodecState, codec_hook
from omnihvd.torch.compress import CompressionState, compress_wrapper, compressed_allreduce_hook
from omnihvd.torch.hook import HookState, allreduce_hook
from omnihvd.torch.process_group import register
from omnihvd.torch.stats_writer import StatsWriter
from omnihvd.torch.union import UnionState, union_hook
from omnihvd.torch.union_horovod import sum_unions
from omnihvd.torch.union_scatter import UnionReduceScatter, scatter_unions

__all__ = [
    "CodecState",
    "CompressionState",
    "HookState",
    "StatsWriter",
    "UnionReduceScatter",
    "UnionState",
    "allreduce_hook",
    "codec_hook",
    "compress_wrapper",
    "compressed_allreduce_hook",
    "scatter_unions",
    "sum_unions",
    "union_hook",
]

register()
torch_gloo.install()
