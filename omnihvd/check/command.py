"""What was found, what is hooked, and what to do about each gap."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os

from omnihvd import engine
from omnihvd.check.findings import Finding
from omnihvd.version import __version__


def main(arguments: list[str]) -> int:
    """Returns 0 when Horovod's or PyTorch's sums will go through omnihvd, 1 when none will."""
    parser = argparse.ArgumentParser(prog="omnihvd check", description=__doc__)
    parser.add_argument("--settings", action="store_true", help="list all settings, and end")
    parser.add_argument("--json", action="store_true", help="print all findings as JSON")
    chosen = parser.parse_args(arguments)
    if chosen.settings:
        print(settings_table())
        return 0
    return check_here(chosen.json)


def check_here(as_json: bool) -> int:
    from omnihvd.check import here

    found = []
    for finding in here.findings():
        found.append(finding)
        if not as_json:
            print(finding.lines(), flush=True)
    usable, summary = conclude(found)
    if as_json:
        findings = [dataclasses.asdict(finding) for finding in found]
        content = {"version": __version__, "usable": usable, "findings": findings}
        print(json.dumps(content, indent=1))
    else:
        print("", *summary, sep="\n")
    return 0 if usable else 1


def conclude(found: list[Finding]) -> tuple[list[str], list[str]]:
    """The libraries whose sums will go through omnihvd, and sentences that say it."""
    if any(f.subject == "settings" and f.good is False for f in found):
        return [], ["No sums go through omnihvd: see the settings above."]
    hooked = {f.subject.partition(" in ")[0] for f in found if f.good and " in " in f.subject}
    kernels = [f.good for f in found if f.subject.startswith("kernels for ")]
    summary = [f"Sums over {library} go through omnihvd." for library in hooked - {"NCCL"}]
    if not summary:
        summary.append("Horovod's sums on CPUs stay its own.")
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
        lines.append(f"    {text}")
        lines.append(f"    default: {default or 'none'}; allowed: {allowed}")
    return "\n".join(lines)
