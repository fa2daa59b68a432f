"""Derives figures from samples: medians, the limit that no scheme can beat, tables."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from benchmarks.bench.reducers import OF_ROWS, PUBLISHED
from omnihvd.bench.patterns import Point, volume

COPIED = "bytes_copied"  # in a result's counters
# Schemes with a time that does not depend on the zeros.
DENSE = ("gloo", "horovod", "mpi", "mpich", "switchml", "gloo-scatter", "mpi-scatter")


def limit_seconds(
    backend: str,
    point: Point,
    ranks: int,
    link_rate: float | None,
    read_s: float,
    per_host: int = 1,
) -> float:
    """The larger of the wire bound and the time in which all ranks read their tensors once.

    The wire bound (N hosts, links of `link_rate` bytes/s each way; P and U are the bytes of the
    non-zero blocks of the fullest host, on any of its ranks, and of the union, S of the tensor):
      omnihvd-dedicated, N aggregators   max(P, U) / rate
      omnihvd (-torch), colocated        (N-1)/N * (P + U) / rate
      dense rings                        2 (N-1)/N * S / rate
      switchml, N aggregators            S / rate
      reduce-scatters: omnihvd's         (N-1)/N * P / rate
      and dense ones                     (N-1)/N * S / rate
      agsparse                           (N-1) * P / rate (bytes that each host must receive)
    For SparCML and Parallax see summarize().
    """
    hosts = ranks // per_host
    if link_rate is None or hosts == 1:
        return read_s
    if backend in ("omnihvd-torch", *OF_ROWS):
        backend = "omnihvd"
    bytes_ = volume(point, ranks, per_host)
    others = (hosts - 1) / hosts
    wire = {
        "omnihvd-dedicated": float(max(bytes_.largest_part, bytes_.union)),
        "omnihvd": others * (bytes_.largest_part + bytes_.union),
        "omnihvd-torch-scatter": others * bytes_.largest_part,
        "gloo-scatter": others * point.bytes,
        "mpi-scatter": others * point.bytes,
        "switchml": float(point.bytes),
        "agsparse": (hosts - 1.0) * bytes_.largest_part,
        "agsparse-of-dense": (hosts - 1.0) * bytes_.largest_part,
    }.get(backend, 2 * others * point.bytes)
    return max(wire / link_rate, read_s)


def summarize(
    answer: dict[str, Any],
    ranks: int,
    link_rate: float | None,
    per_host: int = 1,
) -> dict[str, Any]:
    """Summarizes turns.measure()'s answer for one backend and point."""
    backend = answer["backend"]
    point = Point(**answer["point"])
    samples = answer["samples"]
    limit = limit_seconds(backend, point, ranks, link_rate, answer["read_s"], per_host)
    if backend in PUBLISHED and link_rate:  # the setting decides algorithm and bytes
        limit = max(c["bytes_sent"] for c in answer["counters"]) / link_rate
    return {
        "ranks": ranks,
        "ranks_per_host": per_host,
        "link_rate": link_rate,
        **answer,
        "cpu_s_per_gb": answer["cpu_s"] / point.bytes * 1e9,
        "median_s": statistics.median(samples),
        "mean_s": statistics.fmean(samples),
        "first_ten_s": _mean_of_first(answer.get("starts") or [answer["sums"]], 10),
        "first_hundred_s": _mean_of_first([answer["sums"]], 100),
        "limit_s": limit,
        "over_limit": statistics.median(samples) / limit,
    }


def _mean_of_first(jobs: list[list[float]], count: int) -> float | None:
    """The mean of the first `count` sums of each job at a point, in which omnihvd tries its
    algorithms; None: there were fewer."""
    if any(len(sums) < count for sums in jobs):
        return None
    return statistics.fmean(second for sums in jobs for second in sums[:count])


def same_work(backend: str, measured: Point, point: Point) -> bool:
    """Whether the backend's time at one point is its time at the other."""
    if backend in DENSE:
        measured = replace(measured, density=point.density, pattern=point.pattern)
    return measured == point


KEYS = 4  # columns that identify the point


