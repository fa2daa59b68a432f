"""A network laboratory: separate hosts with real, shaped links, on one machine.

    with Lab(4, rate="1gbit") as lab:
        lab.mpirun([sys.executable, "train.py"], timeout=300)
        print(lab.traffic())

Each host is a set of Linux namespaces (network, host name, mounts, System V memory), so MPI, UCX
and gethostname() see different machines that share no memory. A link joins each host to a switch.
Both ends are shaped: `rate` holds in each direction. The hosts reach each other by their names h0,
h1, ..., and nothing else. Several labs can be up.

The hosts live in one PID namespace. Its first process waits on a pipe held by this process. When
this process ends, however it ends, the pipe closes, and the kernel kills every process of the lab
and removes its interfaces. So nothing is left behind, and nothing needs a name outside.

Needs root, and `ip` and `tc` of iproute2, `unshare` and `nsenter` of util-linux. From a shell:

    python -m benchmarks.bench.lab --hosts 4 --rate 1gbit -- python train.py
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from benchmarks.bench.lab_processes import (
    LabError,
    find_mpirun,
    first_line,
    mpirun_env,
    run,
    start,
    yielding,
)
from benchmarks.bench.lab_scripts import HOST, INIT, INIT_SHARING_CORES, STREAM

TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "util-linux",
    "hostname": "hostname",
}
MAX_HOSTS = 250  # one /24 network
SSH = "/dev/shm/bin"  # on each host, a folder with an ssh that goes from host to host
AGENT = SSH + "/ssh"
RATE = "rate of each link, each way; none: unshaped (default: 1gbit)"
SHARE_CORES = (
    "no autogroups, and an MPI that yields while it waits (default: Linux's and MPI's own)"
)


class Traffic(NamedTuple):
    """Bytes of Ethernet frames, headers included, that one host's link carried."""

    sent: int
    received: int


class Host:
    """One host: a name that the others resolve, and an address."""

    def __init__(self, lab: Lab, index: int) -> None:
        self.name = f"h{index}"
        self.address = f"10.0.0.{index + 1}"
        self._lab = lab
        self.keeper = 0  # the process that holds its namespaces, as numbered inside the lab

    def command(self, argv: Sequence[str], cwd: str | None = None) -> list[str]:
        """The command line that runs argv in this host, for subprocess. cwd: this process's."""
        enter = ["nsenter", "-t", str(self.keeper), "-m", "-u", "-i", "-n"]
        return self._lab.command([*enter, "env", "-C", cwd or str(Path.cwd()), *argv])


