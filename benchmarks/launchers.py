"""The language model under every launcher, on hosts with shaped links.

    sudo python benchmarks/launchers.py [--hosts 4] [--rate 1gbit] [--steps 30] [--only NAME ...]

The same training, from the same seed, one rank a host: by Horovod over MPI and Gloo, by PyTorch's
DDP, on Ray, and in an elastic job in which a rank is killed half-way and another host takes its
place; without omnihvd, where that is possible, and with it. Plain Horovod over MPI has the fastest
of Open MPI's settings. Fails unless all losses are those of
plain Horovod over MPI. Writes results/launchers.json, with each step's time on rank 0 and every
loss.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from training import TOLERANCE, WARM_UP, at_its_best, largest_difference

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.lab import SSH, Host, Lab, mpirun_env, run  # noqa: E402

EXAMPLES = ROOT / "examples"
RAY_DRIVER = Path(__file__).with_name("launchers_ray.py")
RESULTS = Path(__file__).parent / "results"
REFERENCE = "Horovod, MPI"
TIMEOUT = 100.0  # seconds, of each training

Words = list[str]
Launch = Callable[[Lab, int, Path, Words], None]  # ..., how many hosts, a folder, options


def environment(**more: str) -> dict[str, str]:
    """The environment of launchers and ranks: one thread a rank, and ssh between the hosts."""
    mine = mpirun_env(2)
    return {
        **mine,
        "PATH": SSH + os.pathsep + mine["PATH"],
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLES)]),
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        **more,
    }


def script(name: str, *words: str) -> Words:
    return [sys.executable, str(EXAMPLES / name), *words]


def over_mpi(*words: str) -> Launch:
    def launch(lab: Lab, hosts: int, folder: Path, options: Words) -> None:
        command = script("pytorch_language_model.py", *words, *options)
        lab.mpirun(command, hosts=lab.hosts[:hosts], env=environment(), timeout=TIMEOUT)

    return launch


def horovodrun(lab: Lab, options: Sequence[str], command: Words) -> Words:
    launcher = ["horovodrun", "--network-interface", "eth0", *options]
    return lab.hosts[0].command([*launcher, *command])


def over_gloo(*words: str) -> Launch:
    def launch(lab: Lab, hosts: int, folder: Path, options: Words) -> None:
        where = ",".join(f"{host.name}:1" for host in lab.hosts[:hosts])
        command = script("pytorch_language_model.py", *words, *options)
        launcher = horovodrun(lab, ["--gloo", "-np", str(hosts), "-H", where], command)
        run(launcher, env=environment(), timeout=TIMEOUT)

    return launch


def torchrun(*words: str, under: bool = False) -> Launch:
    def launch(lab: Lab, hosts: int, folder: Path, options: Words) -> None:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(hosts)]
        launcher += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "1"]
        launcher += ["--rdzv-endpoint", "h0:29400", *(["-m", "omnihvd"] if under else [])]
        command = [*launcher, *script("pytorch_ddp.py")[1:], *words, *options]
        env = environment(GLOO_SOCKET_IFNAME="eth0")
        beside([host.command(command) for host in lab.hosts[:hosts]], env)

    return launch


def beside(commands: Sequence[Words], env: Mapping[str, str]) -> None:
    """Runs the commands side by side; all end when one fails, or after TIMEOUT."""
    started = [subprocess.Popen(c, env=env, start_new_session=True) for c in commands]
    deadline = time.monotonic() + TIMEOUT
    try:
        while any(process.poll() is None for process in started):
            if any(process.returncode for process in started) or time.monotonic() > deadline:
                raise SystemExit(f"failed, or not done after {TIMEOUT:.0f} s: {commands[0]}")
            time.sleep(0.1)
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def on_ray(lab: Lab, hosts: int, folder: Path, options: Words) -> None:
    env = environment(RAY_DISABLE_IMPORT_WARNING="1", RAY_USAGE_STATS_ENABLED="0")
    for host in lab.hosts[:hosts]:
        role = ["--address", f"{lab.hosts[0].address}:6379"]
        if host is lab.hosts[0]:
            role = ["--head", "--port", "6379", "--include-dashboard", "false"]
            role += ["--temp-dir", str(folder / "ray")]
        small = ["--num-cpus", "1", "--object-store-memory", "100000000"]
        address = ["--node-ip-address", host.address]
        start = host.command(["ray", "start", *role, *address, *small])
        run(start, env=env, timeout=TIMEOUT, stdout=subprocess.DEVNULL)
    train = script("pytorch_language_model.py", "--compression", "omnireduce", *options)[1:]
    driver = [sys.executable, str(RAY_DRIVER), str(hosts), *train]
    run(lab.hosts[0].command(driver), env=env, timeout=TIMEOUT)
    stop = lab.hosts[0].command(["ray", "stop", "--force"])  # all that it sees, on any host
    run(stop, env=env, timeout=TIMEOUT, stdout=subprocess.DEVNULL)


def elastic(lab: Lab, hosts: int, folder: Path, options: Words) -> None:
    """The last host's rank is killed half-way. Horovod leaves that host alone and takes another."""
    steps = int(options[options.index("--steps") + 1])
    listed = folder / "hosts"
    listed.write_text("".join(f"{host.name}:1\n" for host in lab.hosts[:hosts]))
    discover = folder / "discover"
    discover.write_text(f"#!/bin/sh\ncat {listed}\n")
    discover.chmod(0o700)
    progress = folder / "progress"
    launcher = horovodrun(
        lab,
        [
            *("-np", str(hosts), "--min-np", str(hosts), "--max-np", str(hosts)),
            *("--host-discovery-script", str(discover)),
        ],
        script("pytorch_elastic.py", *options, "--log-every", "5"),
    )
    with progress.open("w") as output:
        env = environment(
            HOROVOD_GLOO_TIMEOUT_SECONDS="10", OMNIHVD_LOG="info"
        )  # after which all notice
        job = subprocess.Popen(launcher, env=env, stdout=output, start_new_session=True)
        try:
            wait_for(lambda: f"step {steps // 2 // 5 * 5}/" in progress.read_text(), job)
            os.kill(rank_on(lab.hosts[hosts - 1]), signal.SIGKILL)
            with listed.open("a") as more:
                more.write(f"{lab.hosts[hosts].name}:1\n")
            wait_for(lambda: job.poll() is not None, job)
            if job.returncode:
                raise SystemExit("the elastic job failed")
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
            print(progress.read_text(), end="", flush=True)


