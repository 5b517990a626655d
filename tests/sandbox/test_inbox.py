"""The sandbox without a network: its replies, and what it stores."""

from __future__ import annotations

from uuid import UUID

import attrs
import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mailsvc.bounces import reading
from mailsvc.mail import return_path
from mailsvc.sandbox.inbox import SandboxInbox, listener
from mailsvc.store.mail.sandbox import ReceivedMail, Verdict
from mailsvc.store.postgres.errors import OutOfResources
from tests.smtp.harness import Client

EMAIL = UUID("019a0000-0000-7000-8000-000000000001")
OTHER = UUID("019a0000-0000-7000-8000-000000000002")
SECRET = b"a secret"
RETURN_PATH = return_path.make("send.example.com", 7, EMAIL, SECRET)
VALID = Verdict("example.com", "s1", "rsa-sha256", "pass")


@attrs.define(eq=False)
class Store:
    mails: list[ReceivedMail] = attrs.field(factory=list)

    full: bool = False

    async def add(self, mail: ReceivedMail) -> UUID:
        if self.full:
            raise OutOfResources("53100", "could not extend file")
        self.mails.append(mail)
        return EMAIL


async def verify(message: bytes) -> tuple[Verdict, ...]:
    return (VALID,)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def client(store: Store) -> Client:
    clock = Clock()
    clock.advance(1_780_000_000)
    inbox = SandboxInbox(store, lambda address: return_path.read(address, SECRET), verify, clock)
    client = Client(listener("sandbox.test"), clock, inbox.open_session)
    client.send(b"EHLO me\r\n")
    client.received()
    return client


def envelope(client: Client, *recipients: str, sender: str = RETURN_PATH) -> list[str]:
    """The replies to the recipients."""
    client.send(f"MAIL FROM:<{sender}>\r\n".encode() + b"".join(f"RCPT TO:<{recipient}>\r\n".encode() for recipient in recipients))
    return client.received().decode().splitlines()[1:]


def test_messages_are_stored(client: Client, store: Store) -> None:
    assert envelope(client, "delivered@localhost", "anyone@example.org") == ["250 2.1.5 Recipient OK"] * 2
    client.send(b"DATA\r\n")
    client.send(b"Subject: hi\r\n\r\n..dots\r\n.\r\n")
    assert client.received().endswith(f"250 2.0.0 Stored as {EMAIL}\r\n".encode())
    (mail,) = store.mails
    assert (mail.sender, mail.recipients) == (RETURN_PATH, ("delivered@localhost", "anyone@example.org"))
    assert mail.message == b"Subject: hi\r\n\r\n.dots\r\n"
    assert (mail.account_number, mail.email_id, mail.dkim, mail.tls) == (7, EMAIL, (VALID,), None)
    assert mail.received_at.timestamp() == 1_780_000_000


def test_a_full_disk_is_a_temporary_error_without_a_traceback_in_the_log(client: Client, store: Store) -> None:
    store.full = True
    envelope(client, "a@example.org")
    with capturedLogs() as logged:
        client.send(b"DATA\r\nSubject: hi\r\n\r\nhi\r\n.\r\n")
    assert client.received().splitlines()[-1].startswith(b"451 4.3.0")
    assert [event["log_format"] for event in logged] == ["the sandbox could not store a mail: {reason}"]


def test_the_message_id_identifies_the_email_without_a_return_path(client: Client, store: Store) -> None:
    envelope(client, "a@example.org", sender="someone@example.net")
    client.send(b"DATA\r\n")
    client.send(f"Subject: hi\r\nMessage-ID: <{OTHER}@example.com>\r\n\r\nMessage-ID: <{EMAIL}@example.com>\r\n.\r\n".encode())
    assert (store.mails[0].account_number, store.mails[0].email_id) == (None, OTHER)


@pytest.mark.parametrize("recipient", ["bounced@example.org", "Bounced+label@x.test", "bounced+a+b@localhost"])
def test_bounces(client: Client, recipient: str) -> None:
    assert envelope(client, recipient)[0].startswith("550 5.1.1 ")


