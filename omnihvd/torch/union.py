"""DDP's communication hook for any device and backend: the average of the union of the ranks'
non-zero blocks, by PyTorch's own operators and the backend's allreduce.

A thread reads the size of each union, so the backend sums exactly that, and the backward pass goes
on meanwhile. The ranks unite a mark for each block, as AGsparse unites indices (OmniReduce,
SIGCOMM 2021, section 2), by one allreduce with the maximum. The ranks of a server may sum first:
then each unites its share of the tensor with the same shares of other servers.
"""
# DDP compares a hook's annotations; they must not be strings.

import contextlib
import queue
import threading
from collections import defaultdict
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed import GradBucket, ReduceOp, distributed_c10d
from torch.futures import Future

from omnihvd.torch.hook import group_of

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
LONGEST_PATIENCE = 127  # sums


def marks_of(rows: torch.Tensor) -> torch.Tensor:
    """1 for each row, of the last dimension, that is not zero. By its bits: else -0.0 would stay on
    one rank, where the others have 0.0."""
    return rows.view(BITS[rows.element_size()]).any(-1).to(torch.uint8)


def reduce_scatter(output: torch.Tensor, given: torch.Tensor, **how: Any) -> None:
    single = getattr(dist, "reduce_scatter_single", None)  # not every PyTorch has it
    (single or dist.reduce_scatter_tensor)(output, given, **how)


def all_gather(output: torch.Tensor, share: torch.Tensor, group: Any) -> None:
    single = getattr(dist, "all_gather_single", None)
    (single or dist.all_gather_into_tensor)(output, share, group=group)


class Patience:
    """How long a bucket that was dense is summed as a whole. All ranks decide alike, since all see
    the same unions."""

    def __init__(self) -> None:
        self._patience = self._left = 0

    def looks(self) -> bool:
        self._left -= 1
        return self._left < 0

    def learn(self, dense: bool) -> None:
        self._patience = min(2 * self._patience + 1, LONGEST_PATIENCE) if dense else 0
        self._left = self._patience


