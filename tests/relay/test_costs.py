"""What the way in of a mail costs, counted and not timed: calls of Python functions from the octets of its session to intake.

The bounds are a tenth above what was counted with Python 3.11; later versions call less.
"""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from tests.bench.mails import mail
from tests.relay.harness import World

MAILS = 50
APART = ("/tests/", "/twisted/internet/task.py", "/twisted/internet/base.py", "/twisted/internet/testing.py")


@pytest.mark.parametrize(("size", "octets", "most"), [(4096, 1 << 16, 376), (51200, 1 << 14, 508)])
def test_calls_of_a_mail_that_came_in(size: int, octets: int, most: int) -> None:
    world = World(rate=10**9)
    client = world.logged_in()
    message = mail("me@example.com", size) + b".\r\n"
    pieces = [message[at : at + octets] for at in range(0, len(message), octets)]
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and not any(part in frame.f_code.co_filename for part in APART)

    def send() -> None:
        for said in (b"MAIL FROM:<me@example.com>\r\n", b"RCPT TO:<customer@example.test>\r\n", b"DATA\r\n", *pieces):
            client.client.protocol.dataReceived(said)

    send()
    sys.setprofile(count)
    try:
        for _ in range(MAILS):
            send()
    finally:
        sys.setprofile(None)
    assert len(world.intake.messages) == MAILS + 1
    assert calls / MAILS <= most
