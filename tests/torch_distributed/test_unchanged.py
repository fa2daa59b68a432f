"""A script that knows nothing of omnihvd, under torchrun."""

from __future__ import annotations

from pathlib import Path

from jobs import SCRIPTS, torchrun


def test_torchrun_restarts_a_job(tmp_path: Path) -> None:
    words = ["--nproc-per-node=2", "--max-restarts=1", "-m", "omnihvd", SCRIPTS / "trains.py"]
    # Else the second attempt finds what Gloo left in the store, as in PyTorch 2.13 by itself.
    env = {"DIES_ONCE": str(tmp_path / "died"), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    said = torchrun(*words, env=env)
    assert said.count("all well") == 2
    assert said.count("takes over PyTorch's sums over Gloo, on 2 ranks") == 2, said  # each attempt
    assert "sums taken: 3, of" in said
