"""Well-formed messages that a peer must not send: each is refused, and changes nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from _engine_tests import protocol
from cases import Case, cases
from hypothesis import given
from hypothesis import strategies as st
from network import Network, sum_in_rank_order

from omnihvd._engine import EngineError

Frame = protocol.Frame
END = protocol.END
RESULT = 2
# How an aggregator refuses.
UNEXPECTED = r"an unexpected contribution of rank \d+ to round [01] of slot 0, which is in round 0"
NO_BLOCK = "rank 0 sent a block that is not in the window"
NO_SLOT = "no such slot or round"
NO_AGGREGATOR = "a result for a slot that does not exist: 0"
OUTSIDE = "a result holds a block outside its window"
NO_WINDOW = "a result names a next window that nobody has announced"
NO_NAMES = "rank 0 names blocks that it cannot have"

# One aggregator; slots of 48 and 44 positions. Slot 0's last four positions: the first is a whole
# block, the second a short one, and the others have none.
SHAPE = protocol.Shape(count=893, dtype="float32", block_size=10, slots=2, window=4, stripe=2)
INPUTS = [np.where(np.arange(893) // 10 % 3 == rank, 1.0 + rank, 0).astype(np.float32)
          for rank in range(3)]  # fmt: skip


def blocks(*positions: int) -> list[tuple[int, bytes, bool]]:
    return [(position, b"\0\0\x80?" * 10, False) for position in positions]


def middle_of_a_sum() -> Network:
    """Rank 1 has begun, and others have not: both slots are in round 0 and wait for 0 and 2."""
    network = Network(SHAPE, INPUTS, scan_ahead=8)
    network.post(("start", 1), None)
    while network.step():
        pass
    return network


def assert_unharmed(network: Network) -> None:
    network.run()
    for output in network.outputs:
        np.testing.assert_array_equal(output, sum(INPUTS))


def test_the_shape_is_as_the_cases_expect() -> None:
    assert [SHAPE.positions(slot) for slot in (0, 1)] == [48, 44]
    tail = [SHAPE.elements_of(SHAPE.block_at(0, 0, position)) for position in range(44, 48)]
    assert tail == [10, 3, 0, 0]


@pytest.mark.parametrize(
    ("sender", "frame", "why"),
    [
        pytest.param(3, Frame(), UNEXPECTED, id="no such worker"),
        pytest.param(2**32 - 1, Frame(), UNEXPECTED, id="a worker beyond all numbers"),
        pytest.param(0, Frame(slot=2), NO_SLOT, id="no such slot"),
        pytest.param(1, Frame(), UNEXPECTED, id="twice"),
        pytest.param(0, Frame(round=1), UNEXPECTED, id="a round too early"),
        pytest.param(0, Frame(blocks=blocks(4)), NO_BLOCK, id="a block outside of the window"),
        pytest.param(0, Frame(blocks=blocks(0, 1, 44)), NO_BLOCK, id="a block far outside"),
        pytest.param(0, Frame(ahead=[3]), NO_NAMES, id="names a block of the window"),
        pytest.param(0, Frame(bound=8, ahead=[8]), NO_NAMES, id="names a block beyond its bound"),
        pytest.param(0, Frame(ahead=[4, 46]), NO_NAMES, id="names a block that there is not"),
        pytest.param(0, Frame(bound=3), NO_NAMES, id="a bound within the window"),
        pytest.param(0, Frame(bound=4), NO_NAMES, id="a bound that leaves no next window"),
        pytest.param(0, Frame(bound=49), NO_NAMES, id="a bound beyond the stream"),
        pytest.param(0, Frame(bound=END - 1), NO_NAMES, id="a bound far beyond"),
        pytest.param(1, Frame(as_named=True), UNEXPECTED, id="twice, as named"),
        pytest.param(3, Frame(as_named=True), UNEXPECTED, id="as named by no worker"),
        pytest.param(0, Frame(round=1, as_named=True), UNEXPECTED, id="as named, too early"),
    ],
)
@pytest.mark.parametrize("good_frame_first", [False, True])
def test_aggregator_refuses(sender: int, frame: Any, why: str, good_frame_first: bool) -> None:
    network = middle_of_a_sum()
    frames = [frame]
    if good_frame_first:  # of rank 0 to the other slot: it counts
        [(_, message)] = network.workers[0].start(2)
        first = protocol.decode(message.bytes(), SHAPE)["frames"][1 - frame.slot % 2]
        frames = [first, frame] if sender == 0 else [frame]
    with pytest.raises(EngineError, match=why):
        network.aggregators[0].on_message(protocol.encode(frames, SHAPE, sender=sender))
    if not good_frame_first:
        assert_unharmed(network)


@pytest.mark.parametrize(
    ("sender", "frame", "why"),
    [
        pytest.param(1, Frame(bound=8), NO_AGGREGATOR, id="no such aggregator"),
        pytest.param(
            2**32 - 1,
            Frame(bound=8),
            NO_AGGREGATOR,
            id="an aggregator beyond all numbers",
        ),
        pytest.param(0, Frame(slot=2), "no such slot or round", id="no such slot"),
        pytest.param(
            0,
            Frame(bound=8, round=1),
            "a result for round 1 of slot 0",
            id="a round too early",
        ),
        pytest.param(
            0,
            Frame(bound=8, blocks=blocks(4)),
            OUTSIDE,
            id="a block outside of the window",
        ),
        pytest.param(
            0,
            Frame(bound=8, blocks=blocks(0, 44)),
            OUTSIDE,
            id="a block far outside",
        ),
        pytest.param(0, Frame(bound=4), NO_WINDOW, id="no next window"),
        pytest.param(
            0,
            Frame(bound=40),
            NO_WINDOW,
            id="not announced",
        ),
        pytest.param(
            0,
            Frame(),
            NO_WINDOW,
            id="an end before the end",
        ),
        pytest.param(0, Frame(bound=8, as_named=True), "nobody has named", id="blocks as named"),
    ],
)
def test_worker_refuses(sender: int, frame: Any, why: str) -> None:
    network = middle_of_a_sum()
    with pytest.raises(EngineError, match=why):
        network.workers[1].on_message(protocol.encode([frame], SHAPE, sender=sender, kind=RESULT))
    with pytest.raises(EngineError):  # it has not begun
        network.workers[0].on_message(protocol.encode([Frame()], SHAPE, kind=RESULT))
    assert_unharmed(network)


def test_worker_refuses_an_end_before_it_has_looked_at_all() -> None:
    array = np.zeros(893, np.float32)
    array[-1] = 1
    worker = protocol.Worker(SHAPE, 0, array, array, scan_ahead=8)
    worker.start()
    with pytest.raises(EngineError, match=NO_WINDOW):
        worker.on_message(protocol.encode([Frame()], SHAPE, kind=RESULT))


def test_worker_refuses_an_end_before_it_has_sent_all() -> None:
    array = np.zeros(893, np.float32)
    array[:100] = 1  # more than the first windows have, and all announced
    worker = protocol.Worker(SHAPE, 0, array, array, scan_ahead=100)
    worker.start()
    with pytest.raises(EngineError, match="an aggregator ended a slot before all blocks were sent"):
        worker.on_message(protocol.encode([Frame()], SHAPE, kind=RESULT))


@pytest.mark.parametrize("stream", [0, 1])
def test_aggregator_refuses_a_slot_of_another_thread(stream: int) -> None:
    aggregator = protocol.Aggregator(SHAPE, 0, 2, stream=stream, streams=2)
    said = f"a contribution to slot {1 - stream}, which does not exist"
    with pytest.raises(EngineError, match=said):
        aggregator.on_message(protocol.encode([Frame(slot=1 - stream)], SHAPE))


class ReplayingNetwork(Network):
    """Now and then delivers a message again that has been delivered before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.delivered: list[tuple[Any, bytes]] = []

    def step(self) -> bool:
        if self.delivered and self.random.random() < 0.3:
            receiver, data = self.random.choice(self.delivered)
            with pytest.raises(EngineError):
                receiver.on_message(data)
        return super().step()

    def _up(self, rank: int, aggregator: int, item: tuple) -> None:
        super()._up(rank, aggregator, item)
        self.delivered.append((self.aggregators[aggregator], item[1]))

    def _down(self, aggregator: int, rank: int, data: bytes) -> None:
        super()._down(aggregator, rank, data)
        self.delivered.append((self.workers[rank], data))


