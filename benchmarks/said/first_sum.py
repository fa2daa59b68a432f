"""What is said of the time from nothing to the first sum."""

from __future__ import annotations

from statistics import median

from benchmarks.said.results import Said, load

FILE = "first_sum.json"


def of_the_first_sum() -> list[Said]:
    runs = load(FILE)["runs"]

    def seconds(*parts: str, less: str = "") -> str:
        return f"{median(sum(r[p] for p in parts) - r.get(less, 0.0) for r in runs):.1f}"

    template = (
        "from nothing to the first sum under DDP takes {} s on a machine with 2 cores. Of these "
        "the installation of PyTorch is {} s, and omnihvd {} s: {} s to install it, the rest to "
        "start it"
    )
    figures = [
        seconds("environment", "pytorch", "omnihvd", "first_step"),
        seconds("pytorch"),
        seconds("omnihvd", "step_with", less="step_without"),
        seconds("omnihvd"),
    ]
    return [Said("docs/compatibility.md", FILE, template, figures)]
