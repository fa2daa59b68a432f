"""The schedule that other simulators get is what was simulated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from omnihvd.bench.patterns import Point
from omnihvd.engine import EngineError
from simulator import command
from simulator.model import Network, simulate

DELAY = 1e-5
FREE = Network(rate=1e30, delay_s=DELAY, streams=2)  # links take no time: only what waits for what


class Operation(NamedTuple):
    kind: str
    number: int  # bytes, or picoseconds
    peer: int
    tag: int
    requires: list[tuple[int, str]]


def parse(text: str) -> dict[tuple[int, str], Operation]:
    """[rank, label], in an order in which each comes behind what it requires on its rank."""
    header, *ranks = re.split(r"\nrank (\d+) \{\n", text)
    found: dict[tuple[int, str], Operation] = {}
    for rank, lines in zip(map(int, ranks[::2]), ranks[1::2]):
        for line in lines.strip().removesuffix("}").strip().splitlines():
            words = line.split()
            if words[1] == "requires":
                assert (rank, words[2]) in found
                found[rank, words[0]].requires.append((rank, words[2]))
                continue
            kind, number = words[1], int(words[2].removesuffix("b"))
            peer, tag = (int(words[4]), int(words[6])) if kind != "calc" else (-1, -1)
            found[rank, words[0][:-1]] = Operation(kind, number, peer, tag, [])
    assert header.split() == ["num_ranks", str(len(ranks) // 2)]
    return found


def longest(operations: dict[tuple[int, str], Operation]) -> float:
    """Seconds until the last has ended, where messages take DELAY and are of any size."""
    sent = {(at[0], o.peer, o.tag): at for at, o in operations.items() if o.kind == "send"}
    ends: dict[tuple[int, str], float] = {}
    waiting = list(operations)
    while waiting:
        later = []
        for at in waiting:
            one = operations[at]
            before = list(one.requires)
            if one.kind == "recv":
                before.append(sent[one.peer, at[0], one.tag])
            if all(b in ends for b in before):
                begins = max((ends[b] for b in before), default=0.0)
                takes = {"calc": one.number * 1e-12, "recv": DELAY, "send": 0.0}
                ends[at] = begins + takes[one.kind]
            else:
                later.append(at)
        assert len(later) < len(waiting), "a circle"
        waiting = later
    return max(ends.values())


@pytest.mark.parametrize(
    ("ranks", "dedicated", "fans"), [(1, 0, ()), (3, 0, ()), (4, 2, ()), (8, 0, (2, 2, 2))]
)
@pytest.mark.parametrize("late_s", [0.0, 0.01])
def test_its_longest_path_is_the_time(
    ranks: int, dedicated: int, fans: tuple[int, ...], late_s: float
) -> None:
    point = Point(200_000, 0.3, "random")
    outcome = simulate(ranks, point, FREE, dedicated=dedicated, fans=fans, late_s=late_s, goal=True)
    operations = parse(outcome["goal"])
    assert longest(operations) == pytest.approx(outcome["seconds"], rel=1e-6)
    sends = [o for o in operations.values() if o.kind == "send"]
    received = {
        (o.peer, at[0], o.tag, o.number) for at, o in operations.items() if o.kind == "recv"
    }
    assert len(sends) == len(received) == outcome["messages"]
    assert received == {
        (at[0], o.peer, o.tag, o.number) for at, o in operations.items() if o.kind == "send"
    }
    assert sum(o.number for o in sends) == pytest.approx(outcome["bytes"], abs=len(sends))


@pytest.mark.parametrize("what", [{"loss": 0.1}, {"cores": 2}, {"core_rate": 1e9}])
def test_what_it_cannot_say(what: dict[str, float]) -> None:
    network = FREE.__class__(rate=1e9, streams=1, **what)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="a schedule in GOAL knows neither"):
        simulate(2, Point(1000, 1.0), network, goal=True)


def test_it_has_few_threads() -> None:
    point = Point(1000, 1.0)
    assert simulate(2, point, Network(rate=1e9, streams=254), goal=True)["goal"]
    with pytest.raises(EngineError, match="at most 254 threads a host"):
        simulate(2, point, Network(rate=1e9, streams=255), goal=True)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.goal"
    words = ["--ranks", "3", "2", "--rate", "10gbit", "--bytes", "1KB", "--densities", "1"]
    assert command.main([*words, "--delay", "5us", "--goal", str(file)]) == 0
    assert file.read_text().startswith("num_ranks 3\n")
    said = capsys.readouterr().err
    assert said.count("LogGOPSim -f BIN -o 0 -g 0") == 1 and "-L 5000000 -G 846" in said
