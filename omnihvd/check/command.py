"""Shows what was found, what omnihvd intercepts, and the remedy for each gap."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterable

from omnihvd import engine
from omnihvd.check.findings import Finding
from omnihvd.tools import terminal
from omnihvd.version import __version__


def main(arguments: list[str]) -> int:
    """Returns 0 when Horovod's or PyTorch's sums will go through omnihvd, 1 when none will."""
    parser = argparse.ArgumentParser(prog="omnihvd check", description=__doc__)
    parser.add_argument("--settings", action="store_true", help="list all settings, and end")
    parser.add_argument("--json", action="store_true", help="print all findings as JSON")
    parser.add_argument(
        "--job",
        action="store_true",
        help="on all ranks (`mpirun -np 4 omnihvd check --job`): compare versions, settings and "
        "secrets, measure the links, and verify a sum",
    )
    chosen = parser.parse_args(arguments)
    if chosen.settings:
        print(settings_table())
        return 0
    return check_job(chosen.json) if chosen.job else check_here(chosen.json)


def check_here(as_json: bool) -> int:
    from omnihvd.check import here

    found = show(here.findings(), as_json)
    usable, summary = conclude(found)
    if as_json:
        print_json(found, usable=usable)
    else:
        print("", *(terminal.fill(line, terminal.width()) for line in summary), sep="\n")
    return 0 if usable else 1


def check_job(as_json: bool) -> int:
    """Rank 0 speaks; the status is the same on all ranks."""
    from omnihvd.check import job, ranks

    try:
        joined = ranks.join_job()
        found = show(job.findings(joined), as_json or joined.rank != 0)
        if as_json and joined.rank == 0:
            print_json(found, ranks=joined.size)
        joined.end()
    except ranks.NoJob as why:
        print(f"omnihvd check: {why}", file=sys.stderr)
        return 2
    return int(any(finding.good is False for finding in found))


def show(findings: Iterable[Finding], silent: bool) -> list[Finding]:
    """All of them, shown as they come."""
    found = []
    for finding in findings:
        found.append(finding)
        if not silent:
            print(finding.lines(terminal.width()), flush=True)
    return found


def print_json(found: list[Finding], **more: object) -> None:
    findings = [dataclasses.asdict(finding) for finding in found]
    print(json.dumps({"version": __version__, **more, "findings": findings}, indent=1))


def conclude(found: list[Finding]) -> tuple[list[str], list[str]]:
    """The libraries that omnihvd will intercept, and sentences that say it."""
    for f in found:
        if f.subject in ("settings", "transport") and f.good is False:
            return [], [f"No sums go through omnihvd: {f.found}."]
    hooked = {f.subject.partition(" in ")[0] for f in found if f.good and " in " in f.subject}
    kernels = [f.good for f in found if f.subject.startswith("kernels for ")]
    summary = [f"Sums over {library} go through omnihvd." for library in sorted(hooked - {"NCCL"})]
    if not summary:
        wrong = [f"{f.subject}: {f.found}" for f in found if f.good is False]
        summary.append("; ".join(["No sums on CPUs go through omnihvd", *wrong]) + ".")
    if "NCCL" in hooked and not kernels:
        summary.append("Sums over NCCL will go through omnihvd where there is a GPU; here is none.")
    elif "NCCL" in hooked and all(kernels):
        summary.append("Sums over NCCL go through omnihvd.")
    elif "NCCL" in hooked:
        summary.append("Sums over NCCL stay its own: the kernels are missing.")
    return sorted(hooked), summary


def settings_table() -> str:
    lines = []
    for name, default, allowed, text in engine.session.setting_docs():
        now = os.environ.get(name, "")
        shown = "(set)" if "SECRET" in name and now else now
        lines.append(f"{name}{'=' + shown if shown else ''}")
        for told in (text, f"default: {default or 'none'}; allowed: {allowed}"):
            lines.append(terminal.fill(told, terminal.width(), " " * 4, " " * 4))
    return "\n".join(lines)
