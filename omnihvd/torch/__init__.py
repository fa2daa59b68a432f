"""Allreduces of the non-zero blocks only, under torch.distributed, on the CPU.

    import omnihvd.torch
    torch.distributed.init_process_group("omnihvd")  # or "cpu:omnihvd,cuda:nccl"

or, for DDP alone, on any process group:

    ddp.register_comm_hook(None, omnihvd.torch.allreduce_hook)

All settings: `omnihvd check --settings`. On GPUs: `import omnihvd` before
`init_process_group("nccl")`, or `union_hook`.
"""

from __future__ import annotations

from omnihvd.intercept import torch_gloo
from omnihvd.torch.codec import CodecState, codec_hook
from omnihvd.torch.compress import CompressionState, compress_wrapper, compressed_allreduce_hook
from omnihvd.torch.hook import HookState, allreduce_hook
from omnihvd.torch.process_group import register
from omnihvd.torch.stats_writer import StatsWriter
from omnihvd.torch.union import UnionState, union_hook

__all__ = [
    "CodecState",
    "CompressionState",
    "HookState",
    "StatsWriter",
    "UnionState",
    "allreduce_hook",
    "codec_hook",
    "compress_wrapper",
    "compressed_allreduce_hook",
    "union_hook",
]

register()
torch_gloo.install()
