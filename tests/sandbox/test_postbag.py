"""Reports on their way: over a real connection, again when they were not taken, and not after the end."""

from __future__ import annotations

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.task import Clock

from mailsvc.mail.address import Path
from mailsvc.mail.reply import Reply
from mailsvc.sandbox import postbag
from mailsvc.sandbox.inbox import SandboxInbox, listener
from mailsvc.sandbox.postbag import Postbag
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.listener import ServerFactory
from tests.sandbox.test_inbox import Shelf, verify

REPORT = b"Subject: report\r\n\r\nx\r\n"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postbag, "PAUSES", (0.0, 0.0, 0.0, 0.0))


class Port(SandboxInbox):
    """Gives these replies to RCPT, one for each try, and then takes mail."""

    answers: list[Reply]

    def answer(self, sender: str, recipient: Path) -> Reply:
        return self.answers.pop(0) if self.answers else replies.RECIPIENT_OK


@pytest.mark.parametrize(("codes", "arrives"), [([], True), ([451, 451], True), ([550], False), ([451] * 4, False)])
@pytest_twisted.ensureDeferred
async def test_a_report_is_brought_until_it_is_taken_or_refused_for_good(codes: list[int], arrives: bool) -> None:
    from twisted.internet import reactor

    shelf, answers = Shelf(), [Reply(code, "no") for code in codes]
    inbox = Port(shelf, lambda address: None, verify, reactor)
    inbox.answers = answers
    receivers = ServerFactory(listener("sandbox.test"), inbox.welcome, reactor)
    port = await serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(receivers)
    bag = Postbag(reactor, lambda: port.getHost().port)
    bag.post("b-x@send.example.com", REPORT)
    [under_way] = bag._under_way
    over: Deferred[None] = Deferred()
    under_way.addBoth(over.callback)
    await over
    assert [(mail.sender, mail.recipients, mail.message) for mail in shelf.mails] == (
        [("", ("b-x@send.example.com",), REPORT)] if arrives else []
    )
    assert answers == [] and not bag._under_way
    await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_the_end_ends_it() -> None:
    clock = Clock()
    bag = Postbag(clock, lambda: None)
    bag.post("b-x@send.example.com", REPORT)
    assert clock.getDelayedCalls()
    await bag.stop()
    assert not clock.getDelayedCalls() and not bag._under_way
