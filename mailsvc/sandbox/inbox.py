"""The sandbox's replies and the mail that it stores. It accepts mail for every domain; the local part selects the outcome:

- `bounced`: 550 5.1.1
- `delayed`: 451 twice, then 250; counted by return path and recipient, which means for each email
- `complained`: 250, then an abuse report to the return path
- `bounced-later`: 250, then a delivery status notification to the return path
- `suppressed`: never arrives, because the first account's suppression list has it at the example domains (welcome)
- everything else: 250

A label makes no difference: `bounced+anything` bounces too. NOTIFY is honored: SUCCESS returns a notification of the delivery, and
without FAILURE there is none for `bounced-later`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.mail.address import Path
from mailsvc.mail.reply import Reply
from mailsvc.sandbox import reports
from mailsvc.sandbox.report_sender import ReportSender
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.extensions import MailParameters
from mailsvc.smtp.server.session import Envelope, Limits, Listener, Login, Recipient, Session, SessionPolicy, Sink
from mailsvc.store.mail.sandbox import ReceivedMail, Sandbox, Verdict
from mailsvc.store.postgres.errors import Transient

NO_MAILBOX = Reply(550, "This sandbox address always bounces", "5.1.1")
NOT_YET = Reply(451, "This sandbox address accepts a mail on the third attempt", "4.7.1")
TRIES = 3
_REMEMBERED = 10_000  # delayed mails whose attempts are counted
_MESSAGE_ID = re.compile(rb"^message-id:\s*<([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})@", re.IGNORECASE | re.MULTILINE)


Compose = Callable[[str, str, str, bytes, datetime], bytes]
REPORTS: Mapping[str, Compose] = {"complained": reports.complaint, "bounced-later": reports.bounce}

# Account number and email ID of a return path; None if this installation did not make it.
ReadReturnPath = Callable[[str], tuple[int, UUID] | None]
Verify = Callable[[bytes], Awaitable[tuple[Verdict, ...]]]

log = Logger()


def listener(host: str, context: object | None = None) -> Listener:
    """The sandbox's port: unqualified domains are accepted, and no number of bounces closes a connection."""
    limits = Limits(errors=1_000_000, non_mail_commands=1_000_000, unauthenticated_seconds=None, unauthenticated_bytes=None)
    return Listener(host, limits, context, qualified_only=False, transcripts=False)


@attrs.define(eq=False)
class SandboxInbox:
    """Accepts every connection; `open_session` goes to smtp.server.ServerFactory."""

    store: Sandbox
    read_return_path: ReadReturnPath
    verify: Verify
    clock: IReactorTime
    reports: ReportSender | None = None
    _tries: OrderedDict[tuple[str, str], int] = attrs.field(factory=OrderedDict)

    def open_session(self, session: Session) -> SessionPolicy:
        return _SandboxSession(self, session)

    def reply(self, sender: str, recipient: Path) -> Reply:
        mailbox = recipient.local.lower().partition("+")[0]
        if mailbox == "bounced":
            return NO_MAILBOX
        if mailbox == "delayed" and not self._enough_tries(sender, recipient.address.lower()):
            return NOT_YET
        return replies.RECIPIENT_OK

    def _enough_tries(self, sender: str, recipient: str) -> bool:
        key = (sender, recipient)
        tries = self._tries.pop(key, 0) + 1
        if tries >= TRIES:
            return True
        self._tries[key] = tries
        if len(self._tries) > _REMEMBERED:
            self._tries.popitem(last=False)
        return False

    async def take(self, envelope: Envelope, message: bytes, tls: str | None) -> UUID:
        """Store a message, and send the reports that its recipients' local parts select."""
        sender, recipients = envelope.sender.address, [recipient.path.address for recipient in envelope.recipients]
        stored = await self.add(sender, recipients, message, tls)
        self._report(sender, envelope.recipients, message)
        return stored

    def _report(self, sender: str, recipients: Sequence[Recipient], message: bytes) -> None:
        """Send reports to this installation's return paths only."""
        if self.reports is None or self.read_return_path(sender) is None:
            return
        now = utc(self.clock)
        for recipient in recipients:
            compose = _report_for(recipient)
            if compose is not None:
                self.reports.send(sender, compose("sandbox.localhost", sender, recipient.path.address, message, now))

    async def add(self, sender: str, recipients: Sequence[str], message: bytes, tls: str | None) -> UUID:
        owner = self.read_return_path(sender)
        mail = ReceivedMail(
            received_at=utc(self.clock),
            sender=sender,
            recipients=tuple(recipients),
            message=message,
            dkim=await self.verify(message),
            tls=tls,
            account_number=owner[0] if owner else None,
            email_id=owner[1] if owner else _email_id(message),
        )
        return await self.store.add(mail)


def _report_for(recipient: Recipient) -> Compose | None:
    """The report to send for a recipient, if any."""
    compose = REPORTS.get(recipient.path.local.lower().partition("+")[0])
    notify = recipient.parameters.notify
    if compose is reports.bounce and notify is not None and "FAILURE" not in notify:
        return None
    return reports.delivery if compose is None and notify is not None and "SUCCESS" in notify else compose


def _email_id(message: bytes) -> UUID | None:
    """The email's ID, with which a Message-ID made by this service begins."""
    found = _MESSAGE_ID.search(message, 0, max(message.find(b"\r\n\r\n"), 0) or len(message))
    return UUID(found[1].decode("ascii")) if found else None


@attrs.define(eq=False)
class _SandboxSession:
    """The policy of one connection."""

    _inbox: SandboxInbox
    _session: Session

    async def authenticate(self, user: str, password: str) -> Login | Reply:
        return replies.NOT_IMPLEMENTED

    async def login_by_address(self) -> None:
        """No login is required."""

    async def mail(self, sender: Path, parameters: MailParameters) -> Reply:
        return replies.SENDER_OK

    async def rcpt(self, envelope: Envelope, recipient: Recipient) -> Reply:
        return self._inbox.reply(envelope.sender.address, recipient.path)

    async def body(self, envelope: Envelope) -> Sink | Reply:
        tls = self._session.tls
        return _Body(self._inbox, envelope, " ".join(tls.values()) if tls is not None else None)

    def closed(self) -> None:
        """Nothing to release."""


@attrs.define(eq=False)
class _Body:
    """A message body, in memory because this is a development server."""

    _inbox: SandboxInbox
    _envelope: Envelope
    _tls: str | None
    _pieces: list[bytes] = attrs.field(factory=list)

    def write(self, piece: bytes) -> None:
        self._pieces.append(piece)

    async def finish(self) -> Reply:
        try:
            stored = await self._inbox.take(self._envelope, b"".join(self._pieces), self._tls)
        except Transient as error:
            log.warn("the sandbox could not store a mail: {reason}", reason=str(error))
            return replies.INTERNAL
        return Reply(250, f"Stored as {stored}", "2.0.0")

    def discard(self) -> None:
        self._pieces.clear()
