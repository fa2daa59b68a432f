"""UCX leaves alone what belongs to the rest of the process: MPI, signals, standard output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launch import launch

HERE = Path(__file__).parent


def in_new_process(code: str, cwd: Path = HERE, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), **env},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.mark.parametrize("first", ["mpi", "ucx"])
def test_beside_mpi(first: str) -> None:
    pytest.importorskip("mpi4py")
    job = launch([HERE / "on_ranks" / "beside_mpi.py", first], 2)
    assert all(output.strip() == "well" for output in job.ranks), job.output


def test_no_signal_is_caught(tmp_path: Path) -> None:
    # Where UCX is built so that it takes errors' signals by default, as it is for Open MPI's wheel.
    (tmp_path / "ucx.conf").write_text("UCX_HANDLE_ERRORS=bt\n")
    code = """if True:
    from pathlib import Path
    def caught():
        status = Path("/proc/self/status").read_text()
        mask = int(status.split("SigCgt:")[1].split()[0], 16)
        return mask & 0x7FFFFFFF  # signals from 32 on are the C library's own, for its threads
    before = caught()
    from ends import End, poll_until
    a, b = End("ucx-any"), End("ucx-any")
    a.send(a.connect(b), b"x")
    poll_until([a, b], lambda: bool(b.messages))
    assert caught() == before, f"{before:x} {caught():x}"
    """
    in_new_process(code, tmp_path)


def test_settings_of_the_environment_go_before() -> None:
    code = """if True:
    from _engine_tests.transport import Transport
    print(Transport.ucx().describe())
    """
    assert "tcp/" in in_new_process(code, UCX_TLS="tcp").stdout
    assert "tcp/" not in in_new_process(code, UCX_TLS="self,sysv,posix").stdout
    # UCX refuses this one: so it is used, and not ours.
    with pytest.raises(subprocess.CalledProcessError) as failure:
        in_new_process(code, UCX_TCP_TX_SEG_SIZE="nonsense")
    assert "TX_SEG_SIZE: 'nonsense'" in failure.value.stderr


def test_no_part_of_ucx_makes_cuda_calls() -> None:
    """UCX says of a part that is named, and is not there, that it is not available."""
    code = """if True:
    from _engine_tests.transport import Transport
    print(Transport.ucx().describe())
    """
    for asked, tcp in {"cuda,tcp,gdr_copy": True, "all": True, "^tcp": False}.items():
        done = in_new_process(code, UCX_TLS=asked)
        assert ("tcp/" in done.stdout) == tcp, done.stdout
        assert "cuda" not in done.stdout and "not available" not in done.stderr, done.stderr


def test_unusable_devices_are_named() -> None:
    code = """if True:
    from _engine_tests.transport import Transport
    Transport.ucx()
    """
    with pytest.raises(subprocess.CalledProcessError) as failure:
        in_new_process(code, UCX_TLS="tcp", UCX_NET_DEVICES="none0")
    assert "EngineError" in failure.value.stderr
    assert "UCX_NET_DEVICES" in failure.value.stderr
    assert failure.value.stdout == "", "UCX writes to standard output"