def columns(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A table of medians: a row for each point, a column for each backend, and the ratios. Then
    follow the means of the first ten sums, processor seconds of all ranks for a GB of tensor, and
    copies within the processes for each byte that omnihvd sends."""
    backends = list(dict.fromkeys(r["backend"] for r in results))
    header = ["ranks", "tensor", "pattern", "density"]
    header += [f"{b} ms" for b in backends]
    ours = [b for b in backends if b.startswith("omnihvd")]
    peers = [b for b in backends if not b.startswith("omnihvd")]
    header += [f"{b} / limit" for b in ours]
    header += [f"{b} vs best peer" for b in ours] if peers else []
    has_cpu = any("cpu_s_per_gb" in r for r in results)
    with_first = [b for b in backends if any(r.get("first_ten_s") for r in results)]
    header += [f"{b} first ten ms" for b in with_first]
    header += [f"{b} CPU s/GB" for b in backends] if has_cpu else []
    copying = [b for b in ours if any(r["backend"] == b and _counts_copies(r) for r in results)]
    header += [f"{b} copies" for b in copying]
    rows = []
    keys = dict.fromkeys((r["ranks"], tuple(r["point"].values())) for r in results)
    for ranks, fields in keys:
        point = Point(*fields)
        found = {
            r["backend"]: r
            for r in results
            if r["ranks"] == ranks and same_work(r["backend"], Point(**r["point"]), point)
        }
        row = [str(ranks), _what(point), point.pattern, f"{point.density:g}"]
        row += [_ms(found[b]) if b in found else "" for b in backends]
        row += [f"{found[b]['over_limit']:.2f}" if b in found else "" for b in ours]
        best = min((found[b]["median_s"] for b in peers if b in found), default=None)
        if peers:
            row += [
                f"{best / found[b]['median_s']:.2f}x" if best and b in found else "" for b in ours
            ]
        row += [_ms(found.get(b, {}), "first_ten_s") for b in with_first]
        if has_cpu:
            row += [f"{found[b]['cpu_s_per_gb']:.1f}" if b in found else "" for b in backends]
        row += [_copies(found[b]) if b in found else "" for b in copying]
        rows.append(row)
    return header, rows


def _counts_copies(result: dict[str, Any]) -> bool:
    return any(counters.get(COPIED) for counters in result.get("counters", []))


def _copies(result: dict[str, Any]) -> str:
    if not _counts_copies(result):
        return ""
    sent, copied = (sum(c[name] for c in result["counters"]) for name in ("bytes_sent", COPIED))
    return f"{copied / sent:.2f}" if sent else ""


def _ms(result: dict[str, Any], figure: str = "median_s") -> str:
    """The time as text, with a peer's setting."""
    seconds, setting = result.get(figure), result.get("setting")
    named = f" ({setting})" if setting and figure == "median_s" else ""
    return "" if seconds is None else f"{1e3 * seconds:.1f}{named}"


def _what(point: Point) -> str:
    text = f"{size_text(point.bytes)} {point.dtype}"
    text += f" in {point.tensors} tensors" if point.tensors > 1 else ""
    return text + ", new memory" * (point.memory == "new")


def size_text(size: int) -> str:
    units = ((1e6, "MB"), (1e3, "kB"))
    return next((f"{size / u:.4g} {name}" for u, name in units if size >= u), f"{size} B")


def duration_text(seconds: float) -> str:
    """How long a command takes: "45 s", "20 minutes", "3 hours"."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"


def in_columns(header: list[str], rows: list[list[str]], keys: int, columns: int | None) -> str:
    """One table or, where a terminal is too narrow for it, several with the same first columns."""
    tables, shown = [], list(range(keys))
    for i in range(keys, len(header)):
        wider = _columns(header, rows, [*shown, i])
        if columns and len(shown) > keys and max(map(len, wider.splitlines())) > columns:
            tables.append(_columns(header, rows, shown))
            shown = list(range(keys))
        shown.append(i)
    return "\n\n".join([*tables, _columns(header, rows, shown)])


def _columns(header: list[str], rows: list[list[str]], shown: list[int]) -> str:
    return markdown([header[i] for i in shown], [[row[i] for i in shown] for row in rows])


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