@given(case=cases(workers=st.integers(1, 8)))
def test_replayed_messages_are_refused(case: Case) -> None:
    inputs = case.inputs()
    network = case.network(inputs, ReplayingNetwork)
    network.run()
    expected = sum_in_rank_order(inputs, case.dtype).tobytes()
    assert all(output.tobytes() == expected for output in network.outputs)


NUMBERS = st.integers(0, 60) | st.integers(0, END)
POSITIONS = st.lists(st.integers(0, 50), unique=True, max_size=8).map(sorted)
FRAMES = st.builds(
    Frame,
    slot=st.integers(0, 2),
    round=st.integers(0, 3) | st.integers(0, 2**32 - 1),
    bound=st.just(END) | NUMBERS,
    blocks=POSITIONS.map(lambda positions: blocks(*positions)),
    ahead=POSITIONS | st.lists(st.integers(0, 1 << 32), unique=True, max_size=3).map(sorted),
    as_named=st.sampled_from([False, False, True]),
)


@given(frame=FRAMES, steps=st.integers(0, 60), rank=st.integers(0, 3), seed=st.integers(0, 9))
def test_any_contribution_is_refused_or_ends_well(
    frame: Any, steps: int, rank: int, seed: int
) -> None:
    """A worker that lies may spoil the sum, and others may notice; but nothing breaks or hangs."""
    network = Network(SHAPE, INPUTS, scan_ahead=8, start_slots=1, seed=seed)
    network.begin()
    for _ in range(steps):
        network.step()
    try:
        network.publish(
            0, network.aggregators[0].on_message(protocol.encode([frame], SHAPE, sender=rank))
        )
    except EngineError as why:
        if "bytes after its last frame" not in str(why):  # by then the frame has been taken
            assert_unharmed(network)
        return
    with suppress(EngineError):
        while network.step():
            pass


