"""The slot protocol explored state by state: explore/explore.cc says how, and what must hold."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "omnihvd" / "csrc"
CXX = shutil.which("c++") or shutil.which("g++")
pytestmark = pytest.mark.skipif(CXX is None, reason="needs a C++ compiler")
PARTS = ("packet.h", "slot.h", "slot_worker.h", "slot_worker.cc", "slot_aggregator.h",
         "slot_aggregator.cc")  # fmt: skip
BEFORE_WRAP = 2**32 - 3


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    found: str  # what an exploration says of it


def compiled(source: Path, parts: Path, out: Path) -> Path:
    """Compiles with `parts` before the product's headers."""
    command = [
        str(CXX),
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-parameter",
    ]
    command += ["-c", f"-I{parts}", f"-I{CSRC}", str(source), "-o", str(out)]
    subprocess.run(command, check=True, timeout=300)
    return out


def parts_of(folder: Path, *changes: Fault) -> Path:
    """A copy of the product's machines, changed."""
    (folder / "innetwork").mkdir(parents=True)
    for part in PARTS:
        shutil.copy(CSRC / "innetwork" / part, folder / "innetwork")
    for change in changes:
        path = folder / "innetwork" / change.file
        source = path.read_text()
        assert source.count(change.old) == 1, f"this place has moved: {change}"
        path.write_text(source.replace(change.old, change.new))
    return folder


class Explorer:
    """Explorations of the product's machines, with small blocks and so many versions."""

    def __init__(self, folder: Path, versions: int) -> None:
        self.folder = folder
        self.opened = [
            Fault("", "slot.h", "INLINE_VERSIONS 8 ", f"INLINE_VERSIONS {versions} ", ""),
            Fault("", "packet.h", "INLINE_ELEMENTS 256 ", "INLINE_ELEMENTS 2 ", ""),
            Fault("", "slot_worker.h", "\n private:", "\n public:", ""),
            Fault("", "slot_aggregator.h", "\n private:", "\n public:", ""),
        ]
        source = HERE / "explore" / "explore.cc"
        self.main = compiled(source, parts_of(folder / "main", *self.opened), folder / "main.o")

    def program(self, *faults: Fault) -> Path:
        folder = self.folder / "-".join(["parts", *(fault.name for fault in faults)])
        parts = parts_of(folder, *self.opened, *faults)
        objects = [self.main]
        for name in ("slot_worker", "slot_aggregator"):
            source = parts / "innetwork" / f"{name}.cc"
            objects.append(compiled(source, parts, folder / f"{name}.o"))
        linked = folder / "explore"
        subprocess.run([str(CXX), *map(str, objects), "-o", str(linked)], check=True, timeout=100)
        return linked


def job(
    slots: int, blocks: int, has: list[list[int]], *, first: int = 0, prompt: bool = True
) -> str:
    """A job in explore's words. has: [sum][worker], bits of the blocks that it has."""
    bits = [*itertools.chain(*has)]
    return " ".join(map(str, (slots, first, int(prompt), blocks, len(has[0]), *bits)))


def choices(workers: int, slots: int, blocks: int, sums: int = 1, **how: Any) -> Iterator[str]:
    """A job for every choice of blocks that workers have, but for their order."""
    each = itertools.combinations_with_replacement(
        itertools.product(range(2**blocks), repeat=sums), workers
    )
    for of_workers in each:
        yield job(slots, blocks, [list(bits) for bits in zip(*of_workers)], **how)


def explored(program: Path, jobs: Iterable[str], timeout: float = 100) -> Counter[str]:
    """Explores jobs until a violation. Returns all counts."""
    total: Counter[str] = Counter()
    given = "\n".join(jobs)
    done = subprocess.run(
        [str(program)], input=given, capture_output=True, text=True, timeout=timeout, check=True
    )
    for line, result in zip(given.splitlines(), map(json.loads, done.stdout.splitlines())):
        assert not result["violation"], f"job {line}: {result['violation']}"
        total.update({"jobs": 1, "states": result["states"], "steps": result["steps"]})
        total.update(result["counts"])
    assert total["jobs"] == len(given.splitlines())
    return total


def every_fate(counts: Counter[str]) -> bool:
    fates = ("taken", "results", "answers", "duplicate", "old", "early")
    return all(counts[fate] for fate in fates) and not counts["impossible"]


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    return Explorer(tmp_path_factory.mktemp("explore"), 3)


@pytest.fixture(scope="module")
def three_versions(explorer: Explorer) -> Path:
    return explorer.program()


