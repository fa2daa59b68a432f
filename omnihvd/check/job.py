"""`omnihvd check --job`, on all ranks of a job: are they alike, and do they reach each other?"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from omnihvd import engine
from omnihvd.check import here, links
from omnihvd.check.findings import Finding
from omnihvd.check.ranks import Exchange, gather
from omnihvd.version import __version__

# Settings that may differ from rank to rank.
OWN = ("HOST_ID", "KERNEL_CACHE", "SECRET", "SECRET_FILE", "LOG")
COUNT = 4_000_000  # elements of the sum
CONNECT_S = 5.0


def findings(ranks: Exchange) -> Iterator[Finding]:
    """Collective: every rank gets all of them, as they are found."""
    settings, problem = _settings()
    hosts = gather(ranks, settings.host_id or socket.gethostname())
    yield _hosts(hosts)
    yield from _alike(ranks, hosts, "versions", _versions())
    problems = gather(ranks, problem)
    for rank, text in enumerate(problems):
        if text:
            yield Finding(False, "settings", f"rank {rank} ({hosts[rank]}): {text}")
    yield from _alike(ranks, hosts, "settings", _set_here())
    yield _secret(ranks, hosts, settings.secret)
    yield from _hooks(ranks, hosts)
    yield from _aggregators(ranks, hosts, settings.aggregators)
    if any(problems):
        return  # no link can be measured, and nothing summed
    for pair in links.pairs_of(hosts):
        yield _link(hosts, pair, links.measure(ranks, pair))
    yield _sum(ranks, settings)


def _settings() -> tuple[Any, str | None]:
    try:
        return engine.session.settings_from_environment(), None
    except engine.EngineError as why:
        return engine.session.Settings(), str(why)


def _hosts(hosts: list[str]) -> Finding:
    counts = {host: hosts.count(host) for host in hosts}
    text = ", ".join(f"{host} ({count})" for host, count in counts.items())
    if len(hosts) == 1:
        return Finding(None, "ranks", f"1, on {text}: there is nothing to reduce")
    return Finding(True, "ranks", f"{len(hosts)}, on {text}")


def _versions() -> dict[str, str]:
    versions = {"omnihvd": __version__, "protocol": str(engine.session.protocol)}
    versions["Python"] = platform.python_version()
    for package in ("horovod", "torch", "tensorflow"):
        versions[package] = here.version_of(package) or "none"
    try:
        described = engine.session.Engine(engine.session.Settings()).describe_transport()
    except engine.EngineError as why:
        return {**versions, "transport": str(why)}
    return {**versions, "transport": described.partition(":")[0], "byte order": sys.byteorder}


def _set_here() -> dict[str, str]:
    """Settings alone: a misspelt name may be that of a secret."""
    known = {name for name, *_ in engine.session.setting_docs()}
    known -= {f"OMNIHVD_{name}" for name in OWN}
    return {name: value for name, value in sorted(os.environ.items()) if name in known}


def _alike(
    ranks: Exchange, hosts: list[str], subject: str, mine: dict[str, str]
) -> Iterator[Finding]:
    """One finding that all are alike, or one for each name that differs."""
    everyone = gather(ranks, mine)
    all_alike = True
    for name in sorted(set().union(*everyone)):
        values = [values.get(name, "not set") for values in everyone]
        others = [rank for rank, value in enumerate(values) if value != values[0]]
        if others:
            all_alike = False
            text = f"{name}: {values[0]} on rank 0 ({hosts[0]}), {values[others[0]]} on "
            text += f"{_ranks(others)} ({hosts[others[0]]})"
            yield Finding(False, subject, text, _remedy(name, values))
    if all_alike:
        shown = ", ".join(f"{name} {value}" for name, value in mine.items() if value != "none")
        yield Finding(True, subject, shown or "all at their defaults")


def _secret(ranks: Exchange, hosts: list[str], secret: str) -> Finding:
    salt = ranks.allgather(os.urandom(16))[0]
    digest = hashlib.sha256(salt + secret.encode()).hexdigest() if secret else ""
    digests = gather(ranks, digest)
    others = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if others:
        words = "no secret" if not digests[others[0]] else "another secret"
        text = f"{words} on {_ranks(others)} ({hosts[others[0]]}) than on rank 0 ({hosts[0]})"
        return Finding(False, "secret", text, "OMNIHVD_SECRET must be the same everywhere")
    return Finding(True, "secret", "the same on all ranks" if secret else "none set, none needed")


def _hooks(ranks: Exchange, hosts: list[str]) -> Iterator[Finding]:
    """Checks the hooks on the first rank of each host: importing the frameworks takes seconds."""
    mine: dict[str, str] = {}
    if hosts.index(hosts[ranks.rank]) == ranks.rank:
        for module, probe in here.begin_probes(say=ranks.rank == 0).items():
            answer = probe.answer()
            if isinstance(answer, str):
                mine[module] = answer
            else:
                mine.update({f"{lib} in {module}": "hooked" for lib in answer["hooked"]})
                mine.update({f"{lib} in {module}": why for lib, why in answer["problems"].items()})
    everyone = gather(ranks, mine)
    firsts = sorted({hosts.index(host) for host in hosts})
    for subject in sorted(set().union(*everyone)):
        values = [everyone[rank].get(subject, "not there") for rank in firsts]
        bad = [(rank, value) for rank, value in zip(firsts, values) if value != "hooked"]
        if bad:
            yield Finding(False, subject, f"on {hosts[bad[0][0]]}: {bad[0][1]}")
        else:
            yield Finding(True, subject, "intercepted" + " on all hosts" * (len(firsts) > 1))
    if not any(everyone):
        yield Finding(False, "sums", "nothing to intercept", "omnihvd check says more")


def _aggregators(ranks: Exchange, hosts: list[str], addresses: list[str]) -> Iterator[Finding]:
    everyone = gather(ranks, {address: _unreachable(address) for address in addresses})
    for address in sorted(set().union(*everyone)):
        bad = [rank for rank, said in enumerate(everyone) if said.get(address)]
        subject = f"aggregator {address}"
        if bad:
            why = f"{_ranks(bad)} ({hosts[bad[0]]}): {everyone[bad[0]][address]}"
            remedy = "is `omnihvd aggregator` running there, and may these hosts connect?"
            yield Finding(False, subject, why, remedy)
        else:
            yield Finding(True, subject, "reachable from all ranks")


def _unreachable(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as why:
        return str(why)
    return None


def _link(hosts: list[str], pair: tuple[int, int], answer: dict[str, Any]) -> Finding:
    a, b = (hosts[rank] for rank in pair)
    subject = f"{a} - {b}" if a != b else f"within {a}"
    if "error" in answer:
        return Finding(False, subject, answer["error"], "see UCX_TLS and UCX_NET_DEVICES")
    there, back = (f"{answer[way] / 1e6:.0f} MB/s" for way in ("there", "back"))
    return Finding(True, subject, f"{there}, {back} back; {answer['transport']}")


def _sum(ranks: Exchange, settings: Any) -> Finding:
    """Sums a tensor with a density of 10%, through everything but Horovod."""
    import numpy as np

    subject = f"sum of {COUNT * 4 / 1e6:.0f} MB"
    x = np.zeros(COUNT, np.float32)
    x[:: 10 * 256] = ranks.rank + 1
    expected = x != 0
    mine: list[Any] = [None, 0.0]
    try:
        group = engine.session.Engine(settings).join(ranks.rank, ranks.size, ranks.allgather)
        for _ in range(2):  # the first also connects
            total = np.empty_like(x)
            start = time.monotonic()
            group.allreduce(x, total)
            mine[1] = time.monotonic() - start
        if not np.array_equal(total, expected * (ranks.size * (ranks.size + 1) // 2)):
            mine[0] = "it is wrong"
    except engine.EngineError as why:
        mine[0] = str(why)
    everyone = gather(ranks, mine)  # keeps the groups alive until all ranks are done
    for rank, (problem, _) in enumerate(everyone):
        if problem:
            return Finding(False, subject, f"rank {rank}: {problem}")
    seconds = max(said[1] for said in everyone)
    return Finding(True, subject, f"right on all ranks, in {seconds * 1e3:.0f} ms")


def _remedy(name: str, values: list[str]) -> str:
    if name == "omnihvd":
        return f"install {max(values, key=_age)} on all hosts"
    if name == "protocol":
        return "no sum can be made: install the newest omnihvd on all hosts"
    return "give all ranks the same (mpirun: -x NAME)" if name.isupper() else ""


def _age(release: str) -> tuple[list[int], bool]:
    """1.10.0 is above 1.9.0, and above 1.10.0.dev0."""
    number, dev, _ = release.partition(".dev")
    return [int(part) for part in re.findall(r"\d+", number)], not dev


def _ranks(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:4])) + ", ..." * (len(numbers) > 4)
    return f"rank{'s' * (len(numbers) > 1)} {shown}"
