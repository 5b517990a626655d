"""Mail that is forwarded to the operator: its trace, and how much strangers can send."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from email import message_from_bytes
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred

from mailsvc.intake import Admitted, Incoming
from mailsvc.mail.address import Mailbox
from mailsvc.mail.reply import Reply
from mailsvc.relay.inbound import PostmasterMail
from mailsvc.relay.postmaster import SIZE, TOO_LARGE, TOO_MUCH, Postmaster, received, wrapped

DAY = 86_400.0
DATE = datetime(2026, 11, 28, 13, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("client", "name", "origin"),
    [
        ("192.0.2.1", "mx.other.example", "mx.other.example ([192.0.2.1])"),
        ("2001:db8::1", "[IPv6:2001:db8::1]", "[IPv6:2001:db8::1] ([IPv6:2001:db8::1])"),
        ("192.0.2.1", "x(;by", "unknown ([192.0.2.1])"),  # would be read as syntax of the field
        ("192.0.2.1", "B\N{REPLACEMENT CHARACTER}ro-PC", "unknown ([192.0.2.1])"),
        ("192.0.2.1", "", "unknown ([192.0.2.1])"),
        ("192.0.2.1", "a" * 255, "a" * 255 + " ([192.0.2.1])"),
    ],
)
def test_forwarded_mail_says_where_it_came_from(client: str, name: str, origin: str) -> None:
    mail = PostmasterMail("who@example.org", ("abuse@mx.test",), client, name, "ESMTPS", b"Subject: help\r\n\r\nx\r\n")
    boxes = Mailbox("", "postmaster", "example.com"), Mailbox("", "ops", "example.com")
    message = wrapped(mail, received(mail, "mx.test", DATE), *boxes, "<1@example.com>", DATE)
    parsed = message_from_bytes(message)
    assert parsed["Content-Transfer-Encoding"] == "8bit"
    _note, attached = parsed.get_payload()
    [inner] = attached.get_payload()  # type: ignore[union-attr]
    assert " ".join(inner["Received"].split()) == f"from {origin} by mx.test with ESMTPS; Sat, 28 Nov 2026 13:00:00 +0000"
    assert inner["Subject"] == "help"


class Rig:
    """A Postmaster whose mail ends in `forwarded`. `complaint`: whether each mail is one."""

    def __init__(self) -> None:
        self.now, self.complaint = 100 * DAY, False
        self.forwarded: list[Incoming] = []
        domain = SimpleNamespace(account_id=UUID(int=1), id=UUID(int=2), name="example.com")

        async def called(name: str) -> object:
            return domain

        async def submit(caller: object, emails: Sequence[Incoming]) -> Admitted:
            self.forwarded += emails
            return Admitted((UUID(int=3),))

        async def read_complaint(message: bytes) -> bool:
            return self.complaint

        domains, intake = cast(Any, SimpleNamespace(called=called)), cast(Any, SimpleNamespace(submit=submit))
        to = Mailbox("", "ops", "example.org")
        self.postmaster = Postmaster(to, "example.com", "mx.test", domains, intake, lambda: self.now, read_complaint)

    def forward(self, client: str, size: int) -> Reply | None:
        mail = PostmasterMail("who@example.org", ("abuse@mx.test",), client, "mx", "ESMTP", b"x" * size)
        replies: list[Reply | None] = []
        Deferred.fromCoroutine(self.postmaster.forward(mail)).addCallback(replies.append)
        return replies[0]


def test_strangers_cannot_have_more_stored_in_a_day_than_the_allowance() -> None:
    rig = Rig()
    assert [rig.forward("192.0.2.1", SIZE) for _ in range(13)] == [None] * 12 + [TOO_MUCH]
    assert rig.forward("192.0.2.2", SIZE) is None, "there is room for others"
    replies = [rig.forward(f"2001:db8:{number:x}::1", SIZE) for number in range(100)]
    assert replies.count(None) == len(rig.forwarded) - 13 and len(rig.forwarded) <= 25
    assert rig.forward("198.51.100.1", 1000) is None
    rig.now += DAY
    assert rig.forward("192.0.2.1", SIZE) is None


def test_small_mails_of_one_network_count_together() -> None:
    rig = Rig()
    replies = [rig.forward(f"2001:db8::{number % 50:x}", 10) for number in range(9000)]
    assert replies[8000] is TOO_MUCH is replies[-1] and 7000 < len(rig.forwarded) <= 8000


def test_a_complaint_is_accepted_when_there_is_no_room_to_forward_it() -> None:
    rig = Rig()
    while rig.forward("192.0.2.1", SIZE) is None:
        pass
    rig.complaint, before = True, len(rig.forwarded)
    assert rig.forward("192.0.2.1", SIZE) is None and len(rig.forwarded) == before


def test_a_large_mail_is_not_forwarded() -> None:
    rig = Rig()
    assert rig.forward("192.0.2.1", SIZE + 1) is TOO_LARGE and not rig.forwarded
