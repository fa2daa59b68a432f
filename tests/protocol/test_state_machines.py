"""Properties of workers and aggregators together, whatever the tensor and the order of delivery."""

from __future__ import annotations

from math import lgamma, log

import numpy as np
import pytest
from _engine_tests import protocol
from cases import SCHEDULES, Case, blocks_of, cases
from hypothesis import given
from hypothesis import strategies as st
from network import STORAGE, Network, decode, encode, sum_in_rank_order

FRAME_BYTES = 48  # slot, round, bound, numbers, padding: at most
MESSAGE_BYTES = 64 + 48


def run(case: Case) -> tuple[Network, list[np.ndarray]]:
    inputs = case.inputs()
    network = case.network(inputs)
    network.run()
    return network, inputs


def assert_sum(network: Network, inputs: list[np.ndarray]) -> None:
    """All workers hold the same bits, and they are the sum."""
    dtype = network.shape.dtype
    expected = sum_in_rank_order(inputs, dtype)
    for output in network.outputs:
        assert output.tobytes() == network.outputs[0].tobytes()
    np.testing.assert_array_equal(decode(network.outputs[0], dtype), decode(expected, dtype))


@given(case=cases())
def test_sum_is_exact(case: Case) -> None:
    network, inputs = run(case)
    assert_sum(network, inputs)
    if not case.in_place:
        for given_, kept in zip(inputs, network.inputs):
            assert given_.tobytes() == kept.tobytes()


@given(case=cases(), streams=st.integers(2, 4))
def test_streams_share_a_sum(case: Case, streams: int) -> None:
    """Each stream carries some of the slots, at its own pace."""
    inputs = case.inputs()
    networks = [case.network(inputs, streams=streams)]
    for stream in range(1, streams):
        networks.append(case.network(inputs, stream=stream, streams=streams, beside=networks[0]))
    running = list(networks)
    for network in networks:
        network.begin()
    while running:
        network = networks[0].random.choice(running)
        if not network.step():
            running.remove(network)
            network.run()
    assert_sum(networks[0], inputs)
    places = [place for network in networks for place in network.rounds]
    assert len(places) == len(set(places))  # no slot in two streams


@given(case=cases())
def test_memory_rounds_and_bytes_are_bounded(case: Case) -> None:
    network, inputs = run(case)
    assert max(network.peak_accumulator_bytes) <= case.accumulator_bound()
    for (aggregator, slot), rounds in network.rounds.items():
        assert rounds <= case.round_bound(aggregator, slot, inputs)

    has = [blocks_of(decode(array, case.dtype) != 0, case.block_size) for array in inputs]
    sent = [int(blocks.sum()) for blocks in has]
    any_rank = int(np.any(has, 0).sum())
    assert [worker.nonzero_blocks for worker in network.workers] == sent
    assert [worker.result_blocks for worker in network.workers] == [any_rank] * case.workers
    # Each block costs itself, its position twice, and one bit; a zero block costs nothing.
    block = network.shape.block_bytes + 2 * 10 + 1
    rounds = sum(network.rounds.values())
    for rank in range(case.workers):
        up = sum(network.bytes_up[rank, a] for a in range(case.aggregators))
        down = sum(network.bytes_down[a, rank] for a in range(case.aggregators))
        assert up <= sent[rank] * block + rounds * (FRAME_BYTES + MESSAGE_BYTES)
        assert down <= any_rank * block + rounds * (FRAME_BYTES + MESSAGE_BYTES)


FLOATS = st.sampled_from(["float16", "bfloat16", "float32", "float64"])


@given(case=cases(ordered=st.just(True), dtype=FLOATS), other=st.sampled_from(list(SCHEDULES)))
def test_ordered_sums_do_not_depend_on_the_order_of_delivery(case: Case, other: str) -> None:
    dtype = case.dtype
    random = np.random.default_rng(case.seed)
    # Magnitudes so different that nearly every order of summation rounds differently.
    spread = 4 if dtype == "float16" else 20
    inputs = [
        encode(decode(array, dtype) * np.exp2(random.uniform(-spread, spread, case.count)), dtype)
        for array in case.inputs()
    ]
    for schedule, seed in [(case.schedule, case.seed), (other, case.seed + 1)]:
        network = case.network(inputs, later=SCHEDULES[schedule], seed=seed)
        network.run()
        assert_sum(network, inputs)


@given(case=cases(dtype=FLOATS, skew=st.sampled_from(["random", "front", "one worker"])))
def test_nan_and_infinity_are_data(case: Case) -> None:
    inputs = case.inputs()
    random = np.random.default_rng(case.seed)
    if case.count:
        for array in inputs:
            special = encode(np.array([np.nan, np.inf, -np.inf, -0.0], np.float32), case.dtype)
            array[random.integers(case.count, size=4)] = special
    network = case.network(inputs)
    network.run()
    assert_sum(network, inputs)


def assert_cheap(network: Network, limit: int) -> None:
    """Each worker and aggregator exchanged at most so many bytes, both ways together."""
    for (rank, aggregator), up in network.bytes_up.items():
        assert up + network.bytes_down[aggregator, rank] <= limit


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_tensor_costs_a_few_hundred_bytes(zero: float, in_place: bool) -> None:
    count = 25_000_003  # 100 MB
    shape = protocol.Shape.fit(
        count=count, dtype="float32", block_size=256, aggregators=4, max_slots=16,
        message_bytes=65536,
    )  # fmt: skip
    inputs = [np.full(count, zero, np.float32) for _ in range(2)]
    network = Network(shape, inputs, in_place=in_place)
    for output in network.run():
        assert not output.view(np.uint8).any()  # -0.0 has become +0.0
    assert_cheap(network, 600)
    assert network.peak_accumulator_bytes == [0] * 4


