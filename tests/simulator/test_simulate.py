"""Simulated sums are right, take what links and processors do, and send what the engine sends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "session"))
from groups import all_well, in_threads

import omnihvd
from omnihvd.bench.patterns import BLOCK, Point, part, present_blocks
from omnihvd.engine import EngineError
from simulator import _core, command
from simulator.model import MEASURED, Costs, Network, TooLarge, simulate

FREE = Costs(0, 0, 0, 0)  # processors that take no time
FAST = Network(rate=1e9, delay_s=0, streams=1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dedicated", [0, 1, 3])
@pytest.mark.parametrize("count", [1, BLOCK, BLOCK + 1, 60 * BLOCK, 3001 * BLOCK - 7])
def test_all_ranks_get_all_sums(ranks: int, dedicated: int, count: int) -> None:
    """simulate() verifies each block that is written, on each rank; here, that all have ended."""
    for density in (0.0, 0.3, 1.0):
        point = Point(count, density)
        outcome = simulate(ranks, point, FAST, dedicated=dedicated)
        present = np.array([present_blocks(point, rank, ranks) for rank in range(ranks)])
        assert outcome["union_blocks"] == present.any(0).sum()
        assert len(outcome["done_s"]) == ranks and 0 < outcome["seconds"] < 1


@pytest.mark.parametrize(
    ("ranks", "fans"),
    [(4, (2, 2)), (9, (3, 3)), (7, (3, 3)), (13, (2, 4, 2)), (2, (2,)), (1, (3,))],
)
@pytest.mark.parametrize("dedicated", [0, 3])
def test_levels_give_the_same_sums(ranks: int, fans: tuple[int, ...], dedicated: int) -> None:
    for count, density in ((1, 1.0), (60 * BLOCK, 0.3), (3001 * BLOCK - 7, 0.05), (700_000, 1.0)):
        point = Point(count, density)
        flat, levels = (
            simulate(ranks, point, FAST, dedicated=dedicated, fans=f) for f in ((), fans)
        )
        assert levels["union_blocks"] == flat["union_blocks"]
        assert len(levels["done_s"]) == ranks


def test_levels_are_for_many_ranks() -> None:
    """Each rank has few peers, and waits for few messages."""
    point, network = Point(1_000_000, 0.05, "identical"), Network(12.5e9, 5e-6, streams=1)
    flat, levels = (simulate(256, point, network, fans=fans) for fans in ((), (16, 16)))
    assert (flat["most_peers"], levels["most_peers"]) == (255, 30)
    assert levels["messages"] < flat["messages"] / 4
    assert levels["seconds"] < flat["seconds"] / 3
    # As reduce-scatters one after the other: the second is of a 16th.
    assert levels["bytes"] < 1.1 * flat["bytes"]


@pytest.mark.parametrize("streams", [2, 4])
def test_engine_threads_share_a_sum(streams: int) -> None:
    point = Point(20_000 * BLOCK, 0.1)
    alone, shared = (
        simulate(4, point, Network(1e12, 0, streams=threads)) for threads in (1, streams)
    )
    assert alone["union_blocks"] == shared["union_blocks"]
    assert alone["seconds"] / streams < shared["seconds"] < 0.8 * alone["seconds"]


@pytest.mark.parametrize(("ranks", "dedicated"), [(2, 0), (5, 0), (4, 4), (6, 2)])
@pytest.mark.parametrize("density", [1.0, 0.1])
def test_links_are_the_bound_where_processors_are_fast(
    ranks: int, dedicated: int, density: float
) -> None:
    point = Point(40_000 * BLOCK, density)
    outcome = simulate(ranks, point, FAST, dedicated=dedicated, costs=FREE)
    # The bound is that of equal shares, which drawn blocks have nearly.
    assert 0.99 < outcome["seconds"] / outcome["bound_s"] < 1.25
    assert outcome["most_bytes"] / FAST.rate < 1.0001 * outcome["seconds"]


def test_a_core_of_the_network_is_a_bound() -> None:
    point = Point(10_000 * BLOCK, 1.0)
    slow = Network(1e9, 0, core_rate=1e9, streams=1)
    outcome = simulate(4, point, slow, costs=FREE)
    assert 1.0001 * outcome["seconds"] > outcome["bytes"] / 1e9 > 2 * outcome["bound_s"]


def test_a_core_may_be_slower_than_a_link() -> None:
    slow = Network(1e9, 0, core_rate=1e6, streams=1)
    outcome = simulate(2, Point(4 * BLOCK, 1.0), slow, costs=FREE)
    assert outcome["seconds"] > 0.99 * outcome["bytes"] / 1e6


def test_all_wait_for_who_is_late() -> None:
    point = Point(1000 * BLOCK, 0.1)
    on_time, late = (simulate(3, point, FAST, late_s=late_s) for late_s in (0.0, 0.5))
    assert late["seconds"] == pytest.approx(0.5 + on_time["seconds"], rel=0.01)
    assert min(late["done_s"]) > 0.5


@pytest.mark.parametrize("dedicated", [0, 2])
@pytest.mark.parametrize("loss", [0.001, 0.1])
def test_sums_are_right_over_a_network_that_loses_datagrams(loss: float, dedicated: int) -> None:
    point = Point(2000 * BLOCK, 0.2)
    slow = Network(1e8, 100e-6, loss=loss, streams=1)
    outcome = simulate(3, point, slow, dedicated=dedicated)
    assert outcome["union_blocks"] == simulate(3, point, FAST)["union_blocks"]
    # Besides what is lost, some behind which nothing comes for longer than a round trip took.
    assert 0 < outcome["again"] < (0.2 + 2 * loss) * outcome["datagrams"]
    assert outcome["seconds"] > outcome["bound_s"]


def test_levels_over_a_network_that_loses_datagrams() -> None:
    """A result that overtakes the one before would end the sum."""
    point, lossy = Point(700_000, 1.0), Network(1e8, 100e-6, loss=0.02, streams=1)
    outcome = simulate(8, point, lossy, fans=(2, 2, 2))
    assert outcome["union_blocks"] == simulate(8, point, FAST)["union_blocks"]
    assert outcome["again"] > 0


def test_what_is_lost_follows_from_the_seed() -> None:
    point, lossy = Point(500 * BLOCK, 1.0), Network(1e8, 100e-6, loss=0.05, streams=1)
    assert simulate(3, point, lossy) == simulate(3, point, lossy)


def test_hosts_that_share_cores_take_turns() -> None:
    point = Point(10_000 * BLOCK, 1.0)
    times = [simulate(8, point, Network(1e12, 0, cores=n, streams=1))["seconds"] for n in (1, 2, 0)]
    assert times[0] > 1.8 * times[1] > 3 * times[2]


def test_the_same_job_has_the_same_outcome() -> None:
    point = Point(5000 * BLOCK, 0.2)
    assert simulate(7, point, FAST) == simulate(7, point, FAST)


@pytest.mark.parametrize("density", [1.0, 0.1, 0.01])
def test_it_sends_what_the_engine_sends(density: float) -> None:
    """How many messages there are depends on who is how fast; the bytes hardly do, and frames not
    at all."""
    ranks, point = 3, Point(20_000 * BLOCK, density)
    figures = omnihvd.Statistics()

    def work(rank: int, group: Any) -> None:
        x = part(point, rank, ranks)
        group.allreduce(x, x)

    all_well(in_threads(ranks, work, streams=1))
    real = figures.read()
    simulated = simulate(ranks, point, FAST)
    assert simulated["frames"] == real["frames_sent"]
    assert simulated["bytes"] == pytest.approx(real["bytes_sent"], rel=0.02)
    assert ranks * simulated["union_blocks"] == real["result_blocks"]


def test_progress_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    shares: list[float] = []
    simulate(64, Point(5000 * BLOCK, 0.5), FAST, progress=shares.append)
    assert len(shares) >= 3 and sorted(shares) == shares and 0 <= shares[0] < shares[-1] <= 1
    written: list[dict[str, Any]] = []
    progress = command.Progress(64, Point(250_000, 0.5), written.append)
    progress(0.1)
    assert written == [], "too soon"
    progress.told -= 2 * command.TOLD_S
    progress(0.25)
    assert [(w["ranks"], w["share"]) for w in written] == [(64, 0.25)]
    assert written[0]["left_s"] == pytest.approx(3 * written[0]["took_s"])
    assert "64 ranks, 1 MB, 50%: 25% after" in capsys.readouterr().err


def test_jobs_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    about: dict[str, Any] = {"workers": 1, "dedicated": 0, "shares": 1, "fans": [2], "bytes": 1024}
    about |= {"block_bytes": 1024, "message_bytes": 61_440, "slots": 1, "streams": 1}
    about |= {"scan_ahead": 0, "loss": 0.0, "late_s": 0.0, "goal": False}
    costs = _core.Costs(rate=1e9, core_rate=0, delay=0, cores=0, **FREE._asdict())
    for has, message in (
        (np.ones((2, 1), bool), "said of each rank"),
        (np.ones((1, 3), bool), "1 blocks, not 3"),
    ):
        with pytest.raises(EngineError, match=message):
            _core.simulate(_core.Job(**about, has=has), costs)
    with pytest.raises(TooLarge, match=r"need about \d+ GB.*--aggregators"):
        simulate(100_000, Point(BLOCK, 1.0), FAST)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simulator", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command(tmp_path: Path) -> None:
    words = "--ranks 2 64 --rate 10gbit --delay 10us --bytes 1MB --densities 0.1 --aggregators 2"
    done = run(*words.split(), "--json", str(tmp_path / "x.json"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" | ")[:3] for line in lines[2:]] == [
        [f"| {ranks}", "1 MB", "10% random"] for ranks in (2, 64)
    ]
    content = json.loads((tmp_path / "x.json").read_text())
    assert [r["ranks"] for r in content["results"]] == [2, 64]
    assert all(r["seconds"] > r["bound_s"] for r in content["results"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "0"], "'0' is not a number of ranks"),
        (["--densities", "2"], "not a share from 0 to 1"),
        (["--loss", "1"], "from 0 to less than 1"),
        (["--rate", "fast"], "is not a rate"),
        (["--aggregators", "-1"], "not negative"),
        (["--levels", "many"], "are numbers above 1, such as 16 16, or auto"),
        (["--levels", "16", "1"], "are numbers above 1, such as 16 16, or auto"),
        (["--ranks", "9", "--levels", "2", "2"], "3 groups of 9 ranks apart"),
        (["--json", "/absent/x.json"], "No such file"),
        (["--goal", "/absent/x.goal"], "No such file"),
        (["--faults", "--json", "/absent/x.json"], "No such file"),
        (["--ranks", "1000000"], "ranks with 1000000 aggregators need about"),
    ],
)
def test_nonsense_is_refused(words: list[str], message: str) -> None:
    done = run(*words)
    assert done.returncode != 0 and message in done.stderr
    assert "Traceback" not in done.stderr


def test_costs_are_those_that_were_measured() -> None:
    """A new measurement changes the results, and might leave the model as it is."""
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "simulation.json"
    assert MEASURED._asdict() == json.loads(results.read_text())["costs"]


def test_levels_are_those_of_the_setting() -> None:
    """With dedicated aggregators auto is one level, and a small job drops levels from the top."""
    assert command.fans(["auto"], 256, 64) == [256]
    assert len(command.fans(["auto"], 256)) == 2
    assert command.fans(["8", "8"], 8) == [8]
    assert command.fans([], 256) == []


def test_points_are_in_the_order_of_the_table() -> None:
    args = command.parser().parse_args(["--ranks", "2", "4", "--densities", "1", "0"])
    assert [(n, p.density) for n, p in command.points(args)] == [(2, 1), (4, 1), (2, 0), (4, 0)]
    assert command.seconds("250us") == 250e-6 and command.seconds("1.5ms") == 1.5e-3
