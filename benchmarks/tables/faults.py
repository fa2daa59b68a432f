"""Tables of random jobs under fault injection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.bench.report import markdown
from benchmarks.soak import summary
from benchmarks.tables.results import load
from simulator import faults as simulated

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
    """The campaign of random jobs in the simulator."""
    result = load("faults.json")
    counts = result["counts"]
    cells = [[name, f"{counts[key]:,}"] for key, name in NAMES.items() if key in counts]
    cells.append(["all faults", f"{sum(counts.get(name, 0) for name in simulated.FAULTS):,}"])
    cells.append(["simulated hours", f"{result['simulated_s'] / 3600:,.0f}"])
    cells.append(["seconds it took", f"{result['took_s']:,.0f}"])
    cells.append(["failures", "0" if result["failure"] is None else "1"])
    return markdown(["", "the simulator"], cells)


FAULTS = {
    "kill": "ranks killed (SIGKILL)",
    "exit": "ranks ended by SIGTERM",
    "leave": "ranks that left early",
    "stop": "ranks stopped for 1 ms to 2 s",
    "stop-long": "ranks stopped beyond OMNIHVD_TIMEOUT",
    "suspend": "jobs stopped as a whole",
    "files": "ranks with few descriptors",
    "memory": "ranks with little memory (RLIMIT_AS)",
    "small-shm": "hosts with a /dev/shm of 4 KiB to 8 MiB",
    "full": "/dev/shm filled up in the midst",
    "fork": "children forked that outlive their rank",
    "aggregator": "aggregators killed, and most started again",
    "link": "links down for 3 to 500 ms",
}


def processes() -> str:
    """The campaign in real processes."""
    result = load("faults_processes.json")
    counts = result["counts"]
    backends = ("engine", "communicator", "torch", "mpirun", "horovodrun", "elastic")
    names = ("jobs", *(f"jobs of {backend}" for backend in backends), "ranks")
    cells = [[name, f"{counts.get(name, 0):,}"] for name in names]
    for name in ("sums right", "sums failed", "groups formed again"):
        cells.append([name, f"{counts.get(name, 0):,}"])
    for kind, name in FAULTS.items():
        cells.append([name, f"{counts.get(f'fault {kind}', 0):,}"])
    others = (
        sum(n for name, n in counts.items() if name.startswith("fault ")) - counts["fault kill"]
    )
    cells.append(["all faults but kills", f"{others:,}"])
    cells.append(["frames that the network lost", f"{counts['frames lost']:,}"])
    cells.append(["frames that others overtook", f"{counts.get('frames late', 0):,}"])
    cells.append(["longest wait of a survivor for its error", f"{result['longest_wait_s']:.1f} s"])
    cells.append(["hours it took", f"{result['took_s'] / 3600:.1f}"])
    cells.append(["jobs that failed", f"{len(result['failures'])}"])
    return markdown(["", "real processes"], cells)


def soak() -> str:
    """Hours of one job: the first quarter of each run beside its last."""
    runs = [summary(part) for part in load("soak.json")]
    names = {
        "hours": "hours",
        "sums": "sums of rank 0, all right",
        "taken": "of them made by omnihvd",
        "groups": "groups made and ended",
        "own_mb": "MB of a rank's own, at most",
        "shared_mb": "MB shared, at most",
        "descriptors": "descriptors of a rank, at most",
        "threads": "threads of a rank, at most",
        "small_us": "a small sum, us",
        "large_ms": "a large sum, ms",
        "copy_ms": "a copy of the large one, ms",
    }

    def text(found: Any) -> str:
        return " / ".join(map(str, found)) if isinstance(found, list) else f"{found:,}"

    cells = [[words, *(text(run[name]) for run in runs)] for name, words in names.items()]
    return markdown(["", *(f"run {number + 1}" for number in range(len(runs)))], cells)


def fuzz() -> str:
    """Executions under sanitizers, guided by coverage, and of changed copies at full speed."""
    rows = sorted(load("fuzz.json")["targets"].items())
    counts = [
        [name, *(row.get(kind, 0) for kind in ("executions", "copies"))] for name, row in rows
    ]
    minutes = [
        [row.get(kind, 0.0) / 60 for kind in ("seconds", "copies_seconds")] for _, row in rows
    ]
    counts.append(["all", *(sum(row[i] for row in counts) for i in (1, 2))])
    minutes.append([sum(row[i] for row in minutes) for i in (0, 1)])
    cells = [
        [name, f"{guided:,}", f"{guided_minutes:.1f}", f"{copies:,}", f"{copy_minutes:.1f}"]
        for (name, guided, copies), (guided_minutes, copy_minutes) in zip(counts, minutes)
    ]
    return markdown(["target", "executions", "minutes", "of changed copies", "minutes"], cells)


def times(part: dict[str, Any], kind: str, what: str) -> list[float]:
    """`what` of each fault of a kind, in a part of under_fire.json."""
    return [fault[what] for fault in part["faults"] if fault["kind"] == kind]


def under_fire() -> str:
    """An elastic job under faults, with omnihvd and without."""

    def seconds(part: dict[str, Any], kind: str, what: str) -> str:
        found = times(part, kind, what)
        return f"{median(found):.1f} / {max(found):.1f}"

    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "kills": lambda p: str(sum(f["kind"] == "kill" for f in p["faults"])),
        "stops of 3 s": lambda p: str(sum(f["kind"] == "stop" for f in p["faults"])),
        "steps a second without faults": lambda p: f"{p['steps_per_s'][0]:.1f}",
        "under faults": lambda p: f"{p['steps_per_s'][1]:.1f}",
        "throughput kept, all counted": lambda p: f"{p['kept']:.1%}",
        "outside of Horovod's restarts and of stops": lambda p: f"{p['kept_apart']:.1%}",
        "from a kill to the last survivor's error, s": lambda p: seconds(p, "kill", "noticed_s"),
        "from there to the next training (Horovod's), s": lambda p: seconds(p, "kill", "reset_s"),
        "from a kill to the next step, s": lambda p: seconds(p, "kill", "step_s"),
        "to the next step of all three, s": lambda p: seconds(p, "kill", "whole_s"),
        "both of Horovod's restarts, s": lambda p: seconds(p, "kill", "restarts_s"),
        "from a stop's end to the next step, s": lambda p: seconds(p, "stop", "step_s"),
        "a sum without faults / between them, ms": lambda p: " / ".join(map(str, p["sum_ms"])),
        "sums of all ranks": lambda p: f"{p['sums']:,}",
        "of them wrong": lambda p: str(p["wrong"]),
    }
    parts = load("under_fire.json")
    cells = [[name, *(text(part) for part in parts.values())] for name, text in rows.items()]
    names = {"omnihvd": "with omnihvd", "plain": "plain Horovod"}
    return markdown(["", *(names[part] for part in parts)], cells)


def mutations() -> str:
    cells = []
    for r in load("mutations.json")["results"]:
        seed = "none" if r["seed"] is None else str(r["seed"])
        cells.append([r["bug"], seed, r["said"] or ""])
    return markdown(["bug", "first seed that finds it", "what it says"], cells)


def mutants() -> str:
    """Machine-made bugs by part; a mutant that is equal to the code does not count."""
    outcomes = ("killed", "survived", "unreached", "equal")
    parts: dict[str, Counter[str]] = {}
    for row in load("mutants.json")["rows"]:
        found = {how: row.get(how, 0) for how in outcomes}
        for name in (row["part"], "all"):
            parts.setdefault(name, Counter()).update(found)
    parts["all"] = parts.pop("all")  # last
    cells = []
    for name, found in parts.items():
        tried = sum(found.values()) - found["equal"]
        counts = [str(found[how]) for how in outcomes]
        cells.append([name, str(sum(found.values())), *counts, f"{found['killed'] / tried:.0%}"])
    return markdown(["part", "mutants", *outcomes, "killed of those that differ"], cells)
