"""Aggregators as a tree: who they are, and that sums through them are right in every order."""

from __future__ import annotations

import random
from collections import deque
from math import prod
from typing import Any

import numpy as np
import pytest
from _engine_tests import protocol
from cases import Case, blocks_of, cases
from hypothesis import given
from hypothesis import strategies as st
from network import decode, sum_in_rank_order

FRAME_BYTES, MESSAGE_BYTES = 48, 104  # as in test_state_machines.py
RANKS = [1, 2, 3, 5, 7, 8, 9, 12, 16, 17, 27, 31, 60, 64]


def hosts(tree: Any, level: int, share: int, ranks: int) -> set[int]:
    groups = {tree.group_of(level, rank) for rank in range(ranks)}
    return {tree.host(level, group, share) for group in groups}


def peers(tree: Any, rank: int, ranks: int, shares: int) -> set[int]:
    """With whom a rank exchanges messages."""
    found = set()
    for level in range(1, tree.levels + 1):
        group = tree.group_of(level, rank)
        for share in range(shares):
            above = tree.host(level, group, share)
            if rank in hosts(tree, level - 1, share, ranks):
                found.add(above)
            if above == rank:
                for m in range(tree.members(level, group)):
                    found.add(tree.host_of_member(level, group, m, share))
    return found - {rank}


@pytest.mark.parametrize("ranks", RANKS)
def test_groups_are_a_partition_with_a_host_for_each_share(ranks: int) -> None:
    for fans in (protocol.Tree.fans_for(ranks, 2), protocol.Tree.fans_for(ranks, 8), [64]):
        tree = protocol.Tree(ranks, fans)
        assert tree.group_of(tree.levels, ranks - 1) == 0
        for level in range(1, tree.levels + 1):
            groups = [tree.group_of(level, rank) for rank in range(ranks)]
            assert groups == sorted(groups) and set(groups) == set(range(groups[-1] + 1))
            sizes = [tree.members(level, group) for group in range(groups[-1] + 1)]
            assert max(sizes) - min(sizes) <= 1 and max(sizes) <= max(fans[level - 1], 1)
            for rank, group in enumerate(groups):
                member = tree.member_of(level, rank)
                assert 0 <= member < tree.members(level, group)
                for share in (0, 1, ranks - 1, 7 * ranks + 3):
                    below = tree.host(level - 1, tree.group_of(level - 1, rank), share)
                    assert tree.host_of_member(level, group, member, share) == below
                    # A group's aggregator is that of one of its members.
                    host = tree.host(level, group, share)
                    assert tree.group_of(level, host) == group
                    assert host in hosts(tree, level - 1, share, ranks)


