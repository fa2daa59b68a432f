"""GRACE's published data is read without running what is in the file."""

from __future__ import annotations

import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks import grace_data
from benchmarks.tables import published


class Named:
    """Is pickled as a call of something by its name, as pandas' and NumPy's objects are."""

    def __init__(self, module: str, name: str, arguments: tuple[Any, ...], state: Any) -> None:
        self.parts = module, name, arguments, state


def dumped(content: Any) -> bytes:
    """Written by hand: pandas is not installed, and the release is of an old one."""
    out = [pickle.PROTO + b"\x04"]

    def put(value: Any) -> None:
        if isinstance(value, Named):
            module, name, arguments, state = value.parts
            put(module)
            put(name)
            out.append(pickle.STACK_GLOBAL)
            put(arguments)
            out.append(pickle.REDUCE)
            if state is not None:
                put(state)
                out.append(pickle.BUILD)
        elif isinstance(value, (list, tuple)):
            out.append(pickle.MARK)
            for each in value:
                put(each)
            out.append(pickle.TUPLE if isinstance(value, tuple) else pickle.LIST)
        elif isinstance(value, dict):
            out.append(pickle.MARK)
            for pair in value.items():
                put(pair[0])
                put(pair[1])
            out.append(pickle.DICT)
        elif isinstance(value, bytes):
            out.append(pickle.BINBYTES + struct.pack("<I", len(value)) + value)
        else:
            out.append(pickle.dumps(value, 2)[2:-1])  # without its head and end

    put(content)
    return b"".join(out) + pickle.STOP


def array(shape: tuple[int, ...], kind: str, data: Any) -> Named:
    dtype = Named("numpy", "dtype", (kind,), None)
    return Named("numpy.core.multiarray", "_reconstruct", (), (1, shape, dtype, False, data))


def frame(texts: dict[str, list[str]], numbers: dict[str, list[float]]) -> Named:
    names, count = [*texts, *numbers], len(next(iter(texts.values())))
    flat = [text for column in texts.values() for text in column]
    packed = struct.pack(f"<{count * len(numbers)}d", *(x for c in numbers.values() for x in c))
    index = Named(
        "pandas.core.indexes.base",
        "_new_Index",
        (0, {"data": array((len(names),), "O8", names)}),
        None,
    )
    blocks = [
        {"values": array((len(texts), count), "O8", flat),
         "mgr_locs": Named("builtins", "slice", (0, len(texts), 1), None)},
        {"values": array((len(numbers), count), "f8", packed),
         "mgr_locs": Named("builtins", "slice", (len(texts), len(names), 1), None)},
    ]  # fmt: skip
    manager = Named(
        "pandas.core.internals.managers",
        "BlockManager",
        (),
        ([], [], [], {"0.14.1": {"axes": [index], "blocks": blocks}}),
    )
    return Named("pandas.core.frame", "DataFrame", (), {"_data": manager})


def release(tmp_path: Path) -> Path:
    tables = {}
    for task in grace_data.TASKS.values():
        runs = [  # method, mode, rate, workers, speed, quality
            ("none", "throughput", "1g", 8.0, 4.0, float("nan")),
            ("topk", "throughput", "1g", 8.0, 5.0, float("nan")),
            ("topk", "throughput", "1g", 8.0, 6.0, float("nan")),  # the faster counts
            ("topk", "throughput", "1g", 2.0, 99.0, float("nan")),  # of other workers: not
            ("topk", "accuracy", "n/a", 8.0, float("nan"), 0.5),
            ("topk", "accuracy", "n/a", 8.0, float("nan"), 0.25),
        ]
        name, mode, rate, workers, speed, quality = map(list, zip(*runs))
        texts = {"name": name, "mode": mode, "bw": rate, "model": [task.model] * len(runs)}
        figures = {"workers": workers, task.throughput: speed, task.quality: quality}
        tables[task.table] = frame(texts, figures)
    path = tmp_path / "data.pickle"
    path.write_bytes(dumped(tables))
    return path


def test_figures_of_eight_workers(tmp_path: Path) -> None:
    lines = list(grace_data.read(release(tmp_path)))
    assert [line["task"] for line in lines] == ["LSTM"] * 2 + ["NCF"] * 2 + ["ResNet-50"] * 2
    for none, topk in zip(lines[::2], lines[1::2]):
        assert (none["method"], none["over none, 1gbit"], none["quality"]) == ("none", "1.000", "")
        assert (topk["method"], topk["over none, 1gbit"]) == ("topk", "1.500")
        assert (topk["over none, 10gbit"], topk["quality"]) == ("", "0.375")


def test_a_file_that_would_run_something_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.pickle"
    path.write_bytes(dumped(Named("os", "system", (f"touch {tmp_path}/ran",), None)))
    with pytest.raises(pickle.UnpicklingError, match=r"names os\.system, .* use their release"):
        list(grace_data.read(path))
    assert not (tmp_path / "ran").exists()


def test_the_committed_figures_have_every_method_that_is_shown() -> None:
    for _, lstm, ncf in published.METHODS.values():
        assert not lstm or any(published.theirs("LSTM", lstm)[:2])
        assert not ncf or any(published.theirs("NCF", ncf)[:2])
    assert published.theirs("LSTM", "none") == ["1.00", "1.00", "100.2"]
