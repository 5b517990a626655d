"""stringzilla has a version of each function for each set of instructions. All that this machine has must agree with Python's bytes."""

from random import Random

import pytest
import stringzilla

ALL = tuple(stringzilla.__capabilities__)
NEEDLES = (b"  ", b" \r", b"\r\n.", b"\r\n.\r\n", b"\r\n--", b"\r\n--limit-77")
TABLES = [bytes(byte == end for byte in range(256)) for end in b"\r\n"]


@pytest.fixture(params=range(1, len(ALL) + 1), ids=lambda count: ALL[count - 1])
def instructions(request):
    stringzilla.reset_capabilities(ALL[: request.param])
    yield
    stringzilla.reset_capabilities(ALL)


def test_it_finds_and_translates_as_bytes_do(instructions):
    chance = Random(7)
    for number in range(3000):
        alphabet = chance.choice((b"\r\n ", b"\r\n-.a \xff\x8d\x8a", b"-lim7\r\n"))
        text = bytes(chance.choices(alphabet, k=chance.randrange(3000 if number % 20 == 0 else 150)))
        start = chance.randrange(len(text) + 3)
        for needle in NEEDLES:
            assert stringzilla.find(text, needle, start) == text.find(needle, start)
        for table in TABLES:
            assert stringzilla.translate(text, table) == text.translate(table)
