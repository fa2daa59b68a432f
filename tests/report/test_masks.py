"""Masks say of real gradients which blocks are not zero, and the simulator sums as they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from omnihvd import cli
from omnihvd.bench.patterns import BLOCK
from omnihvd.report import masks
from omnihvd.report.density import count, groups_of
from omnihvd.report.samples import Gradient, Job, Sample, Seen, Unusable, save
from simulator.model import Network, TooLarge, point_of_masks, simulate

SIZES = {"table": 100 * BLOCK, "odd": 70, "scalar": 1, "dense": 3 * BLOCK + 5}
NETWORK = Network(rate=1e9, delay_s=0, streams=1)


def gradients(step: int, rank: int) -> dict[str, np.ndarray]:
    """Rank r has blocks 7 r to 7 r + 9 of the table in step 0, the last 9 in step 1; `odd` only on
    rank 1; no scalar."""
    table = np.zeros(SIZES["table"], np.float32)
    table[7 * rank * BLOCK : (7 * rank + 10 - step) * BLOCK : 31] = 1
    own = {"table": table, "dense": np.ones(SIZES["dense"], np.float32)}
    own["scalar"] = np.zeros(1, np.float32)
    if rank == 1:
        own["odd"] = np.eye(1, SIZES["odd"], 69, dtype=np.float32)[0]
    return own


def whole(step: int, rank: int) -> np.ndarray:
    """All tensors in one buffer, each from a whole group of 32 on."""
    own = gradients(step, rank)
    tensors = [own.get(name, np.zeros(size)) for name, size in SIZES.items()]
    return np.concatenate([np.pad(t, (0, -t.size % masks.GROUP)) for t in tensors])


def presence(step: int, rank: int, block_size: int) -> np.ndarray:
    flat = whole(step, rank)
    return np.pad(flat != 0, (0, -flat.size % block_size)).reshape(-1, block_size).any(1)


def write(path: Path, steps: int = 2, ranks: int = 3) -> None:
    samples = [
        (step, rank, {n: groups_of(count(g)) for n, g in gradients(step, rank).items()})
        for rank in range(ranks)
        for step in range(steps)
    ]
    masks.save(path, SIZES, samples)


@pytest.mark.parametrize("block_size", [32, 64, BLOCK, 1024])
def test_a_file_gives_the_blocks_back(tmp_path: Path, block_size: int) -> None:
    write(tmp_path / "m.npz")
    read = masks.load(tmp_path / "m.npz")
    assert list(read.names) == list(SIZES) and list(read.elements) == list(SIZES.values())
    order = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert list(zip(read.steps, read.ranks)) == order
    expected = [presence(step, rank, block_size) for step, rank in [*order, *order[:2]]]
    assert np.array_equal(read.presence(8, block_size), expected)


def test_the_report_exports_what_it_saw(tmp_path: Path) -> None:
    for rank in range(3):
        seen = Seen(Job(rank, 3, "h", "torch", steps=2, step_s=0.1), [])
        for step in range(2):
            own = gradients(step, rank)
            ready = {name: i / 100 for i, name in enumerate(SIZES)}
            found = {name: Gradient(count(g), ready[name]) for name, g in own.items()}
            seen.samples.append(Sample(step, found, 0.05, 0.01, 0.01))
        save(seen, tmp_path)
    assert cli.main(["report", str(tmp_path), "--masks", str(tmp_path / "m.npz")]) == 0
    write(tmp_path / "expected.npz")
    found, expected = (masks.load(tmp_path / name) for name in ("m.npz", "expected.npz"))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected))


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_the_simulator_sums_them(tmp_path: Path, ranks: int) -> None:
    write(tmp_path / "m.npz")
    outcome = simulate(ranks, point_of_masks(tmp_path / "m.npz"), NETWORK)
    order = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)][:ranks]
    union = np.any([presence(step, rank, BLOCK) for step, rank in order], axis=0)
    assert outcome["union_blocks"] == union.sum()


def simulator(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simulator", "--rate", "10gbit", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_command_says_which_model_and_what_repeats(tmp_path: Path) -> None:
    write(tmp_path / "toy.npz", steps=1)
    done = simulator("--masks", str(tmp_path / "toy.npz"), "--ranks", "2", "4")
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ")[:3] for line in done.stdout.splitlines()[2:]]
    share = np.mean([presence(0, rank, BLOCK) for rank in range(3)])
    text = [f"{4 * whole(0, 0).size / 1e6:g} MB", f"{100 * share:.3g}% toy"]
    assert [[row[0], row[2]] for row in rows] == [["| 2", text[1]], ["| 4", text[1]]]
    assert "3 samples for 4 ranks, so some repeat" in " ".join(done.stderr.split())


def test_what_is_no_file_of_masks(tmp_path: Path) -> None:
    (tmp_path / "m.npz").write_bytes(b"PK\3\4 and no more")
    np.savez(tmp_path / "other.npz", bits=np.zeros(3))
    for name in ("m.npz", "other.npz", "absent.npz"):
        with pytest.raises(Unusable, match="is no file of masks"):
            masks.load(tmp_path / name)
        done = simulator("--masks", str(tmp_path / name))
        assert done.returncode == 1 and "is no file of masks" in done.stderr
        assert "Traceback" not in done.stderr


def test_too_many_ranks(tmp_path: Path) -> None:
    write(tmp_path / "m.npz")
    with pytest.raises(TooLarge, match="ranks with"):
        simulate(100_000, point_of_masks(tmp_path / "m.npz"), NETWORK)
