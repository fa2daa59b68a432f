"""The words between --report and the script, and those of `omnihvd report`."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from omnihvd.rates import rate

NEEDS = "name a folder, and the script to run: --report out/ train.py"
DEFAULT_RATES = ["1gbit", "10gbit", "100gbit"]
DEFAULT_RANKS = [4, 16, 64]


def parser(**more: Any) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(**more)
    rates, ranks = " ".join(DEFAULT_RATES), " ".join(map(str, DEFAULT_RANKS))
    p.add_argument(
        "--rate",
        dest="rates",
        metavar="RATE",
        nargs="+",
        type=rate,
        help=f"rates of links (default: {rates})",
    )
    p.add_argument(
        "--ranks",
        metavar="N",
        nargs="+",
        type=functools.partial(_integer, least=2),
        help=f"numbers of ranks, one a host (default: {ranks})",
    )
    return p


def split(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """words: --report FOLDER [OPTIONS] SCRIPT ... Returns arguments of report.start(), and the
    script with its own words. ValueError for wrong options."""
    p = parser(
        prog="omnihvd --report",
        usage="omnihvd --report FOLDER [--rate RATE ...] [--ranks N ...] [--every N]\n"
        "                        SCRIPT ...",
        description="Runs a script with sums as they are, and reports what omnihvd would do.",
    )
    p.add_argument("folder", help="where the report goes")
    p.add_argument(
        "--every",
        metavar="N",
        type=functools.partial(_integer, least=1),
        help="look at every N-th step, whatever it costs",
    )
    p.error = _refuse  # type: ignore[assignment]
    at = 2
    while at < len(words) and _is_ours(words[at - 1], words[at]):
        at += 1
    if words[1:2] and words[1][:1] != "-" and Path(words[1]).is_file():
        raise ValueError(f"{words[1]} is a file: {NEEDS}")
    args = p.parse_args(words[1:at])
    if not words[at:]:
        raise ValueError(NEEDS)
    return vars(args), words[at:]


def _is_ours(before: str, word: str) -> bool:
    """The word after an option is its value, even if it looks like an option."""
    options = ("--rate", "--ranks", "--every", "-h", "--help")
    return word in options or before in options or (word[0:1].isdigit() and not Path(word).exists())


def _refuse(message: str) -> None:
    raise ValueError(message.replace("the following arguments are required: folder", NEEDS))


def _integer(text: str, least: int) -> int:
    if not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text}: a number of {least} or more")
    return int(text)
