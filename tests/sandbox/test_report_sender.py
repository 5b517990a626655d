"""Sending reports: over a real connection, repeated after temporary refusals, and ended by stop()."""

from __future__ import annotations

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.task import Clock

from mailsvc.mail.address import Path
from mailsvc.mail.reply import Reply
from mailsvc.sandbox import report_sender
from mailsvc.sandbox.inbox import SandboxInbox, listener
from mailsvc.sandbox.report_sender import ReportSender
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.listener import ServerFactory
from tests.sandbox.test_inbox import Store, verify

REPORT = b"Subject: report\r\n\r\nx\r\n"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_sender, "PAUSES", (0.0, 0.0, 0.0, 0.0))


class Port(SandboxInbox):
    """Gives these replies to RCPT, one for each attempt, and then accepts mail."""

    answers: list[Reply]

    def reply(self, sender: str, recipient: Path) -> Reply:
        return self.answers.pop(0) if self.answers else replies.RECIPIENT_OK


@pytest.mark.parametrize(("codes", "accepted"), [([], True), ([451, 451], True), ([550], False), ([451] * 4, False)])
@pytest_twisted.ensureDeferred
async def test_a_report_is_retried_until_it_is_accepted_or_permanently_refused(codes: list[int], accepted: bool) -> None:
    from twisted.internet import reactor

    store, answers = Store(), [Reply(code, "no") for code in codes]
    inbox = Port(store, lambda address: None, verify, reactor)
    inbox.answers = answers
    factory = ServerFactory(listener("sandbox.test"), inbox.open_session, reactor)
    port = await serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(factory)
    reports = ReportSender(reactor, lambda: port.getHost().port)
    reports.send("b-x@send.example.com", REPORT)
    [sending] = reports._in_progress
    over: Deferred[None] = Deferred()
    sending.addBoth(over.callback)
    await over
    assert [(mail.sender, mail.recipients, mail.message) for mail in store.mails] == (
        [("", ("b-x@send.example.com",), REPORT)] if accepted else []
    )
    assert answers == [] and not reports._in_progress
    await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_stop_cancels_pending_reports() -> None:
    clock = Clock()
    reports = ReportSender(clock, lambda: None)
    reports.send("b-x@send.example.com", REPORT)
    assert clock.getDelayedCalls()
    await reports.stop()
    assert not clock.getDelayedCalls() and not reports._in_progress