@given(frame=FRAMES, steps=st.integers(0, 60), seed=st.integers(0, 9))
def test_any_result_is_refused_or_ends_well(frame: Any, steps: int, seed: int) -> None:
    network = Network(SHAPE, INPUTS, scan_ahead=8, start_slots=1, seed=seed)
    network.begin()
    for _ in range(steps):
        network.step()
    try:
        network.workers[0].on_message(protocol.encode([frame], SHAPE, kind=RESULT))
    except EngineError as why:
        if "bytes after its last frame" not in str(why):  # by then the frame has been taken
            assert_unharmed(network)
        return
    with suppress(EngineError):
        while network.step():
            pass


# Seven blocks beyond the first window, up to position 12, have been named.
WIDE = protocol.Shape(count=400, dtype="float32", block_size=10, slots=1, window=4, stripe=4)
MANY = np.where(np.arange(400) % 10 == 0, 1, 0).astype(np.float32)
MANY[40] = 0
TOO_MANY = "more blocks than fit"


def test_worker_refuses_a_window_of_more_blocks_than_fit() -> None:
    worker = protocol.Worker(WIDE, 0, MANY, MANY, scan_ahead=8)
    worker.start()
    with pytest.raises(EngineError, match=TOO_MANY):
        worker.on_message(protocol.encode([Frame(bound=12)], WIDE, kind=RESULT))


def test_child_refuses_a_window_of_more_blocks_than_fit() -> None:
    child = protocol.Aggregator(WIDE, 0, 1, member=0)
    [(_, first)] = protocol.Worker(WIDE, 0, MANY, MANY, scan_ahead=8).start()
    child.on_message(first.bytes())
    with pytest.raises(EngineError, match=TOO_MANY):
        child.on_result(protocol.encode([Frame(bound=12)], WIDE, kind=RESULT))
