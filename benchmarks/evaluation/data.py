"""Files inside packages, which are not imported, only read: `pip install '.[evaluation]'`."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np


def file_of(package: str, path: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} has the data of this task: pip install '.[evaluation]'")
    return Path(next(iter(spec.submodule_search_locations))) / path


def safetensors(file: Path) -> dict[str, Any]:
    """Tensors by name, float32."""
    import torch

    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if entry.get("dtype") == "F32":
            first, last = entry["data_offsets"]
            values = np.frombuffer(data[start + first : start + last], np.float32).copy()
            tensors[name] = torch.from_numpy(values).view(entry["shape"])
    return tensors


class WordPieces:
    """BERT's tokenizer for plain lower-case text: the longest piece that fits, again and again."""

    def __init__(self, vocabulary: Path) -> None:
        pieces = vocabulary.read_text(encoding="utf-8").splitlines()
        self._number = {piece: number for number, piece in enumerate(pieces)}

    def numbers(self, text: str, length: int) -> list[int]:
        """[CLS] ... [SEP], cut or padded to `length`."""
        found = [self._number["[CLS]"]]
        for word in re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower()):
            found += self._pieces(word)
        found = [*found[: length - 1], self._number["[SEP]"]]
        return found + [self._number["[PAD]"]] * (length - len(found))

    def _pieces(self, word: str) -> list[int]:
        found, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self._number.get("##" * (start > 0) + word[start:end])
                if number is not None:
                    break
            else:
                return [self._number["[UNK]"]]
            found.append(number)
            start = end
        return found
