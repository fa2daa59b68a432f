"""Ranks and aggregators of another release beside this one's: they sum, or say why they cannot."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from aggregators import SECRET, Server
from groups import in_threads
from launch import STREAM, Job, launch

import omnihvd
from omnihvd.engine import EngineError, session

ROOT = Path(__file__).parents[2]
MIXED = Path(__file__).parent / "on_ranks/mixed.py"
THIS = f"omnihvd {omnihvd.__version__}"


@pytest.fixture(scope="session")
def last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the last release's wheel is installed."""
    made = subprocess.run([ROOT / ".ci/last-release"], capture_output=True, text=True, timeout=800)
    if made.returncode == 3:
        pytest.skip(made.stderr)
    assert made.returncode == 0, made.stderr
    folder = tmp_path_factory.mktemp("last")
    zipfile.ZipFile(made.stdout.strip()).extractall(folder)
    return folder


def other_version() -> str:
    """It has the same length and the same last character: the linker lets other texts, such as "0",
    share the end of this one in the library."""
    return re.sub(r"\d(?!$)", "9", omnihvd.__version__)


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release that differs from this one in its number alone."""
    folder = tmp_path_factory.mktemp("later")
    package = Path(omnihvd.__file__).parent
    shutil.copytree(package, folder / "omnihvd", ignore=shutil.ignore_patterns("csrc"))
    other = other_version()
    assert other != omnihvd.__version__
    (folder / "omnihvd/version.py").write_text(f'__version__ = "{other}"\n')
    library = folder / "omnihvd/lib/libomnihvd.so"
    code = library.read_bytes()
    said = f" of {THIS}\0".encode()
    assert code.count(said) == 1
    library.write_bytes(code.replace(said, f" of omnihvd {other}\0".encode()))
    return folder


def mixed(what: str, folder: Path, others: list[int], launcher: str = "mpirun") -> Job:
    """On three ranks; `others` have the release of that folder."""
    pytest.importorskip("horovod.torch")
    env = {**STREAM, "OMNIHVD_MIN_BYTES": "1024", "OMNIHVD_JOIN_TIMEOUT": "20"}
    words = [MIXED, what, folder, *map(str, others)]
    return launch(words, 3, launcher=launcher, env=env, timeout=100, check=False)


def findings(job: Job) -> list[dict[str, Any]]:
    text = job.ranks[0]
    return list(json.loads(text[text.index("{") : text.rindex("}") + 1])["findings"])


def test_releases_of_one_protocol_sum(later: Path) -> None:
    job = mixed("sums", later, [1])
    assert job.returncode == 0 and job.output.count("is right") == 3, job.output


def test_check_says_which_release_to_install(later: Path) -> None:
    job = mixed("check", later, [1])
    (bad,) = (found for found in findings(job) if found["good"] is False)
    other = other_version()
    assert str(bad["found"]).startswith(f"omnihvd: {omnihvd.__version__} on rank 0 (")
    assert f", {other} on rank 1 (" in str(bad["found"])
    assert bad["remedy"] == f"install {other} on all hosts"
    assert job.returncode == 1


@pytest.mark.slow
@pytest.mark.timeout(900)  # compiles the last release
@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun --gloo"])
@pytest.mark.parametrize("others", [[0], [2]])
def test_the_last_release_and_this_one(last: Path, others: list[int], launcher: str) -> None:
    job = mixed("sums", last, others, launcher)
    if protocol_of(last) == session.protocol:
        assert job.output.count("is right") == 3, job.output
        return
    assert job.returncode != 0 and "is right" not in job.output, job.output
    assert re.search(
        rf"rank \d uses another version of omnihvd than rank 0 \(.*of {re.escape(THIS)}.*\): "
        r"install the same one on all hosts",
        job.output,
    ), job.output


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_check_warns_of_the_last_release(last: Path) -> None:
    job = mixed("check", last, [2])
    bad = {str(f["found"]).partition(":")[0]: f for f in findings(job) if f["good"] is False}
    assert job.returncode == 1
    assert f"{omnihvd.__version__} on rank 0 (" in str(bad["omnihvd"]["found"])
    assert bad["omnihvd"]["remedy"] == f"install {omnihvd.__version__} on all hosts"
    if protocol_of(last) != session.protocol:
        assert "install the newest omnihvd on all hosts" in str(bad["protocol"]["remedy"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_aggregator_of_the_last_release(last: Path) -> None:
    server = Server(folder=last)
    try:
        values: dict[str, Any] = {"aggregators": [server.address], "secret": SECRET}
        results = in_threads(2, lambda rank, group: None, "ucx", **values)
    finally:
        log = server.end()
    if protocol_of(last) == session.protocol:
        assert results == [None, None], log
        return
    for why in results:
        assert isinstance(why, EngineError)
        assert f"aggregator {server.address}: another version of omnihvd" in str(why)
    assert "another version" in log


def protocol_of(release: Path) -> int:
    """0.2.0, which spoke the first, did not say."""
    program = "from omnihvd.engine import session; print(getattr(session, 'protocol', 1))"
    env = {**os.environ, "PYTHONPATH": str(release)}
    return int(subprocess.check_output([sys.executable, "-c", program], cwd="/", env=env))