# One worker has all blocks, or all have, or they take turns; then a sum that another one begins.
LONG = {
    2: [
        job(2, 8, [[0b11111111, 0], [0, 0b11]]),
        job(2, 8, [[0b11111111, 0b11111111]]),
        job(2, 8, [[0b10101101, 0b1010111], [2, 1]]),
    ],
    3: [job(2, 6, [[0b111111, 0b1100, 0]]), job(2, 4, [[0b1101, 0b0110, 0], [1, 0, 2]])],
}


def test_every_choice_of_blocks(three_versions: Path) -> None:
    jobs = [
        *choices(2, slots=1, blocks=5), *choices(2, slots=1, blocks=2, sums=2),
        *choices(2, slots=2, blocks=3), *choices(3, slots=1, blocks=3),
    ]  # fmt: skip
    assert every_fate(explored(three_versions, jobs))


@pytest.mark.parametrize("workers", [2, 3])
def test_long_sums_over_two_slots(three_versions: Path, workers: int) -> None:
    counts = explored(three_versions, LONG[workers])
    assert every_fate(counts) and counts["states"] > 10_000


def test_workers_that_receive_before_they_send(three_versions: Path) -> None:
    jobs = [*choices(2, slots=1, blocks=3, prompt=False), job(2, 3, [[7, 1]], prompt=False)]
    assert explored(three_versions, jobs)["states"] > 10_000


FAULTS = [
    Fault("overwrites at once", "slot.h", "if (!s->seen && slot_is_needed(s, workers))", "if (0)",
          "a result is overwritten that a worker needs"),
    Fault("adds duplicates", "slot.h", "if (s->seen & bit) return SLOT_DUPLICATE;", "",
          "a slot changes without progress"),
    Fault("forgets the oldest result", "slot.h", "age > INLINE_VERSIONS ||",
          "age >= INLINE_VERSIONS ||", "no fair event leads on"),
    Fault("overwrites a round too soon", "slot.h", "INLINE_VERSIONS) return 1;",
          "INLINE_VERSIONS + 1) return 1;", "a result is overwritten that a worker needs"),
    Fault("answers with the next sum", "slot.h", " || (age == INLINE_VERSIONS && s->seen)", "",
          "a result's sum is wrong"),
    Fault("lets a late datagram set a worker back", "slot.h",
          "if ((__s32)(round - s->heard[worker]) > 0)", "", "a slot changes without progress"),
    Fault("does not answer", "slot.h", "if (flags & INLINE_REPEAT) verdict = SLOT_ANSWER;", "",
          "no fair event leads on"),
    Fault("takes the smallest exponent", "slot.h", "s->exponent[w] > exponent",
          "s->exponent[w] < exponent", "a result's head is wrong"),
    Fault("keeps owners of a later block", "slot.h", "owners = 0;\n      exponent",
          "exponent", "a worker's contribution is called impossible"),
    Fault("does not hear of workers without blocks", "slot.h", "s->heard[worker] = s->round;", "",
          "no fair event leads on"),
    Fault("adds to the sum before", "slot_aggregator.cc", "job.ops->store(", "job.ops->add(",
          "a result's sum is wrong"),
    Fault("workers without a block never repeat", "slot_worker.cc",
          "if (!slot.open || slot.queued) continue;",
          "if (!slot.open || slot.queued || !slot.owner) continue;", "no fair event leads on"),
    Fault("workers take any later result", "slot_worker.cc",
          "if (head.round != slot.round) {", "if (false) {", "worker"),
    Fault("workers answer with their own exponent", "slot_worker.cc",
          "slot.exponent = head.exponent;", "slot.exponent = slot.next_exponent;",
          "a sum is read by a wrong exponent"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault, explorer: Explorer) -> None:
    with pytest.raises(AssertionError, match=fault.found):
        explored(explorer.program(fault), [*LONG[2], *LONG[3]])


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("versions", [1, 2, 3, 4, 8])
def test_larger_bounds_with_any_number_of_versions(versions: int, tmp_path: Path) -> None:
    jobs = [
        *choices(2, slots=2, blocks=4), *choices(3, slots=2, blocks=2, sums=2),
        *choices(2, slots=1, blocks=3, sums=2), *LONG[2], *LONG[3],
        job(1, 24, [[2**24 - 1, 0]]), job(2, 12, [[0b111100001111, 0], [3, 1], [1, 2]]),
    ]  # fmt: skip
    if 2**32 % versions == 0:  # rounds may wrap around
        jobs += choices(2, slots=1, blocks=5, first=BEFORE_WRAP)
    assert every_fate(explored(Explorer(tmp_path, versions).program(), jobs, 1400))
