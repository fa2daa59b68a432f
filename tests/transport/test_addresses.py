"""Numbers of an address that are too large for their field: refused, not cut."""

from __future__ import annotations

import struct

import pytest
from ends import KINDS, End

from omnihvd.engine import EngineError

WORD = struct.Struct("<Q")
# In the body, by transport: "text" or the bits of a number. First the owner, as in all addresses.
OWNER = ["text", 32, 64, "text", "text"]
FIELDS = {"ucx": [*OWNER, 32, "text", "text", "text"], "udp": [*OWNER, 16, "text", 1, 64]}
PLACE = [32, 32, 32]


def fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def with_number(address: bytes, at: int, number: int) -> bytes:
    """The address with this number at this place of its body, and undamaged."""
    head = len("omnihvd udp 1")
    body = bytearray(address[head + 8 :])
    WORD.pack_into(body, at, number)
    return address[:head] + WORD.pack(fnv1a(body)) + bytes(body)


def numbers_in(address: bytes, transport: str) -> list[tuple[int, int, int]]:
    """Each number in the body: where it is, how many bits it may have, and its value."""
    body, at, found = address[len("omnihvd udp 1") + 8 :], 0, []
    fields = list(FIELDS[transport])
    while fields:
        field = fields.pop(0)
        (value,) = WORD.unpack_from(body, at)
        if field == "text":
            at += value
        else:
            found.append((at, field, value))
        at += 8
        if not fields and transport == "udp" and field == 64:
            fields = PLACE * value
    assert at == len(body)
    return found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_numbers_too_large_for_their_field_are_refused(kind: str) -> None:
    a, b = End(kind), End(kind)
    address, transport = bytes(b.transport.address()), KINDS[kind][0]
    fields = [field for field in numbers_in(address, transport) if field[1] < 64]
    assert len(fields) >= (2 if transport == "ucx" else 3)
    for at, bits, value in fields:
        assert value < 2**bits
        for wrong in (value + 2**bits, 2**64 - 1):
            with pytest.raises(EngineError, match="malformed"):
                a.transport.connect(with_number(address, at, wrong))
    a.transport.connect(with_number(address, *fields[0][::2]))  # as it was
