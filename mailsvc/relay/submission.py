"""Turns a mail that a customer submitted into an email for intake: reads its header, prepends lines, leaves the rest as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import attrs

from mailsvc.intake import AsReceived, Incoming, Intake, Key
from mailsvc.mail import structure, submission
from mailsvc.mail.address import AddressError, Mailbox, Path
from mailsvc.mail.reply import Reply
from mailsvc.mail.submission import Submitted, Unfit
from mailsvc.relay import replies
from mailsvc.relay.spool import Arrived, as_a_whole, in_pieces
from mailsvc.runtime.offload import InThread
from mailsvc.smtp.server.extensions import NO_RCPT_PARAMETERS
from mailsvc.smtp.server.session import Envelope, Session
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.postgres.errors import StoreError

ENDPOINT = "smtp"  # the scope of idempotency keys


@attrs.frozen
class Submissions:
    """`host` is this server's name in Received fields; `in_thread` runs a function off the reactor; `clock` returns unix seconds.

    `body_thread` is like `in_thread`, for work on a whole large body, which takes longer.
    """

    intake: Intake
    host: str
    in_thread: InThread
    clock: Callable[[], float]
    body_thread: InThread | None = None

    def working_memory(self, size: int) -> int:
        """How many bytes of memory accepting a large mail takes. Only the content filter gets it as a whole."""
        content_filter = self.intake.content_filter
        return as_a_whole(size) if content_filter is not None and content_filter.reads(size) else in_pieces(size)

    async def submit(self, caller: Caller, session: Session, envelope: Envelope, arrived: Arrived) -> Reply:
        """The reply to the message. Positive only after the commit."""
        try:
            mail = submission.read(arrived.head)
            other = submission.other_sender(mail) if caller.domain_id is not None else None
            if other is not None:
                raise Unfit("from", f"This API key cannot send with an address of another domain in the {other} header.")
            fault = partial(structure.fault, mail.kept, arrived.data, arrived.start + 2)
            found = await (self.body_thread or self.in_thread)(fault) if arrived.large else fault()
            if found is not None:
                raise Unfit("content", found)
            email = self._email(session, envelope, mail, arrived)
            key = None if mail.key is None else await self._key(mail.key, envelope, mail.counted, arrived)
            return replies.of_admission(await self.intake.submit(caller, [email], key))
        except Unfit as unfit:
            return replies.of_refusal(unfit)
        except StoreError as error:
            return replies.of_store(error)

    def _email(self, session: Session, envelope: Envelope, mail: Submitted, arrived: Arrived) -> Incoming:
        now = self.clock()
        date, email_id = datetime.fromtimestamp(now, UTC), uuid7(now)
        message_id = mail.message_id or f"<{email_id}@{mail.sender.domain}>"
        tls = " group ".join(session.tls[fact] for fact in ("cipher", "group") if session.tls.get(fact)) if session.tls else None
        utf8 = envelope.parameters.smtputf8
        received = submission.received(self.host, f"UTF8SMTP{session.protocol[5:]}" if utf8 else session.protocol, str(email_id), tls, date)
        paths = [recipient.path for recipient in envelope.recipients]
        addresses = [path.address for path in paths]
        named = {box.address.lower() for box in (*mail.to, *mail.cc)}
        unnamed = [_mailbox(path) for path, address in zip(paths, addresses, strict=True) if address.lower() not in named]
        content = AsReceived(
            message=arrived.with_header(mail.prefix(received, message_id, date) + mail.kept),
            recipients=tuple(dict.fromkeys(addresses)),
            message_id=message_id,
            envelope=stored_envelope(envelope, utf8 and mail.utf8),
            email_id=email_id,
        )
        return Incoming(
            sender=mail.sender,
            to=mail.to,
            cc=mail.cc,
            bcc=tuple([box for box in unnamed if box]),
            reply_to=mail.reply_to,
            subject=mail.subject,
            content=content,
            source="smtp",
            client=session.peer.host,
            bulk=mail.bulk,
        )

    async def _key(self, key: str, envelope: Envelope, counted: bytes, arrived: Arrived) -> Key:
        parts = [envelope.sender.address, *(recipient.path.address for recipient in envelope.recipients)]
        digest = submission.fingerprint(parts, counted)

        def finish() -> bytes:
            return _digested(digest, arrived)

        return Key(ENDPOINT, key, await (self.body_thread or self.in_thread)(finish) if arrived.large else finish())


def _digested(digest: hashlib._Hash, arrived: Arrived) -> bytes:
    for piece in arrived.rest():
        digest.update(piece)
    return digest.digest()


def stored_envelope(envelope: Envelope, smtputf8: bool) -> StoredEnvelope:
    """What to store of an envelope. Of a recipient that was given twice, the first parameters count."""
    parameters = envelope.parameters
    stored = StoredEnvelope(envelope.sender.address, smtputf8=smtputf8, ret=parameters.ret, envid=parameters.envid)
    if all(recipient.parameters is NO_RCPT_PARAMETERS for recipient in envelope.recipients):
        return stored
    unique = {recipient.path.address: recipient.parameters for recipient in reversed(envelope.recipients)}
    given = [unique[address] for address in dict.fromkeys(recipient.path.address for recipient in envelope.recipients)]
    notify = tuple(None if each.notify is None else ",".join(sorted(each.notify)) for each in given)
    orcpt = tuple(None if each.orcpt is None else ";".join(each.orcpt) for each in given)
    return attrs.evolve(stored, notify=notify if any(notify) else (), orcpt=orcpt if any(orcpt) else ())


def _mailbox(path: Path) -> Mailbox | None:
    try:
        return Mailbox("", path.local, path.domain)
    except AddressError:
        return None
