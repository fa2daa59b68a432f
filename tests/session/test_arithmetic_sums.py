"""OMNIHVD_ARITHMETIC through engines: sums, their bounds, and what they cannot be of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from groups import Meeting, all_well, in_threads

from omnihvd.engine import EngineError, codec, session

KINDS = ["integer", "switchml", "fpisa", "fpisa-a"]
COUNT = 20_011


def tensor(rank: int) -> np.ndarray:
    """A third of its blocks is zero; all of one sign, so that FPISA's sums cancel nothing."""
    random = np.random.default_rng(rank)
    keep = np.repeat(random.random(COUNT // 256 + 1) < 0.7, 256)[:COUNT]
    return np.where(keep, 1 + random.random(COUNT), 0).astype(np.float32)


def sums(size: int, kind: str, transport: str = "memory", **values: Any) -> list[np.ndarray]:
    def work(rank: int, group: Any) -> np.ndarray:
        given = tensor(rank)
        out = np.empty_like(given)
        for _ in range(2):  # the second time with all under way
            group.allreduce(given, out)
        in_place = given.copy()
        group.allreduce(in_place, in_place)
        np.testing.assert_array_equal(in_place, out)
        return out

    return all_well(in_threads(size, work, transport, arithmetic=kind, **values))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("size", "transport", "values"),
    [(1, "memory", {}), (2, "ucx", {"streams": 2}), (3, "memory", {"block_size": 100}),
     (5, "memory", {"message_bytes": 4096, "slots": 2, "deterministic": True})],
)  # fmt: skip
def test_all_ranks_have_the_same_sum_within_the_bound(
    size: int, transport: str, values: dict[str, Any], kind: str
) -> None:
    if kind in ("fpisa", "fpisa-a"):
        values = {**values, "deterministic": True}  # the same in place: messages go otherwise
    results = sums(size, kind, transport, **values)
    for result in results:
        assert result.tobytes() == results[0].tobytes()
    exact = np.sum([tensor(rank) for rank in range(size)], 0, dtype=np.float64)
    bits = 30 - (size - 1).bit_length()  # at least
    # docs/arithmetic.md: all numbers lie below 2.
    each = 2.0**-bits if kind in ("integer", "switchml") else 3 * 2.0**-23
    assert abs(results[0] - exact).max() <= size * each + size * 2.0**-23


@pytest.mark.parametrize("kind", ("integer", "switchml"))
def test_infinities_pass_a_tree_of_aggregators(kind: str) -> None:
    """Their blocks take more bytes than floats, from level to level."""

    def work(rank: int, group: Any) -> np.ndarray:
        given = tensor(rank)
        given[100::256] = np.inf if rank == 1 else 1
        group.allreduce(given, given)
        return given

    for result in all_well(in_threads(4, work, arithmetic=kind, levels="2x2", slots=4)):
        assert (
            np.isinf(result[100::256]).all()
            and np.isfinite(np.delete(result, slice(100, None, 256))).all()
        )


@pytest.mark.parametrize("values", [{}, {"block_size": 100, "streams": 2}, {"levels": "2x2"}])
def test_powers_of_two_have_the_same_bits_in_every_run(values: dict[str, Any]) -> None:
    """Whatever the order in which messages come; and they take a byte an element up."""
    by = codec.Codec("natural", seed=5)

    def work(rank: int, group: Any) -> list[bytes]:
        made = []
        for _ in range(3):
            out = np.empty(COUNT, np.float32)
            group.allreduce(tensor(rank), out, codec=by)
            in_place = tensor(rank)
            group.allreduce(in_place, in_place, codec=by)
            made += [out.tobytes(), in_place.tobytes()]
        return made

    runs = [
        bytes_
        for rank in all_well(in_threads(4, work, arithmetic="integer", slots=4, **values))
        for bytes_ in rank
    ]
    assert len(set(runs)) == 1
    got = np.frombuffer(runs[0], np.float32)
    exact = np.sum([tensor(rank) for rank in range(4)], 0, dtype=np.float64)
    assert 0 < np.linalg.norm(got - exact) / np.linalg.norm(exact) < 0.2
    # Each number lies from 1 to 2, so that each draw is 1 or 2: exact sums are whole numbers.
    assert (got == got.round()).all()


def test_sums_of_integers_are_the_same_in_every_run() -> None:
    assert sums(5, "integer")[0].tobytes() == sums(5, "switchml", slots=3)[0].tobytes()


def test_whole_numbers_are_summed_as_ever() -> None:
    def work(rank: int, group: Any) -> tuple[np.ndarray, np.ndarray]:
        whole = np.full(1000, 1 << 30, np.int32)
        half = np.full(1000, 0.1, np.float16)
        group.allreduce(whole, whole)
        group.allreduce(half, half)
        return whole, half

    for whole, half in all_well(in_threads(3, work, arithmetic="integer")):
        assert (whole == 3 * (1 << 30) - (1 << 32)).all()
        np.testing.assert_array_equal(half, np.float16(3 * np.float32(np.float16(0.1))))


def test_a_codec_is_an_error_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHVD_ARITHMETIC", "integer")
    meeting = Meeting(2)

    def work(rank: int, _: Any) -> str:
        gather = meeting.allgather(rank)
        communicator = session.Communicator(rank, 2)
        communicator.meet(gather)
        communicator.set_timeout(20)
        data = np.ones(1000, np.float32)
        library = SimpleNamespace(allgather=gather)
        with pytest.raises(EngineError) as why:
            communicator.sum(data.ctypes.data, 1000, "float32", library, codec.Codec("qsgd", 4))
        return str(why.value)

    for why in all_well(in_threads(2, work)):
        assert "OMNIHVD_ARITHMETIC=integer sums float32 as they are" in why and "qsgd4" in why
        assert "leave out the setting, or the codec" in why
