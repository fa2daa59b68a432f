"""The table of results/kernels.md. It needs CuPy and NVRTC, and no GPU.

The compiler reports registers and shared memory of each kernel. The share of a multiprocessor's
warps that fit at once follows from these.
"""

from __future__ import annotations

import re
from typing import Any

from omnihvd.kernels.build import compile_cubin

DTYPES = ("float32", "float16")  # not all kernels are for both
# By architecture: a multiprocessor's warps, CTAs and bytes of shared memory, and the overhead bytes
# of each CTA.
ARCHS = {
    "sm_75": (32, 16, 64 << 10, 0),
    "sm_80": (64, 32, 164 << 10, 1 << 10),
    "sm_90": (64, 32, 228 << 10, 1 << 10),
}
REGISTERS, PARTITIONS, UNIT = 64 << 10, 4, 256  # of a multiprocessor; a warp's come in units
# By source and kernel.
THREADS = {
    "kernels.cu": {
        "compact": 128, "scatter": 256, "mark": 128, "unite": 128, "gather": 128,
        "spread": 128, "rest": 128, "encode": 128, "decode": 128,
    },
    "sparsify.cu": {"accumulate": 128, "above": 128, "choose": 1024, "split": 128},
}  # fmt: skip
KERNEL = r"Compiling entry function '(\w+)'.*?Used (\d+) registers(.*?)Compile time"


def usage(source: str, dtype: str, arch: str) -> dict[str, tuple[int, int]]:
    """By kernel, for blocks of 256 elements: registers of a thread, shared bytes of a CTA."""
    log = compile_cubin(dtype, 256, arch, source)[1]
    found = {}
    for name, registers, rest in re.findall(KERNEL, log, re.DOTALL):
        shared = re.search(r"(\d+) bytes smem", rest)
        found[name] = int(registers), int(shared[1]) if shared else 0
    return found


def occupancy(arch: str, threads: int, registers: int, shared: int) -> int:
    """Percent of the warps."""
    warps, ctas, shared_bytes, of_cta = ARCHS[arch]
    of_warp = -(-registers * 32 // UNIT) * UNIT
    fit = min(warps, REGISTERS // PARTITIONS // of_warp * PARTITIONS) // (threads // 32)
    fit = min(fit, ctas, shared_bytes // (shared + of_cta) if shared + of_cta else ctas)
    return 100 * fit * threads // 32 // warps


def print_row(used: dict[tuple[str, str], Any], kernel: str, threads: int) -> None:
    registers, shares, shared = [], [], 0
    for arch in ARCHS:
        both = [used[dtype, arch][kernel] for dtype in DTYPES if kernel in used[dtype, arch]]
        shared = max(shared, *(each for _, each in both))
        registers.append(" / ".join(str(each) for each, _ in both))
        percents = sorted({occupancy(arch, threads, *each) for each in both})
        shares.append(" to ".join(map(str, percents)) + "%")
    print("|", " | ".join([kernel, str(threads), *registers, str(shared), *shares]), "|")


def main() -> None:
    from cupy.cuda import nvrtc

    print("NVRTC", ".".join(map(str, nvrtc.getVersion())))
    for source, kernels in THREADS.items():
        used = {(dtype, arch): usage(source, dtype, arch) for dtype in DTYPES for arch in ARCHS}
        for kernel, threads in kernels.items():
            print_row(used, kernel, threads)


if __name__ == "__main__":
    main()
