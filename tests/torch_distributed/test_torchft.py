"""DiLoCo under torchft: a replica is killed, the others go on, and it comes back."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from environment import end_with_parent

pytest.importorskip("torchft", reason="pip install torchft")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

EXAMPLE = Path(__file__).parents[2] / "examples/torchft_diloco.py"
ROUND = re.compile(r"^round (\d+): (\d) replicas, loss (\S+), parameters (\w+)$", re.M)
SETTINGS = {"OMNIHVD_WAY": "stream", "OMNIHVD_MIN_BYTES": "1024", "OMP_NUM_THREADS": "1"}


LIGHTHOUSE = """
import time
from torchft.coordination import LighthouseServer
server = LighthouseServer("127.0.0.1:0", 2, join_timeout_ms=1000, heartbeat_timeout_ms=2000)
print(server.address(), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def lighthouse() -> Iterator[str]:
    """Its URL; it ends with the test."""
    command = [sys.executable, "-c", LIGHTHOUSE]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent
    )
    assert process.stdout is not None
    port = process.stdout.readline().strip().rpartition(":")[2]  # it says the host's name, too
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.communicate()


class Replica:
    """A process that runs the example until it is killed, or has done `rounds`."""

    def __init__(self, name: str, folder: Path, lighthouse: str, rounds: int) -> None:
        self.output = folder / f"{name}-{time.monotonic_ns()}"
        words = ["--replica", name, "--rounds", rounds, "--sync-every", 4, "--timeout", 20]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, EXAMPLE, *map(str, words)],
                env={**os.environ, **SETTINGS, "TORCHFT_LIGHTHOUSE": lighthouse},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )

    def rounds(self) -> list[tuple[int, int, float, str]]:
        """(number, replicas, loss, digest) of each that it has finished."""
        found = ROUND.findall(self.output.read_text())
        return [(int(n), int(size), float(loss), digest) for n, size, loss, digest in found]

    def wait_for(self, sizes: list[int], beyond: int = 0, timeout: float = 60) -> int:
        """The number of the last round of one that had as many replicas; AssertionError with all
        that it said if none comes."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.process.poll() is None:
            for number, size, _, _ in self.rounds():
                if number > beyond and size in sizes:
                    return number
            time.sleep(0.05)
        raise AssertionError(f"no round of {sizes} replicas\n{self.output.read_text()[-6000:]}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def test_a_replica_that_is_killed_comes_back(lighthouse: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as alive:

        def begin(name: str) -> Replica:
            replica = Replica(name, tmp_path, lighthouse, rounds=1_000_000)
            alive.callback(replica.kill)
            return replica

        first, second, third = begin("1"), begin("2"), begin("3")
        together = first.wait_for([3])
        third.kill()
        alone = first.wait_for([2], beyond=together)
        back = begin("3")
        again = first.wait_for([3], beyond=alone)
        back.wait_for([3], beyond=again)
        second.wait_for([3], beyond=again)
    # Whoever finished a round had the same parameters after it, bit for bit.
    by_round: dict[int, set[str]] = {}
    for replica in (first, second, third, back):
        for number, _, _, digest in replica.rounds():
            by_round.setdefault(number, set()).add(digest)
    assert all(len(digests) == 1 for digests in by_round.values()), by_round
    assert len(set.union(*by_round.values())) == len(by_round)  # and they change
    assert back.rounds()[0][0] > together  # it began with what the others had


def test_outer_gradients_are_summed_by_omnihvd(lighthouse: str, tmp_path: Path) -> None:
    replicas = [Replica(name, tmp_path, lighthouse, rounds=3) for name in "12"]
    for replica in replicas:
        assert replica.process.wait(60) == 0, replica.output.read_text()[-6000:]
    for replica in replicas:
        losses = [loss for _, _, loss, _ in replica.rounds()]
        assert [number for number, _, _, _ in replica.rounds()] == [1, 2, 3]
        assert all(loss < 1.5 for loss in losses)
        text = replica.output.read_text()
        calls, dense, sent = (
            int(re.findall(rf"'{name}': (\d+)", text)[0])
            for name in ("calls", "bytes_in", "bytes_sent")
        )
        assert calls >= 3 and dense >= 3 * 50_000 * 32 * 4 and 0 < sent < dense / 2, text[-3000:]