@pytest.mark.parametrize("recipient", ["unbounced@example.org", "bounced.not@example.org", "delayedx@example.org"])
def test_only_the_exact_local_part_counts(client: Client, recipient: str) -> None:
    assert envelope(client, recipient)[0].startswith("250 ")


def test_delays_twice_per_email_and_recipient(client: Client) -> None:
    def codes(*recipients: str, sender: str = RETURN_PATH) -> list[str]:
        found = [reply[:3] for reply in envelope(client, *recipients, sender=sender)]
        client.send(b"RSET\r\n")
        client.received()
        return found

    other = return_path.make("send.example.com", 7, OTHER, SECRET)
    assert codes("delayed@a.test", "delayed+x@a.test", "fine@a.test") == ["451", "451", "250"]
    assert codes("delayed@a.test", sender=other) == ["451"]
    assert codes("DELAYED@a.test", "delayed+x@a.test") == ["451", "451"]
    assert codes("delayed@a.test", "delayed+x@a.test") == ["250", "250"]
    assert codes("delayed@a.test", sender=other) == ["451"]
    assert codes("delayed@a.test", sender=other) == ["250"]


def test_many_bounces_do_not_close_the_connection(client: Client) -> None:
    assert len(envelope(client, *["bounced@a.test"] * 500)) == 500
    assert not client.closed


@attrs.define(eq=False)
class Reports:
    posted: list[tuple[str, bytes]] = attrs.field(factory=list)

    def send(self, to: str, message: bytes) -> None:
        self.posted.append((to, message))


@attrs.define(eq=False)
class Rig:
    store: Store = attrs.field(factory=Store)
    reports: Reports = attrs.field(factory=Reports)

    def send(self, *recipients: str, sender: str = RETURN_PATH, message: bytes = b"Subject: hi\r\n\r\nHi.\r\n") -> str:
        """The reply to the final dot."""
        clock = Clock()
        clock.advance(1_780_000_000)
        inbox = SandboxInbox(self.store, lambda address: return_path.read(address, SECRET), verify, clock, self.reports)
        client = Client(listener("sandbox.test"), clock, inbox.open_session)
        client.send(b"EHLO me\r\n")
        client.received()
        envelope(client, *recipients, sender=sender)
        client.send(b"DATA\r\n")
        client.received()
        client.send(message + b".\r\n")
        return client.received().decode()


@pytest.mark.parametrize(("mailbox", "kind"), [("complained", "complaint"), ("bounced-later", "bounce")])
def test_reports_go_to_the_return_path_and_can_be_parsed(mailbox: str, kind: str) -> None:
    rig = Rig()
    assert rig.send(f"{mailbox}+1@example.org", "other@example.org").startswith("250 ")
    [(to, message)] = rig.reports.posted
    assert to == RETURN_PATH and b"\nSubject: hi\r\n" in message and b"Hi." not in message
    report = reading.read(message)
    assert report.kind == kind
    assert [each.recipient for each in report.reports(["other@example.org", f"{mailbox}+1@example.org"])] == [1]
    assert b"\n" not in message.replace(b"\r\n", b"")


def test_notify_success_returns_a_report() -> None:
    rig = Rig()
    rig.send("a@example.org> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;a@example.org")
    rig.send("b@example.org> NOTIFY=FAILURE ORCPT=rfc822;b", "c@example.org", "bounced-later@example.org> NOTIFY=NEVER ORCPT=rfc822;b")
    [(to, message)] = rig.reports.posted
    report = reading.read(message)
    assert (to, report.kind) == (RETURN_PATH, "success")
    assert [(each.recipient, each.action) for each in report.forwardable(["x@example.org", "a@example.org"])] == [(1, "delivered")]


def test_other_senders_get_no_report() -> None:
    rig = Rig()
    rig.send("complained@example.org", sender="someone@example.net")
    rig.send("complained@example.org", sender="")
    assert not rig.reports.posted and len(rig.store.mails) == 2
