"""DSNs: who gets them, and what they contain, with a fake store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs
import pytest
from twisted.internet.defer import Deferred

from mailsvc.intake import Admitted, AsReceived, Busy, Incoming, Rejected
from mailsvc.mail.reports import dsn_reader, report
from mailsvc.policy import Refusal
from mailsvc.relay.dsn_sender import FULL_LIMIT, DsnSender
from mailsvc.store.events.event_data import Bounce, Delivery, Suppressed
from mailsvc.store.mail.dsn_requests import ForwardedReport, Notice, ReportItem
from mailsvc.store.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.store.mail.messages import StoredMessage
from mailsvc.store.postgres.errors import Damaged

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
MESSAGE = b"From: me@example.com\r\nSubject: about this\r\n\r\nthe body\r\n"
GONE = ReportItem("a@example.net", 0, "email.bounced", NOW, Bounce("Permanent", "General", "550 5.1.1 nobody"))
NOTICE = Notice(
    report=UUID(int=1),
    account_id=UUID(int=2),
    email_id=UUID(int=3),
    domain_id=UUID(int=4),
    domain="example.com",
    message_id="<1@example.com>",
    sender="me@example.com",
    created_at=NOW,
    envelope=StoredEnvelope("someone@elsewhere.example", notify=("FAILURE",)),
    items=(GONE,),
)


@attrs.define
class Rig:
    """The store, the messages and intake in one."""

    notices: list[Notice]
    message: bytes = MESSAGE
    answer: Any = None
    finished: list[UUID] = attrs.field(factory=list)
    postponed: list[UUID] = attrs.field(factory=list)
    sent: list[Incoming] = attrs.field(factory=list)
    loaded: list[int | None] = attrs.field(factory=list)

    async def take(self, now: datetime, limit: int = 500) -> Sequence[Notice]:
        return self.notices

    async def done(self, report: UUID) -> None:
        self.finished.append(report)

    async def postpone(self, report: UUID, now: datetime) -> None:
        self.postponed.append(report)

    async def load(self, account_id: UUID, email_id: UUID, most: int | None = None) -> StoredMessage | None:
        self.loaded.append(most)
        return StoredMessage(None, self.message)

    async def submit(self, caller: Any, emails: Sequence[Incoming], key: Any = None, *, permissive: bool = False) -> Any:
        assert (caller.account_id, caller.domain_id, key.key) == (NOTICE.account_id, NOTICE.domain_id, str(NOTICE.report))
        self.sent += emails
        return self.answer or Admitted((UUID(int=9),))


def send_due(rig: Rig) -> list[bytes]:
    """Send what is due, and return the messages."""
    counts: list[int] = []
    Deferred.fromCoroutine(DsnSender(rig, rig, rig, "mx.test", NOW.timestamp).send_due()).addCallback(counts.append)
    assert counts == [len(rig.notices)]
    contents = [email.content for email in rig.sent]
    return [content.message for content in contents if isinstance(content, AsReceived) and isinstance(content.message, bytes)]


def about(**changes: Any) -> Notice:
    return attrs.evolve(NOTICE, **changes)


@pytest.mark.parametrize("sender", ["someone@elsewhere.example", "me@example.com", '"odd one"@x.example'])
def test_dsns_go_to_the_envelope_sender(sender: str) -> None:
    rig = Rig([about(envelope=StoredEnvelope(sender, envid="e 1"))])
    [message] = send_due(rig)
    [email] = rig.sent
    assert isinstance(email.content, AsReceived) and email.content.recipients == (sender,)
    assert email.content.envelope == StoredEnvelope(report=True) and email.sender.address == "mailer-daemon@example.com"
    assert b"\r\nOriginal-Envelope-Id: e 1\r\n" in message and b"the body" not in message
    assert rig.finished == [NOTICE.report]


@pytest.mark.parametrize("changes", [{"envelope": EMPTY}, {"envelope": StoredEnvelope("no address")}, {"items": ()}])
def test_notices_without_recipient_or_content_are_done(changes: dict[str, Any]) -> None:
    rig = Rig([about(**changes)])
    assert send_due(rig) == [] and rig.finished == [NOTICE.report]


def test_suppressed_recipients_are_reported() -> None:
    reason = "The address is on the suppression list."
    [message] = send_due(Rig([about(items=(attrs.evolve(GONE, type="email.suppressed", data=Suppressed("manual", reason)),))]))
    found = dsn_reader.read(report.read(message))
    assert found is not None and [(recipient.action, recipient.final) for recipient in found.recipients] == [("failed", "a@example.net")]
    assert reason.encode() in message


def test_the_server_that_replied_is_named() -> None:
    """RFC 3464 §2.3.5. Not for what this service decided itself."""
    said = (Bounce("permanent", "general", "550 5.1.1 no such user"), Bounce("permanent", "general", "", "It waited for five days."))
    items = tuple(ReportItem(f"{n}@example.net", n, "email.bounced", NOW, data, "mx.example.net") for n, data in enumerate(said))
    [message] = send_due(Rig([about(items=items)]))
    found = dsn_reader.read(report.read(message))
    assert found is not None and [recipient.remote for recipient in found.recipients] == ["mx.example.net", ""]


def test_reports_of_other_servers_are_forwarded_unchanged() -> None:
    data = ForwardedReport(0, "delivered", "250 2.1.5 in the mailbox", "mx.example.net")
    items = (attrs.evolve(GONE, type="forwarded", data=data), ReportItem("b@example.net", 1, "email.delivered", NOW, Delivery("250 ok")))
    [message] = send_due(Rig([about(items=items)]))
    found = dsn_reader.read(report.read(message))
    assert found is not None
    assert [(recipient.action, recipient.status, recipient.remote) for recipient in found.recipients] == [
        ("delivered", "2.1.5", "mx.example.net"),
        ("relayed", "2.0.0", ""),
    ]


def test_internationalized_senders_get_the_rfc_6533_format() -> None:
    rig = Rig([about(envelope=StoredEnvelope("jörg@elsewhere.example", smtputf8=True, orcpt=("utf-8;ö@example.net",)))])
    [message] = send_due(rig)
    assert isinstance(rig.sent[0].content, AsReceived)
    assert rig.sent[0].content.envelope == StoredEnvelope(report=True, smtputf8=True)
    assert b"report-type=global-delivery-status" in message and "Original-Recipient: utf-8; ö@example.net".encode() in message


@pytest.mark.parametrize(("content", "whole"), [(1000, True), (FULL_LIMIT + 1, False)])
def test_of_a_large_mail_only_the_header_is_returned(content: int, whole: bool) -> None:
    rig = Rig([about(envelope=StoredEnvelope("me@example.com", ret="FULL"))], MESSAGE + b"x" * (content - len(MESSAGE)))
    [message] = send_due(rig)
    assert (b"the body" in message) == whole and rig.loaded == [FULL_LIMIT + 1]


def test_a_damaged_message_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig([about(email_id=UUID(int=7), report=UUID(int=8)), NOTICE])
    load = rig.load

    async def damaged(account_id: UUID, email_id: UUID, most: int | None = None) -> StoredMessage | None:
        if email_id == UUID(int=7):
            raise Damaged("a compressed message is damaged")
        return await load(account_id, email_id, most)

    monkeypatch.setattr(Rig, "load", staticmethod(damaged))
    [message] = send_due(rig)
    assert b"a@example.net" in message and rig.finished == [NOTICE.report] and rig.postponed == [UUID(int=8)]


def test_a_busy_intake_is_retried() -> None:
    rig = Rig([NOTICE], answer=Busy())
    send_due(rig)
    assert rig.finished == []
    rig.answer = Rejected({0: Refusal("domain", "from", "No.")})
    send_due(rig)
    assert rig.finished == [NOTICE.report]