@pytest.mark.parametrize("dtype", STORAGE)
def test_lone_values_in_zero_blocks(dtype: str) -> None:
    """One element in every tenth block, NaN if there is such: found, and only it is sent."""
    blocks, block_size = 200, 256
    values = np.zeros(blocks * block_size)
    values[13 :: 10 * block_size] = np.nan if "float" in dtype else 1
    inputs = [encode(values, dtype) if dtype != "bfloat16" else np.where(values, 0x7FC0, 0)
              .astype(np.uint16) for _ in range(3)]  # fmt: skip
    shape = protocol.Shape(
        count=len(values), dtype=dtype, block_size=block_size, window=16, stripe=4, slots=2
    )
    network = Network(shape, inputs)
    network.run()
    assert_sum(network, inputs)
    assert all(worker.nonzero_blocks == 20 for worker in network.workers)
    assert_cheap(network, 20 * 2 * (8 + 4) + 800)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize(
    ("density", "most"), [(0.1, 1.15), (0.05, 1.15), (0.01, 1.1), (0.001, 1.45)]
)
def test_scattered_values_travel_near_the_entropy(density: float, most: float, dtype: str) -> None:
    """Elements at random: `most` x their values and log2 C(n, k) bits, each way."""
    count, workers, random = 1_000_000, 4, np.random.default_rng(1)
    inputs = [np.where(random.random(count) < density, 1 + rank, 0).astype(dtype)
              for rank in range(workers)]  # fmt: skip
    shape = protocol.Shape.fit(
        count=count, dtype=dtype, block_size=256, aggregators=2, max_slots=2, message_bytes=57344
    )
    network = Network(shape, inputs, in_place=True, later=SCHEDULES["release early"])
    network.run()
    assert_sum(network, inputs)
    for rank in range(workers):
        up = sum(network.bytes_up[rank, a] for a in range(2))
        down = sum(network.bytes_down[a, rank] for a in range(2))
        for sent, said in [(up, inputs[rank]), (down, sum(inputs))]:
            k = np.count_nonzero(said)
            entropy = (lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1)) / log(2)
            assert sent <= most * (k * inputs[0].itemsize + entropy / 8)


def test_one_worker_with_much_does_not_wait_for_many_with_little() -> None:
    """Workers that stop looking at different positions would each end a window there."""
    workers, blocks, window, scan_ahead = 32, 20_000, 4, 256
    random = np.random.default_rng(0)
    inputs = [np.where(random.random(blocks) < (0.05 if rank == 0 else 0.001), 1.0, 0)
              .astype(np.float32) for rank in range(workers)]  # fmt: skip
    shape = protocol.Shape(count=blocks, dtype="float32", block_size=1, window=window)
    network = Network(shape, inputs, scan_ahead=scan_ahead)
    network.run()
    assert_sum(network, inputs)
    anywhere = np.count_nonzero(sum(inputs))
    assert network.rounds[0, 0] <= 2 + anywhere // window + blocks // scan_ahead


def test_thousands_of_workers() -> None:
    workers, count = 2000, 101
    inputs = [np.zeros(count) for _ in range(workers)]
    for rank, array in enumerate(inputs):
        array[rank % count] = rank + 1
        array[50] = 1
    shape = protocol.Shape(
        count=count, dtype="float64", block_size=3, aggregators=3, slots=2, window=2, stripe=2
    )
    network = Network(shape, inputs, seed=1)
    network.run()
    assert_sum(network, inputs)
    assert max(network.peak_accumulator_bytes) <= 2 * 2 * 2 * (3 * 8 + 3 * 8)


def test_awaited_names_the_missing_workers() -> None:
    inputs = [np.arange(1.0, 101) for _ in range(5)]
    shape = protocol.Shape(count=100, dtype="float64", block_size=4, aggregators=2, slots=2)
    network = Network(shape, inputs)
    for rank in (0, 2, 4):
        network.post(("start", rank), None)
    while network.step():
        pass
    assert [aggregator.awaited for aggregator in network.aggregators] == [[1, 3], [1, 3]]
    assert not any(worker.done for worker in network.workers)
    network.run()  # the others start, too
    assert_sum(network, inputs)


@pytest.mark.parametrize("arithmetic", ["float", "integer"])
def test_a_worker_awaits_each_aggregator_that_it_has_sent_to(arithmetic: str) -> None:
    """Windows of one block: in integer sums the first contribution names one, and has none."""
    x = np.ones(40, np.float32)
    shape = protocol.Shape(
        count=40, dtype="float32", block_size=4, aggregators=2, arithmetic=arithmetic
    )
    worker = protocol.Worker(shape, 0, x, x.copy())
    assert worker.awaited == []
    worker.start(1)
    assert worker.awaited == [0]
    worker.start()
    assert worker.awaited == [0, 1]
    network = Network(shape, [x])
    network.run()
    assert network.workers[0].awaited == []
