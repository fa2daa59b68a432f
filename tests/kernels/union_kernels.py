"""Checks mark, unite, gather, spread and rest in closed form: on a GPU, and on the emulation."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from kernel_reference import bits_of

from benchmarks.union_gpu import CHUNK_WORDS, Chain

WINDOW, PATIENCE_S = 3, 60.0  # blocks that `rest` has room for
TRAILER = 0x01020304


def check_union_kernels(cupy: Any, dtype: str, block_size: int, size: int) -> None:
    """Block b of this rank is not zero if 5 divides b; that of the other rank, if 3 does."""
    blocks = -(-size // block_size)
    index, bits = np.arange(size), bits_of(dtype)
    mine, theirs = np.arange(blocks) % 5 == 0, np.arange(blocks) % 3 == 0
    union = mine | theirs
    values = np.where(mine[index // block_size], index % 50 + 1, 0).astype(bits)
    stream = cupy.cuda.Stream(non_blocking=True)
    chain = Chain(cupy.asarray(values), dtype, block_size, stream, WINDOW)
    cupy.cuda.Device().synchronize()

    chain.mark(TRAILER)
    stream.synchronize()
    own = chain.own.get()
    assert np.array_equal(own[:blocks], mine) and not own[blocks:-4].any()
    assert own[-4:].view(np.uint32)[0] == TRAILER
    own[:blocks] |= theirs
    chain.everything[:] = cupy.asarray(own)  # NCCL's maximum of the marks
    cupy.cuda.Device().synchronize()
    for number in (6, 7):  # the second finds what the first has left behind
        chain.unite(number)
        stream.synchronize()
        assert chain.seen.tolist() == [(number, union.sum(), mine.sum(), TRAILER)]
    found = np.unpackbits(chain.united.get().view(np.uint8), bitorder="little")
    assert np.array_equal(found[:blocks], union) and not found[blocks:].any()
    in_chunk = np.bincount(np.arange(blocks) // (32 * CHUNK_WORDS), union, chain.chunks)
    assert chain.starts.get().tolist() == [0, *np.cumsum(in_chunk)]

    padded = np.zeros(blocks * block_size, bits)
    padded[:size] = values
    dense = padded.reshape(blocks, block_size)[union]
    chain.out[:] = 9
    cupy.cuda.Device().synchronize()
    room = len(dense) // 2 + 1
    for first in range(0, len(dense), room):
        chain.gather(first, room)
        stream.synchronize()
        part = dense[first : first + room].ravel()
        assert np.array_equal(chain.buffer.get()[: len(part)], part)
        chain.spread(first, room, fill=first == 0)
    chain.rest(len(dense))  # nothing is beyond the capacity
    stream.synchronize()
    assert np.array_equal(chain.out.get(), values) and chain.rest_words["asked"][0] == 0

    check_rest(cupy, chain, dense, block_size)
    chain.rest_words["alone"] = 1
    chain.rest(len(dense) - 1)
    stream.synchronize()
    assert (chain.out.get().view(np.uint8) == 0xFF).all() and chain.rest_words["lost"][0] == 1


def check_rest(cupy: Any, chain: Chain, dense: np.ndarray, block_size: int) -> None:
    """The last blocks of the union do not fit, and a thread answers each window: all bits set."""
    beyond = min(2 * WINDOW + 1, len(dense))
    windows = [min(WINDOW, beyond - first) for first in range(0, beyond, WINDOW)]
    words, problems = chain.rest_words, []

    def answer() -> None:
        give_up = time.monotonic() + PATIENCE_S
        sent = dense[len(dense) - beyond :]
        for number, blocks in enumerate(windows, 1):
            while words["asked"][0] != number:
                if time.monotonic() > give_up:
                    words["failed"] = 1
                    problems.append(f"window {number} was not asked for")
                    return
            part, sent = sent[:blocks].ravel(), sent[blocks:]
            if words["blocks"][0] != blocks or not np.array_equal(chain.windows[: len(part)], part):
                problems.append(f"window {number} has other blocks")
            chain.windows[: len(part)].view(np.uint8)[:] = 0xFF
            words["answered"] = number

    host = threading.Thread(target=answer)
    host.start()
    chain.rest(len(dense) - beyond, dtype=5)
    chain.stream.synchronize()
    host.join()
    assert not problems and words["dtype"][0] == 5 and not words["lost"][0], problems
    changed = np.unpackbits(chain.united.get().view(np.uint8), bitorder="little").nonzero()[0]
    expected = np.zeros(chain.blocks, bool)
    expected[changed[-beyond:]] = True
    out = chain.out.get()
    ones = np.array([0xFF] * out.itemsize, np.uint8).view(out.dtype)[0]
    assert np.array_equal(out == ones, np.repeat(expected, block_size)[: len(out)])
