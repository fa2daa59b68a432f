"""The figures of GRACE, measured by its authors, from their data: results/grace.csv.

    python benchmarks/grace_data.py GRACE_data_release.pickle

github.com/sands-lab/grace-data has the runs behind the plots of GRACE (ICDCS 2021) as a pickle of
pandas tables. To load a pickle may run any code, so its classes are replaced by ones that only keep
what they are given; no other name is loaded. A line of the CSV file is a method on a task with
eight workers, one a server with a V100: its fastest throughput over the fastest without
compression, by the links' rate, and the mean quality at the end of trainings.
"""

from __future__ import annotations

import argparse
import csv
import math
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

RESULT = Path(__file__).parent / "results" / "grace.csv"
WORKERS = 8


class Task(NamedTuple):
    table: str  # of their file
    model: str
    throughput: str
    quality: str


TASKS = {
    "LSTM": Task("PTB-language_modeling", "LSTM", "throughput", "test_perplexity"),
    "NCF": Task("ml-20m-recommendation", "ncf", "total_throughput", "best_hit_rate"),
    "ResNet-50": Task("imagenet-classification", "resnet50", "throughput", "top_1_accuracy"),
}


class Inert:
    """Stands for an object of pandas or NumPy: keeps the arguments and the state."""

    def __new__(cls, *arguments: Any) -> Inert:
        made = object.__new__(cls)
        made.arguments = arguments
        made.state = None
        return made

    arguments: tuple[Any, ...]
    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


NAMES = {
    "pandas.core.frame": ("DataFrame",),
    "pandas.core.internals.managers": ("BlockManager",),
    "pandas.core.indexes.base": ("Index", "_new_Index"),
    "pandas.core.indexes.range": ("RangeIndex",),
    "numpy": ("ndarray", "dtype"),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),
    "builtins": ("slice",),
}


class Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in NAMES.get(module, ()):
            raise pickle.UnpicklingError(
                f"the file names {module}.{name}, which GRACE's data did not: use their release"
            )
        return slice if name == "slice" else Inert


def numbers(dtype: Inert, data: bytes) -> list[Any]:
    letter = {"f8": "d", "i8": "q", "f4": "f"}[dtype.arguments[0]]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data))


def rows_of(array: Inert) -> list[Any]:
    """The elements of an array of one dimension, or the rows of one of two."""
    _, shape, dtype, columns_first, data = array.state
    flat = data if isinstance(data, list) else numbers(dtype, data)
    if len(shape) == 1:
        return list(flat)
    count, length = shape
    if columns_first:
        return [flat[row::count] for row in range(count)]
    return [flat[row * length : (row + 1) * length] for row in range(count)]


def runs_of(frame: Inert) -> list[dict[str, Any]]:
    manager = frame.state["_data"].state[3]["0.14.1"]
    names = rows_of(manager["axes"][0].arguments[1]["data"])
    columns = {}
    for block in manager["blocks"]:
        places = block["mgr_locs"]
        at = range(*places.indices(len(names))) if isinstance(places, slice) else rows_of(places)
        columns.update({names[i]: values for i, values in zip(at, rows_of(block["values"]))})
    return [dict(zip(columns, run)) for run in zip(*columns.values())]


def number(value: Any) -> float | None:
    if isinstance(value, Inert):  # a number of NumPy's
        (value,) = numbers(*value.arguments)
    found = isinstance(value, (int, float)) and math.isfinite(value)
    return float(value) if found else None


def read(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        tables = Reader(file).load()
    for name, task in TASKS.items():
        runs = [
            run
            for run in runs_of(tables[task.table])
            if run["model"] == task.model and run["workers"] == WORKERS
        ]
        fastest: dict[tuple[str, str], float] = {}
        quality: dict[str, list[float]] = {}
        for run in runs:
            method, rate = run["name"], run["bw"]
            if run["mode"] == "throughput" and (speed := number(run[task.throughput])):
                fastest[method, rate] = max(speed, fastest.get((method, rate), 0))
            if run["mode"] == "accuracy" and (end := number(run[task.quality])):
                quality.setdefault(method, []).append(end)
        for method in sorted({method for method, _ in fastest} | set(quality)):
            line = {"task": name, "method": method}
            for rate in ("1g", "10g"):
                speed = fastest.get((method, rate))
                over = speed / fastest["none", rate] if speed else None
                line[f"over none, {rate}bit"] = "" if over is None else f"{over:.3f}"
            line["quality"] = f"{mean(quality[method]):.4g}" if method in quality else ""
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="GRACE_data_release.pickle")
    lines = list(read(parser.parse_args().data))
    with RESULT.open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()
