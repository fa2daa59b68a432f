"""omnihvd.kernels.Coder on tensors of the host: the same kernels, emulated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
sys.path.append(str(KERNELS))
from kernel_emulation import Kernels  # noqa: E402

sys.path.append(str(KERNELS.parents[1]))
from kernels.codes import Coding, parcel_bytes  # noqa: E402


class EmulatedCoder:
    """`folder` holds the compiled emulation, or will."""

    def __init__(self, block_size: int, folder: Path) -> None:
        self.block_size, self._kernels = block_size, Kernels("float32", block_size, folder)

    def parcel_bytes(self, coding: Coding, blocks: int) -> int:
        return parcel_bytes(coding, blocks, self.block_size)

    def encode(
        self, tensor: torch.Tensor, parcels: torch.Tensor, coding: Coding, parcel_blocks: int, *,
        seed: int, who: int, first_block: int = 0, rest: Any = None, stream: Any = None,
    ) -> None:  # fmt: skip
        needed = -(-tensor.numel() // self.block_size // parcel_blocks)
        assert parcels.numel() >= needed * self.parcel_bytes(coding, parcel_blocks)
        self._kernels.run(
            "encode", tensor.data_ptr(), tensor.numel(), 0 if rest is None else rest.data_ptr(),
            *coding, seed, who, first_block, parcel_blocks, parcels.data_ptr(), 2, 0,
        )  # fmt: skip

    def decode(
        self, parcels: torch.Tensor, out: torch.Tensor, coding: Coding, parcel_blocks: int, *,
        seed: int, count: int = 1, stream: Any = None,
    ) -> None:  # fmt: skip
        needed = -(-out.numel() // self.block_size // parcel_blocks) * count
        assert parcels.numel() >= needed * self.parcel_bytes(coding, parcel_blocks)
        self._kernels.run(
            "decode", out.data_ptr(), out.numel(), *coding, seed, count, parcel_blocks,
            parcels.data_ptr(), 2, 0,
        )  # fmt: skip
