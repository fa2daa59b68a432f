"""The text of Python's own standard library as numbers, for language models to be trained on."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from pathlib import Path


def numbered_words(vocabulary: int) -> list[int]:
    """Words and signs in order; the more frequent, the smaller the number; 0: all the others."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    words = re.findall(r"\w+|[^\w\s]", text)
    common = Counter(words).most_common(vocabulary - 1)
    number = {word: i for i, (word, _) in enumerate(common, start=1)}
    return [number.get(word, 0) for word in words]
