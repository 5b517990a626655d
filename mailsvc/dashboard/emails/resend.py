"""Resending: submits the content of an email to intake as a new email."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import unix
from mailsvc.dashboard.emails.sending import SUSPENDED, NotSent, sent
from mailsvc.intake import AsReceived, Incoming, Intake, Key
from mailsvc.mail.address import AddressError, Mailbox, parse_mailbox
from mailsvc.mail.resend import NewMessage, compose
from mailsvc.mail.submission import Unfit
from mailsvc.runtime.offload import InThread
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.emails import EmailView
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.people.audit import Line

ENDPOINT = "dashboard/again"  # the scope of idempotency keys
RESENT = "again"  # the `source` of resent emails
IN_THREAD = 256 * 1024  # larger messages (in bytes) are composed in a thread


@attrs.frozen
class Resend:
    intake: Intake
    accounts: Accounts
    in_thread: InThread
    clock: Any

    async def send(
        self, email: EmailView, message: bytes, recipients: Sequence[str], idempotency_key: str, audit_entry: Callable[[UUID], Line]
    ) -> UUID:
        """Send to `recipients` of the first email; returns the new ID. The same `idempotency_key` sends only once. Raises NotSent.

        `audit_entry` makes the audit entry, given the new ID.
        """
        now = unix(self.clock)
        email_id = uuid7(now)

        def make() -> NewMessage:
            return compose(message, str(email_id), datetime.fromtimestamp(now, UTC))

        account = await self.accounts.get(email.account_id)
        if account is None or account.suspended_at is not None:
            raise NotSent(SUSPENDED, 403)
        try:
            new = make() if len(message) < IN_THREAD else await self.in_thread(make)
        except Unfit as unfit:
            raise NotSent(str(unfit)) from None
        digest = hashlib.sha256(" ".join((str(email.email_id), *recipients)).encode("utf-8", "surrogateescape")).digest()
        caller = Caller.without_key(account, email.domain_id)
        incoming, key = _incoming(email, new, recipients, email_id), Key(ENDPOINT, idempotency_key, digest)
        answer = await self.intake.submit(caller, [incoming], key, lines=[audit_entry(email_id)])
        return sent(answer, "This form was already submitted. Reload the page and check your recent emails.")


def _incoming(email: EmailView, new: NewMessage, recipients: Sequence[str], email_id: UUID) -> Incoming:
    mail = new.mail
    named = {box.address.lower() for box in (*mail.to, *mail.cc)}
    envelope = StoredEnvelope(smtputf8=email.envelope.smtputf8, utf8_header=email.envelope.utf8_header)
    return Incoming(
        sender=mail.sender,
        to=mail.to,
        cc=mail.cc,
        bcc=tuple(box for box in map(_mailbox, recipients) if box is not None and box.address.lower() not in named),
        reply_to=mail.reply_to,
        subject=mail.subject,
        content=AsReceived(new.message, tuple(recipients), new.message_id, envelope, email_id),
        headers=email.headers,
        tags=email.tags,
        source=RESENT,
        bulk=email.bulk,
    )


def _mailbox(address: str) -> Mailbox | None:
    try:
        return parse_mailbox(address)
    except AddressError:
        return None
