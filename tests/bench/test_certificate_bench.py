"""The cost of a certificate that benchmarks/certificate.py tells from turns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks import certificate


def test_turns_that_another_program_disturbs_do_not_count() -> None:
    """A slow machine slows both of a pair, and a disturbance one of them."""
    without = [1.0 + turn for turn in range(certificate.TURNS)]
    with_it = [2.0 + turn for turn in range(certificate.TURNS)]
    with_it[0], with_it[5], without[7] = 90.0, 90.0, 50.0
    found = certificate.cost(without, with_it)
    assert found["difference_s"] == 1 and found["interval_s"] == [1, 1]
    noisy = [value + 0.1 * turn for turn, value in enumerate(with_it)]
    without[7] = 8.0
    low, high = certificate.cost(without, noisy)["interval_s"]
    assert low == pytest.approx(2.8) and high == pytest.approx(4.3)


@pytest.mark.parametrize("option", ["--time", "--seeds=1"])
def test_each_measurement_leaves_the_other(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "certificate.json"
    before: dict[str, Any] = {"commit": "0", "results": [1], "time": {"commit": "1"}}
    file.write_text(json.dumps(before))
    monkeypatch.setattr(certificate, "RESULT", file)
    monkeypatch.setattr(sys, "argv", ["certificate.py", option])
    jobs = {"--time": [[1.0] * 48, [2.0] * 48], "--seeds=1": [2]}
    monkeypatch.setattr(certificate, "of_job", lambda *_: jobs[option])
    certificate.main()
    after = json.loads(file.read_text())
    if option == "--time":
        assert (after["commit"], after["results"]) == ("0", [1])
        assert after["time"]["difference_s"] == 1 and len(after["time"]["commit"]) == 40
    else:
        assert after["time"] == {"commit": "1"}
        assert after["results"] == [2] and len(after["commit"]) == 40