def wait_for(happened: Callable[[], bool], job: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not happened():
        if job.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the elastic job ended too early, or got nowhere")
        time.sleep(0.05)


def rank_on(host: Host) -> int:
    """The process number, as seen from here, of the rank that runs on a host."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        ours = words[1:2] == [str(EXAMPLES / "pytorch_elastic.py")]
        if ours and process.environ().get("HOROVOD_HOSTNAME") == host.name:
            return int(process.pid)
    raise SystemExit(f"no rank runs on {host.name}")


LAUNCHERS: dict[str, Launch] = {
    "Horovod, MPI, omnihvd": over_mpi("--compression", "omnireduce"),
    "Horovod, Gloo": over_gloo(),
    "Horovod, Gloo, omnihvd": over_gloo("--compression", "omnireduce"),
    "DDP": torchrun(),
    "DDP, omnihvd imported": torchrun("--omnireduce"),
    "DDP, omnihvd's hook": torchrun("--omnireduce", "hook"),
    "DDP, python -m omnihvd": torchrun(under=True),
    "Ray, omnihvd": on_ray,
    "elastic, omnihvd, a rank killed": elastic,
}


def measure(lab: Lab, hosts: int, launch: Launch, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        before = sum(traffic.sent for traffic in lab.traffic())
        launch(lab, hosts, Path(folder), ["--steps", str(steps), "--json", str(path)])
        report: dict[str, Any] = json.loads(path.read_text())
    sent = sum(traffic.sent for traffic in lab.traffic()) - before
    report.pop("stats", None)
    report["median_s"] = statistics.median(report["step_seconds"][WARM_UP:])
    report["link_bytes"] = sent / steps / hosts  # a host and step, start-up included
    return report


def check_losses(results: Mapping[str, Mapping[str, Any]]) -> None:
    plain = results[REFERENCE]["losses"]
    for name, result in results.items():
        if len(result["losses"]) != len(plain):
            raise SystemExit(f"{name}: {len(result['losses'])} losses instead of {len(plain)}")
        worst = largest_difference(plain, result["losses"])
        if worst > TOLERANCE:
            raise SystemExit(f"{name}: losses differ by {worst:.2g}: it trains something else")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit", help="of each link, each way")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--only", nargs="+", choices=LAUNCHERS, help="with " + REFERENCE)
    parser.add_argument("--output", type=Path, default=RESULTS / "launchers.json")
    args = parser.parse_args()
    if args.steps < 4 * WARM_UP:
        parser.error(f"--steps: at least {4 * WARM_UP}")

    results: dict[str, dict[str, Any]] = {}
    chosen = [REFERENCE, *(args.only or LAUNCHERS)]
    with Lab(args.hosts + 1, rate=args.rate) as lab:
        for name in chosen:
            if name == REFERENCE:
                hosts = lab.hosts[: args.hosts]
                result = at_its_best(lab, hosts, "none", args.steps, TIMEOUT)
            else:
                result = measure(lab, args.hosts, LAUNCHERS[name], args.steps)
            results[name] = result
            seconds, sent = result["median_s"], result["link_bytes"]
            print(f"{name}: {1e3 * seconds:.0f} ms a step, {sent / 1e6:.1f} MB", flush=True)
    check_losses(results)
    content = {**machine(), "hosts": args.hosts, "rate": args.rate, "results": results}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
