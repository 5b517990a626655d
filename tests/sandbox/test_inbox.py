"""The sandbox over its wire, without a network: what it answers and what it keeps."""

from __future__ import annotations

from uuid import UUID

import attrs
import pytest
from twisted.internet.task import Clock

from mailsvc.bounces import reading
from mailsvc.mail import return_path
from mailsvc.sandbox.inbox import SandboxInbox, listener
from mailsvc.store.mail.sandbox import ReceivedMail, Verdict
from tests.smtp.harness import Call

EMAIL = UUID("019a0000-0000-7000-8000-000000000001")
OTHER = UUID("019a0000-0000-7000-8000-000000000002")
SECRET = b"a secret"
RETURN_PATH = return_path.make("send.example.com", 7, EMAIL, SECRET)
HELD = Verdict("example.com", "s1", "rsa-sha256", "pass")


@attrs.define(eq=False)
class Shelf:
    mails: list[ReceivedMail] = attrs.field(factory=list)

    async def add(self, mail: ReceivedMail) -> UUID:
        self.mails.append(mail)
        return EMAIL


async def verify(message: bytes) -> tuple[Verdict, ...]:
    return (HELD,)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def call(shelf: Shelf) -> Call:
    clock = Clock()
    clock.advance(1_780_000_000)
    inbox = SandboxInbox(shelf, lambda address: return_path.read(address, SECRET), verify, clock)
    call = Call(listener("sandbox.test"), clock, inbox.welcome)
    call.say(b"EHLO me\r\n")
    call.heard()
    return call


def envelope(call: Call, *recipients: str, sender: str = RETURN_PATH) -> list[str]:
    """The replies to the recipients."""
    call.say(f"MAIL FROM:<{sender}>\r\n".encode() + b"".join(f"RCPT TO:<{recipient}>\r\n".encode() for recipient in recipients))
    return call.heard().decode().splitlines()[1:]


def test_keeps_what_came_in(call: Call, shelf: Shelf) -> None:
    assert envelope(call, "delivered@localhost", "anyone@example.org") == ["250 2.1.5 Recipient OK"] * 2
    call.say(b"DATA\r\n")
    call.say(b"Subject: hi\r\n\r\n..dots\r\n.\r\n")
    assert call.heard().endswith(f"250 2.0.0 Kept as {EMAIL}\r\n".encode())
    (mail,) = shelf.mails
    assert (mail.sender, mail.recipients) == (RETURN_PATH, ("delivered@localhost", "anyone@example.org"))
    assert mail.message == b"Subject: hi\r\n\r\n.dots\r\n"
    assert (mail.account_number, mail.email_id, mail.dkim, mail.tls) == (7, EMAIL, (HELD,), None)
    assert mail.received_at.timestamp() == 1_780_000_000


def test_knows_our_message_id_when_the_return_path_is_not_ours(call: Call, shelf: Shelf) -> None:
    envelope(call, "a@example.org", sender="someone@example.net")
    call.say(b"DATA\r\n")
    call.say(f"Subject: hi\r\nMessage-ID: <{OTHER}@example.com>\r\n\r\nMessage-ID: <{EMAIL}@example.com>\r\n.\r\n".encode())
    assert (shelf.mails[0].account_number, shelf.mails[0].email_id) == (None, OTHER)


@pytest.mark.parametrize("recipient", ["bounced@example.org", "Bounced+label@x.test", "bounced+a+b@localhost"])
def test_bounces(call: Call, recipient: str) -> None:
    assert envelope(call, recipient)[0].startswith("550 5.1.1 ")


@pytest.mark.parametrize("recipient", ["unbounced@example.org", "bounced.not@example.org", "delayedx@example.org"])
def test_only_the_very_local_part_counts(call: Call, recipient: str) -> None:
    assert envelope(call, recipient)[0].startswith("250 ")


def test_delays_twice_per_email_and_recipient(call: Call) -> None:
    def codes(*recipients: str, sender: str = RETURN_PATH) -> list[str]:
        found = [reply[:3] for reply in envelope(call, *recipients, sender=sender)]
        call.say(b"RSET\r\n")
        call.heard()
        return found

    other = return_path.make("send.example.com", 7, OTHER, SECRET)
    assert codes("delayed@a.test", "delayed+x@a.test", "fine@a.test") == ["451", "451", "250"]
    assert codes("delayed@a.test", sender=other) == ["451"]
    assert codes("DELAYED@a.test", "delayed+x@a.test") == ["451", "451"]
    assert codes("delayed@a.test", "delayed+x@a.test") == ["250", "250"]
    assert codes("delayed@a.test", sender=other) == ["451"]
    assert codes("delayed@a.test", sender=other) == ["250"]


def test_nobody_is_sent_away_for_many_bounces(call: Call) -> None:
    assert len(envelope(call, *["bounced@a.test"] * 500)) == 500
    assert not call.closed


@attrs.define(eq=False)
class Postbag:
    posted: list[tuple[str, bytes]] = attrs.field(factory=list)

    def post(self, to: str, message: bytes) -> None:
        self.posted.append((to, message))


@attrs.define(eq=False)
class World:
    shelf: Shelf = attrs.field(factory=Shelf)
    postbag: Postbag = attrs.field(factory=Postbag)

    def send(self, *recipients: str, sender: str = RETURN_PATH, message: bytes = b"Subject: hi\r\n\r\nHi.\r\n") -> str:
        """The reply to the final dot."""
        clock = Clock()
        clock.advance(1_780_000_000)
        inbox = SandboxInbox(self.shelf, lambda address: return_path.read(address, SECRET), verify, clock, self.postbag)
        call = Call(listener("sandbox.test"), clock, inbox.welcome)
        call.say(b"EHLO me\r\n")
        call.heard()
        envelope(call, *recipients, sender=sender)
        call.say(b"DATA\r\n")
        call.heard()
        call.say(message + b".\r\n")
        return call.heard().decode()


@pytest.mark.parametrize(("mailbox", "kind"), [("complained", "complaint"), ("bounced-later", "bounce")])
def test_reports_go_to_the_return_path_and_are_understood(mailbox: str, kind: str) -> None:
    world = World()
    assert world.send(f"{mailbox}+1@example.org", "other@example.org").startswith("250 ")
    [(to, message)] = world.postbag.posted
    assert to == RETURN_PATH and b"\nSubject: hi\r\n" in message and b"Hi." not in message
    letter = reading.read(message)
    assert letter.kind == kind
    assert [news.recipient for news in letter.news(["other@example.org", f"{mailbox}+1@example.org"])] == [1]
    assert b"\n" not in message.replace(b"\r\n", b"")


def test_who_asks_is_told_of_the_delivery() -> None:
    world = World()
    world.send("a@example.org> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;a@example.org")
    world.send("b@example.org> NOTIFY=FAILURE ORCPT=rfc822;b", "c@example.org", "bounced-later@example.org> NOTIFY=NEVER ORCPT=rfc822;b")
    [(to, message)] = world.postbag.posted
    letter = reading.read(message)
    assert (to, letter.kind) == (RETURN_PATH, "success")
    assert [(each.recipient, each.action) for each in letter.passed(["x@example.org", "a@example.org"])] == [(1, "delivered")]


def test_strangers_get_no_report() -> None:
    world = World()
    world.send("complained@example.org", sender="someone@example.net")
    world.send("complained@example.org", sender="")
    assert not world.postbag.posted and len(world.shelf.mails) == 2
