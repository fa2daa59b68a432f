"""Tables of random jobs under fault injection."""

from __future__ import annotations

from benchmarks.bench.report import markdown
from benchmarks.tables.results import load

NAMES = {
    "jobs": "jobs",
    "sums": "sums that ranks had right",
    "unfinished": "sums that a stopped host or a cut network held up",
    "failed": "sums of sessions that failed as they had to",
    "joined": "ranks that joined a group",
    "not_joined": "ranks that could not, and were told why",
    "messages": "messages",
    "datagrams": "datagrams and acknowledgements",
    "lost": "of them lost",
    "cut": "lost where the network was cut",
    "twice": "come twice",
    "late": "late, and mostly overtaken",
    "crashes": "hosts that stopped",
    "jumps": "clocks put forward",
    "pauses": "hosts that waited for a while",
    "partly": "sends that the socket took only in part",
    "restarts": "processes that began again",
    "refused": "times that memory was refused",
    "rare": "rare paths taken",
}


def campaign() -> str:
    """The campaigns on the protocol alone, and on whole sessions."""
    results = [load("faults.json"), load("faults_sessions.json")]
    cells = [
        [name, *(f"{r['counts'][key]:,}" if key in r["counts"] else "" for r in results)]
        for key, name in NAMES.items()
        if any(key in r["counts"] for r in results)
    ]
    cells.append(["simulated hours", *(f"{r['simulated_s'] / 3600:,.0f}" for r in results)])
    cells.append(["seconds it took", *(f"{r['took_s']:,.0f}" for r in results)])
    cells.append(["failures", *("0" if r["failure"] is None else "1" for r in results)])
    return markdown(["", "the protocol", "sessions, too"], cells)


def mutations() -> str:
    cells = []
    for r in load("mutations.json")["results"]:
        seed = "none" if r["seed"] is None else str(r["seed"])
        cells.append([r["bug"], seed, r["said"] or ""])
    return markdown(["bug", "first seed that finds it", "what it says"], cells)