class UnionRule:
    """Which tensors are summed on their unions: UnionState has the arguments and the counts."""

    def __init__(
        self, block_size: int = 256, densest: float = 0.6, least_bytes: int = 1 << 20
    ) -> None:
        if block_size < 1:
            raise ValueError(f"a block of {block_size} elements: give it one or more")
        self.block_size, self.densest, self.least_bytes = block_size, densest, least_bytes
        self.elements = self.summed = 0
        self._patience: dict[Any, Patience] = defaultdict(Patience)  # by what has one density

    def split(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The last dimension's blocks, one a row, and the elements behind them."""
        blocks = flat.shape[-1] // self.block_size
        end = blocks * self.block_size
        return flat[..., :end].unflatten(-1, (blocks, self.block_size)), flat[..., end:]

    def is_dense(self, key: Any, united: int, blocks: int) -> bool:
        """Whether these are too many of the blocks; all ranks remember it alike."""
        dense = united > self.densest * blocks
        self._patience[key].learn(dense)
        return dense


class SideThread:
    """Calls functions in a thread of its own, where they may wait for the device. Each call is on a
    stream of its own, behind what its caller had queued."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: Any = None
        self._stream: Any = None

    def call(self, device: torch.device, done: Any, work: Callable[[], Any]) -> None:
        """Returns at once. done: the future of what `work` returns."""
        module = torch.get_device_module(device)
        ready = module.Event()
        ready.record()
        if self._thread is None:
            self._stream = module.Stream(priority=-1)  # of this device; the thread has another
            self._thread = threading.Thread(target=self._run, name="omnihvd unions", daemon=True)
            self._thread.start()
        self._asked.put((module, ready, done, work))

    def _run(self) -> None:
        while True:
            module, ready, done, work = self._asked.get()
            try:
                with module.stream(self._stream), torch.no_grad():
                    self._stream.wait_event(ready)
                    done.set_result(work())
            except Exception as why:
                done.set_exception(why)
            del done, work  # and the tensors that they hold


class UnionState(UnionRule):
    """The state of `union_hook`. Collective: each rank of `process_group` (None: the default one)
    makes it, and it makes a process group of its own with the same backend and time-out, so that
    its thread's collectives mix with no others.

    block_size: elements of a block. densest: a union of a larger share of the blocks is summed as a
    whole, and so are the next 1, 3, 7 .. 127 sums of that bucket. least_bytes: smaller buckets are
    always summed as a whole; sparse ones, too. local_ranks: so many consecutive ranks share a
    server. If they are more than one, they reduce-scatter a bucket, sum the unions of their shares
    between the servers, and gather the bucket; that takes two more process groups. `elements` and
    `summed` count the elements of all buckets so far, and those that the backend has summed, with
    local_ranks between servers. ValueError if the ranks are no multiple of local_ranks, or
    not all of the job and in different numbers of groups.
    """

    def __init__(
        self,
        process_group: Any = None,
        block_size: int = 256,
        densest: float = 0.6,
        least_bytes: int = 1 << 20,
        local_ranks: int = 1,
    ) -> None:
        super().__init__(block_size, densest, least_bytes)
        given = group_of(process_group)
        ranks = sorted(dist.get_process_group_ranks(given))  # as new_group() does
        if local_ranks < 1 or len(ranks) % local_ranks:
            raise ValueError(
                f"{len(ranks)} ranks on servers of {local_ranks}: give local_ranks= a divisor"
            )
        servers = [ranks[i : i + local_ranks] for i in range(0, len(ranks), local_ranks)]
        levels = [servers, zip(*servers)] if local_ranks > 1 else []
        self._own, *made = _groups(given, [[ranks], *levels])
        self._inside: Any = made[0] if levels else None
        self._between = made[1] if levels else self._own
        self._side = SideThread()

    def average(self, tensor: torch.Tensor, number: int = 0) -> Future[torch.Tensor]:
        """Begins to average a tensor over the ranks, in place unless it is sparse. number: of the
        bucket; equal ones have the same density, as a rule."""
        on_device = tensor.device.type != "cpu"
        done: Future[torch.Tensor] = Future(devices=[tensor.device] if on_device else None)
        self._side.call(tensor.device, done, lambda: self._average(tensor, number))
        return done

    def _average(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        self.elements += tensor.numel()
        key = number, tensor.numel(), tensor.dtype
        if tensor.is_sparse or tensor.nbytes < self.least_bytes:
            self.summed += tensor.numel()
            size = self._own.size()
            tensor = tensor / size if tensor.is_sparse else tensor.div_(size)
            dist.all_reduce(tensor, group=self._own)
        elif self._inside is not None:
            self._average_in_servers(tensor, key)
        else:
            self._average_between(tensor, key)
        return tensor

    def _average_in_servers(self, tensor: torch.Tensor, key: Any) -> None:
        count, ranks = tensor.numel(), self._inside.size()
        tensor.div_(ranks)
        share = -(-count // ranks)
        even = count == share * ranks
        whole = tensor if even else torch.nn.functional.pad(tensor, (0, share * ranks - count))
        mine = whole.new_empty(share)
        reduce_scatter(mine, whole, group=self._inside)
        self._average_between(mine, key)  # ranks of a server may differ here: their shares do
        all_gather(whole, mine, self._inside)
        if not even:
            tensor.copy_(whole[:count])

    def _average_between(self, tensor: torch.Tensor, key: Any) -> None:
        """Averages it between servers, on the union if that is sparse."""
        if self._patience[key].looks():
            body, rest = self.split(tensor)
            union = self._union(body)
            if not self.is_dense(key, len(union), len(body)):
                self._average_rows(body, union, rest)
                return
        self.summed += tensor.numel()
        dist.all_reduce(tensor.div_(self._between.size()), group=self._between)

    def _union(self, body: torch.Tensor) -> torch.Tensor:
        """The numbers of the rows that are not zero on all ranks."""
        marks = marks_of(body)
        dist.all_reduce(marks, ReduceOp.MAX, group=self._between)
        return marks.nonzero().squeeze(1)

    def _average_rows(self, body: torch.Tensor, rows: torch.Tensor, rest: torch.Tensor) -> None:
        width = len(rows) * self.block_size
        packed = body.new_empty(width + len(rest))
        united = packed[:width].view(len(rows), self.block_size)
        torch.index_select(body, 0, rows, out=united)
        packed[width:] = rest
        packed /= self._between.size()  # before the sum, as DDP does: float16 sums may overflow
        if len(packed) > 0:
            dist.all_reduce(packed, group=self._between)
        body.index_copy_(0, rows, united)
        rest.copy_(packed[width:])
        self.summed += len(packed)


def _groups(given: Any, splits: list[Any]) -> list[Any]:
    """Makes groups like `given` of parts of its ranks, the same splits on each. Returns this rank's
    of each split."""
    timeout = None  # PyTorch's default
    with contextlib.suppress(AttributeError, RuntimeError):  # not every backend has options
        timeout = given._get_backend(given._device_types[0]).options._timeout
    counts: list[Any] = [0] * given.size()
    if local := given.size() < dist.get_world_size():  # the other ranks make no groups now
        dist.all_gather_object(counts, len(distributed_c10d._world.pg_names), given)
    if len(set(counts)) > 1:  # the group's name has this number: ranks would never meet
        raise ValueError(
            f"the ranks belong to {counts} process groups: make UnionState before the groups "
            "that only some of them belong to"
        )
    how = timeout, dist.get_backend(given), None, local
    made = [[dist.new_group(list(part), *how) for part in parts] for parts in splits]
    return [next(g for g in groups if isinstance(g, dist.ProcessGroup)) for groups in made]


def union_hook(state: UnionState, bucket: GradBucket) -> Future[torch.Tensor]:
    """`ddp.register_comm_hook(UnionState(), union_hook)`: averages a bucket on any device, GPUs
    too, and over any backend: it sums only blocks that are not zero on some rank.

    The hook returns at once. It uses PyTorch's operators alone, and has run on CPUs only. There
    `allreduce_hook` is faster. The future carries all errors.
    """
    return state.average(bucket.buffer(), bucket.index())
