"""What the sandbox answers and keeps. It takes mail for every domain; what becomes of it is in the local part:

- `bounced`: 550 5.1.1, for good
- `delayed`: 451 twice, then 250. The two are counted per return path and recipient, which for our own mail is per email
- `complained`: 250, and an abuse report that goes to the return path
- `bounced-later`: 250, and a delivery status notification that goes there
- `suppressed` never gets here: at the domains of examples it is on the first account's suppression list (welcome)
- everything else: 250

A label changes nothing: `bounced+anything` bounces too. Who asks to be told of the delivery (NOTIFY=SUCCESS) is told; who asks not
to be told of a late bounce is not.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

import attrs
from twisted.internet.interfaces import IReactorTime

from mailsvc.clock import utc
from mailsvc.mail.address import Path
from mailsvc.mail.reply import Reply
from mailsvc.sandbox import reports
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.extensions import MailParameters
from mailsvc.smtp.server.session import Envelope, Limits, Listener, Login, Reception, Recipient, Session, Sink
from mailsvc.store.mail.sandbox import ReceivedMail, Verdict

NO_MAILBOX = Reply(550, "This sandbox address always bounces", "5.1.1")
NOT_YET = Reply(451, "This sandbox address takes a mail at its third try", "4.7.1")
TRIES = 3
_REMEMBERED = 10_000  # delayed mails whose tries are counted
_MESSAGE_ID = re.compile(rb"^message-id:\s*<([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})@", re.IGNORECASE | re.MULTILINE)


class Shelf(Protocol):
    """Where mails are kept (store/mail/sandbox)."""

    async def add(self, mail: ReceivedMail) -> UUID: ...


class Postbag(Protocol):
    """Carries a report to where it belongs (postbag)."""

    def post(self, to: str, message: bytes) -> None: ...


Compose = Callable[[str, str, str, bytes, datetime], bytes]
REPORTS: Mapping[str, Compose] = {"complained": reports.complaint, "bounced-later": reports.bounce}

# Reads a return path of ours: account number and email id.
ReadReturnPath = Callable[[str], tuple[int, UUID] | None]
Verify = Callable[[bytes], Awaitable[tuple[Verdict, ...]]]


def listener(host: str, context: object | None = None) -> Listener:
    """The sandbox's port: every name will do, and nobody is sent away for too many bounces."""
    limits = Limits(errors=1_000_000, chatter=1_000_000, stranger_seconds=None, stranger_octets=None)
    return Listener(host, limits, context, qualified=False, transcripts=False)


@attrs.define(eq=False)
class SandboxInbox:
    """Welcomes every connection; `welcome` goes to smtp.server.Receivers."""

    shelf: Shelf
    read_return_path: ReadReturnPath
    verify: Verify
    clock: IReactorTime
    postbag: Postbag | None = None
    _tries: OrderedDict[tuple[str, str], int] = attrs.field(factory=OrderedDict)

    def welcome(self, session: Session) -> Reception:
        return _Visit(self, session)

    def answer(self, sender: str, recipient: Path) -> Reply:
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
        """Kept, and reported on where the local part asks for it."""
        sender, recipients = envelope.sender.address, [recipient.path.address for recipient in envelope.recipients]
        kept = await self.keep(sender, recipients, message, tls)
        self._report(sender, envelope.recipients, message)
        return kept

    def _report(self, sender: str, recipients: Sequence[Recipient], message: bytes) -> None:
        """Never to a stranger."""
        if self.postbag is None or self.read_return_path(sender) is None:
            return
        now = utc(self.clock)
        for recipient in recipients:
            compose = _wanted(recipient)
            if compose is not None:
                self.postbag.post(sender, compose("sandbox.localhost", sender, recipient.path.address, message, now))

    async def keep(self, sender: str, recipients: Sequence[str], message: bytes, tls: str | None) -> UUID:
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
        return await self.shelf.add(mail)


def _wanted(recipient: Recipient) -> Compose | None:
    """The report that goes back for a recipient."""
    compose = REPORTS.get(recipient.path.local.lower().partition("+")[0])
    notify = recipient.parameters.notify
    if compose is reports.bounce and notify is not None and "FAILURE" not in notify:
        return None
    return reports.delivery if compose is None and notify is not None and "SUCCESS" in notify else compose


def _email_id(message: bytes) -> UUID | None:
    """Our Message-ID begins with the email's id."""
    found = _MESSAGE_ID.search(message, 0, max(message.find(b"\r\n\r\n"), 0) or len(message))
    return UUID(found[1].decode("ascii")) if found else None


@attrs.define(eq=False)
class _Visit:
    """The reception of one connection."""

    _inbox: SandboxInbox
    _session: Session

    async def authenticate(self, user: str, password: str) -> Login | Reply:
        return replies.NOT_HERE

    async def vouched(self) -> None:
        """Nobody needs a login here."""

    async def mail(self, sender: Path, parameters: MailParameters) -> Reply:
        return replies.SENDER_OK

    async def rcpt(self, envelope: Envelope, recipient: Recipient) -> Reply:
        return self._inbox.answer(envelope.sender.address, recipient.path)

    async def body(self, envelope: Envelope) -> Sink | Reply:
        tls = self._session.tls
        return _Letter(self._inbox, envelope, " ".join(tls.values()) if tls is not None else None)

    def dropped(self) -> None:
        """Nothing is held for a connection."""


@attrs.define(eq=False)
class _Letter:
    """A body in memory: this is a development server."""

    _inbox: SandboxInbox
    _envelope: Envelope
    _tls: str | None
    _pieces: list[bytes] = attrs.field(factory=list)

    def write(self, piece: bytes) -> None:
        self._pieces.append(piece)

    async def finish(self) -> Reply:
        kept = await self._inbox.take(self._envelope, b"".join(self._pieces), self._tls)
        return Reply(250, f"Kept as {kept}", "2.0.0")

    def drop(self) -> None:
        self._pieces.clear()