class Lab:
    """`hosts` hosts on one switch. A context manager; close() ends all that runs in it.

    rate: of each link, each way, in the units of tc ("1gbit"); None: unshaped.
    delay: one way between two hosts ("1ms"). loss: of frames, one way ("0.1%"). Both need a kernel
    with netem. share_cores: allows for cores that the hosts share, as real hosts do not: Linux's
    autogroups are off while the lab lives, and Open MPI yields while it waits, which helps where
    ranks outnumber cores. By default both stay as Linux and Open MPI have them. Raises LabError
    where no lab is possible.
    """

    def __init__(
        self,
        hosts: int,
        rate: str | None = "1gbit",
        delay: str | None = None,
        loss: str | None = None,
        share_cores: bool = False,
    ) -> None:
        if not 1 <= hosts <= MAX_HOSTS:
            raise LabError(f"a lab has 1 to {MAX_HOSTS} hosts, not {hosts}")
        _check_machine()
        self.rate, self.share_cores = rate, share_cores
        self._impaired = bool(delay or loss)
        self.hosts = [Host(self, i) for i in range(hosts)]
        self._keepers: list[subprocess.Popen[str]] = []
        init = INIT_SHARING_CORES if share_cores else INIT
        self._init = start(
            ["unshare", "--pid", "--fork", "--mount-proc", "--net", "sh", "-c", init]
        )
        try:
            first_line(self._init, "the lab")
            names = "127.0.0.1 localhost\n" + "".join(
                f"{host.address} {host.name}\n" for host in self.hosts
            )
            unshare = ["unshare", "--net", "--uts", "--ipc", "--mount", "sh", "-c", HOST, "sh"]
            for host in self.hosts:
                self._keepers.append(start(self.command([*unshare, host.name, names])))
            for host, keeper in zip(self.hosts, self._keepers):
                host.keeper = int(first_line(keeper, f"host {host.name}"))
            self._join(rate, delay, loss)
            self._install_agent()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills every process in the lab; returns when they are gone."""
        for process in [self._init, *self._keepers]:
            with process:  # closes the pipes and waits
                pass

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs argv at the switch, in the lab's PID namespace."""
        ns = f"/proc/{self._init.pid}/ns"
        return [
            "nsenter",
            f"--pid={ns}/pid_for_children",
            f"--mount={ns}/mnt",
            f"--net={ns}/net",
            *argv,
        ]

    def mpirun_command(
        self,
        argv: Sequence[str],
        *,
        hosts: Sequence[Host] | None = None,
        ranks_per_host: int = 1,
        mca: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The command line of Open MPI's mpirun, started on the first of the hosts.

        Ranks are numbered host by host. Between hosts MPI has TCP alone, inside one also shared
        memory. Run it with the environment of mpirun_env(). mca: more MCA parameters.
        """
        hosts = self.hosts if hosts is None else hosts
        ranks = len(hosts) * ranks_per_host
        parameters = {
            "plm_rsh_agent": AGENT,
            "plm_rsh_no_tree_spawn": "1",  # only the first host has started the agent
            "orte_tmpdir_base": "/dev/shm",
            "oob_tcp_if_include": "eth0",
            "btl_tcp_if_include": "eth0",
            "pml": "ob1",
            "btl": "tcp,self" if ranks_per_host == 1 else "tcp,self,vader",
            **(yielding(ranks) if self.share_cores else {}),
            **(mca or {}),
        }
        mpirun = find_mpirun()
        placing = ",".join(f"{host.name}:{ranks_per_host}" for host in hosts)
        options = ["-np", str(ranks), "--host", placing, "--map-by", "slot", "--bind-to", "none"]
        for name, value in parameters.items():
            options += ["-mca", name, value]
        return hosts[0].command([mpirun, *options, *argv])

    def mpirun(
        self,
        argv: Sequence[str],
        *,
        hosts: Sequence[Host] | None = None,
        ranks_per_host: int = 1,
        mca: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdout: int | IO[str] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs an MPI program over the hosts; arguments as in mpirun_command() and run()."""
        hosts = self.hosts if hosts is None else hosts
        command = self.mpirun_command(argv, hosts=hosts, ranks_per_host=ranks_per_host, mca=mca)
        env = {**mpirun_env(len(hosts) * ranks_per_host), **(env or {})}
        return run(command, env=env, timeout=timeout, stdout=stdout, check=check)

    def traffic(self) -> list[Traffic]:
        """The bytes that each host's link has carried since the lab was made."""
        ports = _sent_bytes(self.command)
        return [
            Traffic(_sent_bytes(host.command)["eth0"], ports[f"port-{host.name}"])
            for host in self.hosts
        ]

    def raw_rate(self, source: int = 0, target: int = 1, seconds: float = 1.0) -> float:
        """Payload of one TCP stream from one host to another, in bytes/s, over `seconds`."""
        python = [sys.executable, "-c", STREAM]
        name = self.hosts[target].name
        with start(self.hosts[target].command([*python, "receive"])) as receiver:
            first_line(receiver, "the receiver")
            run(self.hosts[source].command([*python, name, str(seconds)]), timeout=seconds + 10)
            return float(first_line(receiver, "the receiver"))

    def set_rate(self, rate: str) -> None:
        """Changes the rate of all links. Not for links with delay or loss, or without a rate."""
        if self.rate is None or self._impaired:
            raise LabError("only links that have a rate, and no delay or loss, can change it")
        lines = []
        for host in self.hosts:
            inside = f"nsenter -t {host.keeper} -n"
            lines.append(f"tc qdisc change dev port-{host.name} root {_queue(rate)}")
            lines.append(f"{inside} tc qdisc change dev eth0 root {_queue(rate)}")
        subprocess.run(self.command(["sh", "-e"]), input="\n".join(lines), text=True, check=True)
        self.rate = rate

    def _join(self, rate: str | None, delay: str | None, loss: str | None) -> None:
        queue = _queue(rate)
        impair = f"delay {delay}" * bool(delay) + f" loss {loss}" * bool(loss)
        lines = ["ip link add switch type bridge", "ip link set switch up"]
        for host in self.hosts:
            port, inside = f"port-{host.name}", f"nsenter -t {host.keeper} -n"
            lines += [
                f"ip link add {port} type veth peer name eth0 netns {host.keeper}",
                f"ip link set {port} master switch up",
                f"{inside} ip address add {host.address}/24 dev eth0",
                f"{inside} ip link set eth0 up",
                f"tc qdisc add dev {port} root {queue}",
            ]
            # Impair only the sending host's end, or each frame would be delayed twice.
            if impair:
                netem = f"netem limit 100000 {impair}"
                lines.append(f"{inside} tc qdisc add dev eth0 root handle 1: {netem}")
                lines.append(f"{inside} tc qdisc add dev eth0 parent 1:1 {queue}")
            else:
                lines.append(f"{inside} tc qdisc add dev eth0 root {queue}")
        done = subprocess.run(
            self.command(["sh", "-ex"]), input="\n".join(lines), capture_output=True, text=True
        )
        if done.returncode:
            why = done.stderr[done.stderr.rindex("+ ") :].strip()  # the command and its message
            if " netem " in why and "unknown" in why:
                raise LabError(
                    "delay and loss need netem, which this kernel lacks (CONFIG_NET_SCH_NETEM); "
                    "load the module sch_netem, or leave delay and loss out"
                )
            raise LabError(f"cannot lay out the network: {why}")

    def _install_agent(self) -> None:
        # Launchers call this in place of ssh: agent [OPTIONS] HOST [OPTIONS] COMMAND...
        hosts = " ".join(f"{host.name}) keeper={host.keeper};;" for host in self.hosts)
        options = 'while :; do case "$1" in -[oipl]) shift 2;; -*) shift;; *) break;; esac; done'
        agent = (
            "#!/bin/sh\n"
            f"{options}; "
            f'case "$1" in {hosts} *) echo "no host $1" >&2; exit 1;; esac\n'
            f"shift; {options}\n"
            'exec nsenter -t "$keeper" -m -u -i -n -- sh -c "$*"\n'
        )
        write = ["sh", "-c", f"mkdir {SSH}; cat >{AGENT}; chmod +x {AGENT}"]
        for host in self.hosts:  # any host may be the first of a job
            subprocess.run(host.command(write, cwd="/"), input=agent, text=True, check=True)


def _queue(rate: str | None) -> str:
    # With counters, at every end of a link; the bucket holds two of the largest (GSO) frames.
    return f"tbf rate {rate} burst 128kb latency 30ms" if rate else "pfifo limit 10000"


def _check_machine() -> None:
    if not sys.platform.startswith("linux"):
        raise LabError("a lab needs Linux's network namespaces; this is " + sys.platform)
    if os.geteuid() != 0:
        raise LabError("a lab needs root, to make network namespaces: run it with sudo")
    missing = {tool: package for tool, package in TOOLS.items() if not shutil.which(tool)}
    if missing:
        raise LabError(
            f"a lab needs {', '.join(missing)}: install the package "
            f"{', '.join(sorted(set(missing.values())))}"
        )


def _sent_bytes(command: Callable[[Sequence[str]], list[str]]) -> dict[str, int]:
    tc = subprocess.run(
        command(["tc", "-s", "-j", "qdisc", "show"]), capture_output=True, text=True, check=True
    )
    return {q["dev"]: q["bytes"] for q in json.loads(tc.stdout) if q.get("root")}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run an MPI program on hosts with shaped links.")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rate", default="1gbit", help=RATE)
    parser.add_argument("--delay", help="delay of each link, one way, such as 1ms")
    parser.add_argument("--loss", help="share of frames that links lose, such as 0.1%%")
    parser.add_argument("--share-cores", action="store_true", help=SHARE_CORES)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- PROGRAM [ARGUMENTS]")
    args = parser.parse_args()
    command = [word for i, word in enumerate(args.command) if (i, word) != (0, "--")]
    if not command:
        parser.error("name a program to run")
    try:
        rate = None if args.rate == "none" else args.rate
        with Lab(args.hosts, rate, args.delay, args.loss, args.share_cores) as lab:
            done = lab.mpirun(command, ranks_per_host=args.ranks_per_host, check=False)
            for host, bytes_ in zip(lab.hosts, lab.traffic()):
                sent, received = (n / 1e6 for n in bytes_)
                print(f"{host.name}: sent {sent:.1f} MB, received {received:.1f} MB")
            return done.returncode
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
