"""A message of a running job says what to do, or docs/troubleshooting.md does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents.test_quoted_messages import MESSAGES, plain

ROOT = Path(__file__).parents[2]
# Their messages reach the users of a job.
MET = re.compile(
    r"omnihvd/"
    r"(csrc/(algorithms|base|communicator|engine|innetwork|intercept|transport)|intercept|torch)/"
)
REMEDY = re.compile(
    r"\b(allow|choose|compress|end it|give|import|install|join|leave|let|load|make|name|reduce|set|"
    r"see|start|try|unset|use)s?\b|OMNIHVD_[A-Z]|chmod|--shm-size|says why|says which|\?$|=False",
    re.IGNORECASE,
)
# Messages that need no remedy, by what they begin with.
PART = "another message begins or ends with it"
FAULTY = "another program or a faulty peer sent it; the connection is refused"
CALLER = "the caller of a C++ or Python function passed it"
SYSTEM = "the system's own reason follows"
WITHOUT = "omnihvd goes on in another way, and says how"
NONE = {
    "an allreduce of": PART,
    "did not end within": PART,
    "among ranks": PART,
    "omnihvd cannot start on": PART,
    "a group of": PART,
    "cannot be asked": PART,
    "rank": PART,
    "it does not answer": PART,
    "it names no address": PART,
    "it claims to be from": PART,
    "the file cannot be read": PART,
    "a secret needs at least": PART,
    "is no IPv4 address": PART,
    "of MB": PART,
    "is , and libomnihvd": PART,
    "but has: the group's key": PART,
    "cannot in": PART,
    "non-zero blocks": PART,
    "left to": PART,
    "omnihvd-ranks-": PART,
    "is not loaded in this process": PART,
    "has no function": PART,
    "neither": PART,
    "its vtables": PART,
    "does not look its Gloo": PART,
    "cannot be loaded": PART,
    "is no MPI": PART,
    "refuses this job": PART,
    "cannot connect to": PART,
    "malformed": FAULTY,
    "a message for a group": FAULTY,
    "a sender that is not": FAULTY,
    "a shape that this group": FAULTY,
    "the address of a": FAULTY,
    "too much to tell": CALLER,
    "sums of": CALLER,
    "a reduce-scatter needs": CALLER,
    "aggregators that are dedicated": CALLER,
    "this rank has left the group": CALLER,
    "is for Horovod": CALLER,
    "an in-network aggregator takes no such": CALLER,
    "a job has 1 to": CALLER,
    "an aggregator takes 1 to": CALLER,
    "a worker needs slots": CALLER,
    "a window of datagrams": CALLER,
    "refuses a job": "the error of the refused worker says it",
    "is no multicast address": "it says which addresses are",
    "they are all on one host": WITHOUT,
    "the hosts have different numbers": WITHOUT,
    "the ranks of a communicator": WITHOUT,
    "no dedicated aggregator is left": WITHOUT,
    "UCX may keep": WITHOUT,
    "not all ranks can be told": WITHOUT,
    "the trace could not be written": SYSTEM,
    "no random numbers": SYSTEM,
    "cannot be reached": SYSTEM,
    "the aggregator cannot be reached": SYSTEM,
    "cannot open a socket of UDP": SYSTEM,
    "sends to a multicast group": SYSTEM,
    "cannot send to a group from": SYSTEM,
    "no socket of AF_XDP": SYSTEM,
    "no AF_XDP socket on": SYSTEM,
    "AF_XDP: no memory for frames": SYSTEM,
    "cannot add a job to the XDP program": SYSTEM,
    "the kernel cannot run the XDP program": SYSTEM,
    "the kernel refuses the XDP program": SYSTEM,
    "cannot attach to interface": SYSTEM,
    "a buffer in a GPU": "the driver's own reason follows",
    "cannot find out": "MPI's own reason follows",
}
TABLE = (ROOT / "docs/troubleshooting.md").read_text()
TROUBLES = [
    re.sub(r"\.\.\.|\([^)]*\)|\b(rank|aggregator) \d|\d+|float32", "{}", row)
    for row in re.findall(r"(?:^\| |, )`(.*?)`(?=,| \|)", TABLE, re.MULTILINE)
]


def pieces(text: str) -> list[str]:
    """Its own pieces, of three words and more."""
    return [p for p in (p.strip(" ,:;()") for p in text.split("{}")) if p.count(" ") >= 2]


def in_table(text: str) -> bool:
    return any(a in b or b in a for row in TROUBLES for a in pieces(text) for b in pieces(row))


@pytest.mark.parametrize(
    "message", [m for m in MESSAGES if MET.match(m.place)], ids=lambda m: plain(m.text)[:60]
)
def test_a_remedy(message) -> None:
    text = " ".join(message.text.replace("{}", " ").split()).strip(" ,:;()")
    if REMEDY.search(text) or text.startswith(tuple(NONE)):
        return
    assert in_table(message.text), (
        f"{message.place}: say what to do, in the message or in docs/troubleshooting.md"
    )


@pytest.mark.parametrize("beginning", NONE)
def test_an_exception_has_a_message(beginning) -> None:
    texts = [" ".join(m.text.replace("{}", " ").split()).strip(" ,:;()") for m in MESSAGES]
    assert any(text.startswith(beginning) for text in texts)