@pytest.mark.parametrize(("ranks", "fans"), [(8, [2, 4]), (27, [3, 3, 3]), (64, [4, 4, 4])])
def test_a_rank_of_full_groups_has_few_peers_and_its_share(ranks: int, fans: list[int]) -> None:
    tree = protocol.Tree(ranks, fans)
    for rank in range(ranks):
        assert len(peers(tree, rank, ranks, ranks)) == sum(fan - 1 for fan in fans)
    for level in range(1, len(fans) + 1):
        seats = [tree.host(level, tree.group_of(level, rank), s)
                 for rank in range(0, ranks, prod(fans[:level])) for s in range(ranks)]  # fmt: skip
        assert set(np.bincount(seats, minlength=ranks)) == {ranks // prod(fans[:level])}


@pytest.mark.parametrize("ranks", [17, 31, 60])
def test_groups_that_are_not_full_cost_some_peers_more(ranks: int) -> None:
    tree = protocol.Tree(ranks, protocol.Tree.fans_for(ranks, 8))
    assert max(len(peers(tree, rank, ranks, ranks)) for rank in range(ranks)) <= 20


@pytest.mark.parametrize("ranks", [1, 2, 64, 100, 512, 1000, 4096, 100_000])
@pytest.mark.parametrize("most", [20, 32, 64])
def test_levels_are_the_fewest_that_keep_peers_few(ranks: int, most: int) -> None:
    fans = protocol.Tree.fans_for(ranks, most)
    assert prod(fans) >= ranks
    assert sum(fan - 1 for fan in fans) <= most
    if len(fans) > 1:
        fewer = len(fans) - 1
        fan = next(fan for fan in range(2, ranks + 1) if fan**fewer >= ranks)
        assert fewer * (fan - 1) > most
    assert protocol.Tree(ranks, fans).levels == len(fans)
    assert set(protocol.Tree.fans_for(ranks, 1)) <= {1, 2}


@pytest.mark.parametrize(
    ("ranks", "fans", "message"),
    [
        (0, [2], "a tree of 0 ranks"),
        (4, [], "levels that leave 4 groups of 4 ranks apart"),
        (5, [2, 2], "2 groups of 5 ranks apart"),
        (5, [1, 5], "joins at least 2"),
        (4, [4, 2], "levels above one that joins all 4 ranks"),
    ],
)
def test_trees_that_cannot_be(ranks: int, fans: list[int], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        protocol.Tree(ranks, fans)


class Joined:
    """Workers and a tree of aggregators over links that keep their order, drawn at random. Memory
    lent to a message is given back at any time later."""

    def __init__(self, case: Case, fans: list[int], inputs: list[np.ndarray]) -> None:
        self.shape, self.tree = case.shape(), protocol.Tree(len(inputs), fans)
        self.inputs = [array.copy() for array in inputs]
        self.outputs = [np.full_like(array.view(np.uint8), 0xA5).view(array.dtype)
                        for array in inputs]  # fmt: skip
        self.workers = [
            protocol.Worker(self.shape, self.tree.member_of(1, rank), given, result,
                            case.scan_ahead, 0, 1)
            for rank, (given, result) in enumerate(zip(self.inputs, self.outputs))
        ]  # fmt: skip
        self.nodes: dict[tuple[int, int, int], Any] = {}  # level, group, share
        top = self.tree.levels
        for level in range(1, top + 1):
            for group in range(self.tree.group_of(level, len(inputs) - 1) + 1):
                first = next(r for r in range(len(inputs)) if self.tree.group_of(level, r) == group)
                member = self.tree.member_of(level + 1, first) if level < top else None
                for share in range(self.shape.aggregators):
                    self.nodes[level, group, share] = protocol.Aggregator(
                        self.shape, share, self.tree.members(level, group), case.ordered, 0, 1,
                        member,
                    )  # fmt: skip
        self.links: dict[tuple, deque] = {}
        self.random = random.Random(case.seed)

    def run(self) -> None:
        for rank, worker in enumerate(self.workers):
            for share, message in worker.start():
                self.post(("up", rank, share, 1, self.tree.group_of(1, rank)), message)
        while self.links:
            link = self.random.choice(list(self.links))
            item = self.links[link].popleft()
            if not self.links[link]:
                del self.links[link]
            getattr(self, "_" + link[0])(*link[1:], *item)
        assert all(worker.done for worker in self.workers), "a worker waits for ever"
        for node in self.nodes.values():
            assert node.done and node.awaited == []

    def post(self, link: tuple, message: Any) -> None:
        self.links.setdefault(link, deque()).append((message, message.bytes()))

    def _up(self, _: int, share: int, level: int, group: int, message: Any, data: bytes) -> None:
        assert message.bytes() == data, "a contribution changed while it was being sent"
        self.say(level, group, share, self.nodes[level, group, share].on_message(data))

    def say(self, level: int, group: int, share: int, message: Any) -> None:
        if message is None:
            return
        if level < self.tree.levels:
            rank = next(r for r in range(len(self.inputs)) if self.tree.group_of(level, r) == group)
            self.post(
                ("up", -group, share, level + 1, self.tree.group_of(level + 1, rank)), message
            )
        else:
            self.spread(level, group, share, message.bytes())
        self.post(("release", level, group, share), message)

    def spread(self, level: int, group: int, share: int, data: bytes) -> None:
        for member in range(self.tree.members(level, group)):
            down = self.links.setdefault(("down", level, group, member, share), deque())
            down.append((data,))

    def _down(self, level: int, group: int, member: int, share: int, data: bytes) -> None:
        below = next(
            self.tree.group_of(level - 1, rank)
            for rank in range(len(self.inputs))
            if (self.tree.group_of(level, rank), self.tree.member_of(level, rank))
            == (group, member)
        )
        if level > 1:
            self.nodes[level - 1, below, share].on_result(data)
            self.spread(level - 1, below, share, data)
            return
        reply = self.workers[below].on_message(data)
        if reply is not None:
            self.post(("up", below, share, 1, group), reply)

    def _release(self, level: int, group: int, share: int, message: Any, data: bytes) -> None:
        assert message.bytes() == data, "sums changed while they were being sent"
        for slot, round_ in message.frames:
            self.say(level, group, share, self.nodes[level, group, share].released(slot, round_))


EXACT = st.sampled_from(["float32", "float64", "int32", "int64", "uint8"])


@given(case=cases(dtype=EXACT), most=st.integers(2, 4))
def test_sums_through_a_tree_are_those_of_one_level(case: Case, most: int) -> None:
    """Values are integers, so that no order rounds."""
    inputs = case.inputs()
    joined = Joined(case, protocol.Tree.fans_for(len(inputs), most), inputs)
    joined.run()
    expected = decode(sum_in_rank_order(inputs, case.dtype), case.dtype)
    for output in joined.outputs:
        np.testing.assert_array_equal(decode(output, case.dtype), expected)


@given(case=cases(dtype=st.just("float32")))
def test_what_goes_up_from_a_group_is_what_its_members_have(case: Case) -> None:
    """Each block once, whoever has it; and little besides, as who has nothing is silent."""
    inputs = case.inputs()
    joined = Joined(case, protocol.Tree.fans_for(len(inputs), 2), inputs)
    frames = said = 0
    post = joined.post

    def counted(link: tuple, message: Any) -> None:
        nonlocal frames, said
        if link[0] == "up" and link[3] > 1:
            frames += len(message.frames)
            said += len(message.bytes())
        post(link, message)

    joined.post = counted  # type: ignore[method-assign]
    joined.run()
    tree, wanted = joined.tree, 0
    for level in range(1, tree.levels):
        for group in {tree.group_of(level, rank) for rank in range(len(inputs))}:
            members = [a for r, a in enumerate(inputs) if tree.group_of(level, r) == group]
            wanted += int(blocks_of(np.any(members, 0), case.block_size).sum())
    assert said <= wanted * (joined.shape.block_bytes + 21) + frames * (FRAME_BYTES + MESSAGE_BYTES)


def test_a_result_that_is_not_awaited_is_refused() -> None:
    shape = protocol.Shape.fit(
        count=4096, dtype="float32", block_size=256, aggregators=1, max_slots=1, message_bytes=4096
    )
    frame = protocol.Frame(slot=0, round=0, bound=protocol.END)
    data = protocol.encode([frame], shape, kind=2, sender=0)
    top = protocol.Aggregator(shape, 0, 2)
    below = protocol.Aggregator(shape, 0, 2, member=0)
    for aggregator in (top, below):
        with pytest.raises(RuntimeError, match="a result for round 0 of slot 0"):
            aggregator.on_result(data)
