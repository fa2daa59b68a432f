"""Workers and aggregators joined by a network that delivers in whatever order a test asks for.

Messages between one worker and one aggregator arrive in order, as a transport promises; all else
is up to the schedule: which link moves next, when a worker starts its slots, and when the memory
of a result is released. The network checks on the way that memory lent to a message does not
change before the message is sent, and that each round makes progress.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from _engine_tests import protocol

# How a test's arrays hold each dtype; NumPy has no bfloat16, so its bits are held.
STORAGE = {
    "float16": np.float16,
    "bfloat16": np.uint16,
    "float32": np.float32,
    "float64": np.float64,
    "int8": np.int8,
    "uint8": np.uint8,
    "int32": np.int32,
    "int64": np.int64,
}
ACCUMULATOR_BYTES = {d: 4 if d.endswith("float16") else np.dtype(s).itemsize
                     for d, s in STORAGE.items()}  # fmt: skip


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 values, none NaN, rounded to nearest even; as bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values of any dtype as the array of the named one that a worker is given."""
    if dtype == "bfloat16":
        return to_bfloat16(values)
    with np.errstate(over="ignore"):  # float16: to infinity
        return values.astype(STORAGE[dtype])


def decode(array: np.ndarray, dtype: str) -> np.ndarray:
    """encode()'s argument, rounded; float16 and bfloat16 as float32."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if dtype == "float16" else array


def sum_in_rank_order(inputs: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    """The sum, accumulated as omnihvd promises: one rank after another, in float32 for halves."""
    total = decode(inputs[0], dtype).copy()
    with np.errstate(all="ignore"):
        for array in inputs[1:]:
            total += decode(array, dtype)
    return encode(total, dtype)


class Network:
    """Run one allreduce: `Network(shape, inputs, ...).run()` returns the outputs, by rank.

    later: which events wait until nothing else can happen. Events are ("start", worker),
    ("up", worker, aggregator), ("down", aggregator, worker) and ("release", aggregator, id).
    stream: carry only one stream's slots; `beside` carries another stream of the same allreduce.
    """

    def __init__(
        self,
        shape: Any,
        inputs: Sequence[np.ndarray],
        *,
        in_place: bool = False,
        ordered: bool = False,
        scan_ahead: int = 2048,
        start_slots: int = 1 << 30,
        seed: int = 0,
        later: Callable[[tuple], bool] = lambda event: False,
        stream: int = 0,
        streams: int = 1,
        beside: Network | None = None,
    ) -> None:
        self.shape = shape
        self.inputs = beside.inputs if beside else [array.copy() for array in inputs]
        if beside:
            self.outputs = beside.outputs
        elif in_place:
            self.outputs = self.inputs
        else:  # garbage that the result must replace
            self.outputs = [np.full_like(array.view(np.uint8), 0xA5).view(array.dtype)
                            for array in inputs]  # fmt: skip
        self.workers = [
            protocol.Worker(shape, rank, given, result, scan_ahead, stream, streams)
            for rank, given, result in zip(range(len(inputs)), self.inputs, self.receivers())
        ]
        self.aggregators = [
            protocol.Aggregator(shape, index, len(inputs), ordered, stream, streams)
            for index in range(shape.aggregators)
        ]
        self.start_slots = start_slots
        self.random = random.Random(seed)
        self.later = later
        self.links: dict[tuple, deque] = {}
        self.ready: tuple[list, list] = ([], [])
        self.bytes_up: Counter = Counter()  # (worker, aggregator)
        self.bytes_down: Counter = Counter()  # (aggregator, worker)
        self.messages_up: Counter = Counter()
        self.rounds: Counter = Counter()  # (aggregator, slot)
        self.peak_accumulator_bytes = [0] * shape.aggregators
        self.results = 0

    def receivers(self) -> list[np.ndarray | None]:
        """Each worker's output; None: in a reduce only the owner has one."""
        if self.shape.owner is None:
            return list(self.outputs)
        return [out if r == self.shape.owner else None for r, out in enumerate(self.outputs)]

    def begin(self) -> None:
        for rank in range(len(self.workers)):
            self.post(("start", rank), None)

    def run(self) -> list[np.ndarray]:
        self.begin()
        while self.step():
            pass
        assert all(worker.done for worker in self.workers), "a worker waits for ever"
        for aggregator in self.aggregators:
            assert aggregator.done
            assert aggregator.awaited == []
        return self.outputs

    def step(self) -> bool:
        """Let one thing happen; False when nothing is left that could."""
        ready = self.ready[0] or self.ready[1]
        if not ready:
            return False
        pick = self.random.randrange(len(ready))
        ready[pick], ready[-1] = ready[-1], ready[pick]
        event = ready.pop()
        link = self.links[event]
        item = link.popleft()
        if link:
            self._enable(event)
        getattr(self, "_" + event[0])(*event[1:], item)
        return True

    def post(self, event: tuple, item: Any) -> None:
        link = self.links.setdefault(event, deque())
        link.append(item)
        if len(link) == 1:
            self._enable(event)

    def _enable(self, event: tuple) -> None:
        self.ready[self.later(event)].append(event)

    def _start(self, rank: int, _: None) -> None:
        messages = self.workers[rank].start(self.start_slots)
        for aggregator, message in messages:
            self.contribute(rank, aggregator, message)
        if messages:
            self.post(("start", rank), None)

    def contribute(self, rank: int, aggregator: int, message: Any) -> None:
        data = message.bytes()
        self.bytes_up[rank, aggregator] += len(data)
        self.messages_up[rank, aggregator] += 1
        self.post(("up", rank, aggregator), (message, data))

    def _up(self, rank: int, aggregator: int, item: tuple) -> None:
        message, data = item
        assert message.bytes() == data, "a contribution changed while it was being sent"
        self.publish(aggregator, self.aggregators[aggregator].on_message(data))

    def publish(self, index: int, message: Any) -> None:
        aggregator = self.aggregators[index]
        peak = max(self.peak_accumulator_bytes[index], aggregator.accumulator_bytes)
        self.peak_accumulator_bytes[index] = peak
        if message is None:
            return
        data = message.bytes()
        for slot, round_ in message.frames:
            assert round_ == self.rounds[index, slot]
            self.rounds[index, slot] += 1
            assert round_ <= self.shape.positions(slot), "rounds without progress"
        told = data if self.shape.owner is None else aggregator.without_sums().bytes()
        for rank in range(len(self.workers)):
            result = data if rank == self.shape.owner else told
            self.bytes_down[index, rank] += len(result)
            self.post(("down", index, rank), result)
        self.results += 1
        self.post(("release", index, self.results), (message, data))

    def _down(self, aggregator: int, rank: int, data: bytes) -> None:
        message = self.workers[rank].on_message(data)
        if message is not None:
            self.contribute(rank, aggregator, message)

    def _release(self, index: int, _: int, item: tuple) -> None:
        message, data = item
        assert message.bytes() == data, "a result changed while it was being sent"
        for slot, round_ in message.frames:
            self.publish(index, self.aggregators[index].released(slot, round_))
