"""A reduce: one worker gets the sums, and all learn how many there are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from _engine_tests import protocol
from cases import Case, blocks_of, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from network import Network, decode, sum_in_rank_order
from test_wire import RESULT, message

from omnihvd._engine import EngineError

TOLD_BYTES = 64 + 16  # of a result without sums: at most

ONE_AGGREGATOR = cases(aggregators=st.just(1))


def reduce_of(case: Case, owner: int) -> Case:
    return replace(case, owner=owner % case.workers)


@given(case=ONE_AGGREGATOR, owner=st.integers(0, 63))
def test_the_owner_alone_gets_the_sum(case: Case, owner: int) -> None:
    case = reduce_of(case, owner)
    inputs = case.inputs()
    network = case.network(inputs)
    before = [output.tobytes() for output in network.outputs]
    network.run()
    expected = sum_in_rank_order(inputs, case.dtype)
    for rank, output in enumerate(network.outputs):
        if rank == case.owner:
            np.testing.assert_array_equal(decode(output, case.dtype), decode(expected, case.dtype))
        else:
            assert output.tobytes() == before[rank]

    any_rank = np.any([blocks_of(decode(array, case.dtype) != 0, case.block_size)
                       for array in inputs], 0)  # fmt: skip
    assert [worker.result_blocks for worker in network.workers] == [any_rank.sum()] * case.workers
    rounds = sum(network.rounds.values())
    for rank in set(range(case.workers)) - {case.owner}:
        assert network.bytes_down[0, rank] <= rounds * TOLD_BYTES


@pytest.mark.parametrize("arithmetic", ["float", "integer", "switchml", "fpisa"])
@settings(max_examples=25)
@given(case=cases(aggregators=st.just(1), dtype=st.just("float32"), ordered=st.just(True)))
def test_in_all_numbers_it_is_the_sum_that_all_would_get(arithmetic: str, case: Case) -> None:
    inputs = case.inputs()
    sums = []
    for owner in (None, case.workers - 1):
        shape = protocol.Shape(
            count=case.count, dtype=case.dtype, block_size=case.block_size, slots=case.slots,
            window=case.window, stripe=case.stripe, arithmetic=arithmetic, workers=case.workers,
            owner=owner,
        )  # fmt: skip
        network = Network(shape, inputs, ordered=True, in_place=case.in_place, seed=case.seed)
        sums.append(network.run()[-1].tobytes())
    assert sums[0] == sums[1]


SHAPE = protocol.Shape(count=893, dtype="float32", block_size=10, window=4, stripe=2, owner=1)


@pytest.mark.parametrize(
    ("numbers", "why"),
    [((32, 0, 0), "nobody can have kept"), ((32, 5, 0), "nobody can have kept"),
     ((32, 1, 1, 0), "kept, and sent"), ((64, 1, 0), "unknown flags")],
)  # fmt: skip
def test_impossible_numbers_of_sums_are_refused(numbers: tuple, why: str) -> None:
    assert protocol.decode(message(0, 0, 0, 32, 4, 0, kind=RESULT), SHAPE)["frames"]
    with pytest.raises(EngineError, match=why):
        protocol.decode(message(0, 0, 0, *numbers, kind=RESULT), SHAPE)


def test_sums_for_another_rank_are_refused() -> None:
    inputs = [np.ones(893, np.float32)] * 2
    network = Network(SHAPE, inputs)
    results = []
    for rank in range(2):
        for _, contribution in network.workers[rank].start():
            results.append(network.aggregators[0].on_message(contribution.bytes()))
    with pytest.raises(EngineError, match="a result holds sums that are another rank's"):
        network.workers[0].on_message(results[-1].bytes())
