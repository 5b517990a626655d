"""Sends the delivery status notifications (DSNs) that submitters requested with NOTIFY (RFC 3461). What is due: store/mail/dsn_requests.

A DSN is an email like any other, signed and queued, with the null reverse-path, so that no DSN is ever sent about it. A customer may
have DSNs sent to any address, just like other mail (docs/decisions/relay.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import attrs
from twisted.logger import Logger

from mailsvc.intake import AsReceived, Busy, Incoming, Intake, Key, Rejected
from mailsvc.mail import header
from mailsvc.mail.address import AddressError, Mailbox, parse_mailbox
from mailsvc.mail.reports import dsn
from mailsvc.store.encryption.body_key_files import BodyKeyError
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.dsn_requests import ForwardedReport, Notice, Notices, ReportItem
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.mail.messages import Messages
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.postgres.errors import Transient

log = Logger()

ENDPOINT = "notice"  # the scope of idempotency keys
FULL_LIMIT = 1024 * 1024  # bytes; of a larger mail only the header is returned
_HEADER = header.BLOCK_LIMIT + 4096  # bytes that contain the header of any stored message
_ACTIONS: dict[str, dsn.Action] = {
    "email.delivered": "relayed",
    "email.bounced": "failed",
    "email.failed": "failed",
    "email.suppressed": "failed",
    "email.delivery_delayed": "delayed",
}


@attrs.frozen
class DsnSender:
    """`host` is the reporting MTA's name; `clock` returns unix seconds."""

    store: Notices
    messages: Messages
    intake: Intake
    host: str
    clock: Callable[[], float]

    async def send_due(self) -> int:
        """Send the DSNs that are due, and return their number."""
        due = await self.store.take(self._now())
        for notice in due:
            try:
                if await self._send(notice):
                    await self.store.done(notice.report)
            except BodyKeyError as error:
                log.error("A DSN about {email_id} waits: {reason}", email_id=notice.email_id, reason=str(error))
            except Transient:
                raise
            except Exception:  # for example, its message is damaged; the others would wait behind it for ever
                log.failure("A DSN about {email_id} could not be sent and is tried again in an hour", email_id=notice.email_id)
                await self.store.postpone(notice.report, self._now())
        return len(due)

    async def _send(self, notice: Notice) -> bool:
        """Whether the DSN was sent, or does not have to be."""
        to, full = _submitter(notice), notice.envelope.ret == "FULL"
        if to is None or not notice.items:
            return True
        stored = await self.messages.load(notice.account_id, notice.email_id, FULL_LIMIT + 1 if full else _HEADER)
        if stored is None:
            return True
        email_id = uuid7(self.clock())
        sender = Mailbox("Mail Delivery System", "mailer-daemon", notice.domain)
        message_id = f"<{email_id}@{notice.domain}>"
        message = dsn.compose(self._dsn(notice, sender, to, message_id, stored.body, full))
        envelope = StoredEnvelope(report=True, smtputf8=to.needs_smtputf8)
        content = AsReceived(message, (to.address,), message_id, envelope, email_id)
        email = Incoming(sender, (to,), "Delivery status notification", content, source="system")
        caller = Caller.of_service(notice.account_id, notice.domain_id)
        answer = await self.intake.submit(caller, [email], Key(ENDPOINT, str(notice.report), notice.report.bytes))
        if isinstance(answer, Rejected):
            log.info("a DSN about {email_id} was refused: {reason}", email_id=notice.email_id, reason=answer.refusals[0].message)
        return not isinstance(answer, Busy)

    def _dsn(self, notice: Notice, sender: Mailbox, to: Mailbox, message_id: str, message: bytes, full: bool) -> dsn.Notification:
        return dsn.Notification(
            host=self.host,
            sender=sender,
            to=to.address,
            message_id=message_id,
            date=self._now(),
            about=notice.message_id,
            envid=notice.envelope.envid,
            arrived=notice.created_at.astimezone(UTC),
            recipients=tuple(_recipient(item, notice.envelope.orcpt) for item in notice.items),
            message=message,
            full=full and len(message) <= FULL_LIMIT,
            smtputf8=notice.envelope.smtputf8 or not all(item.address.isascii() for item in notice.items),
        )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.clock(), UTC)


def _submitter(notice: Notice) -> Mailbox | None:
    try:
        return parse_mailbox(notice.envelope.sender)
    except AddressError:
        return None


def _recipient(item: ReportItem, originals: Sequence[str | None]) -> dsn.NoticeRecipient:
    original = originals[item.recipient] if item.recipient < len(originals) else None
    at = item.at.astimezone(UTC)
    if isinstance(item.data, ForwardedReport):
        return dsn.NoticeRecipient(item.address, item.data.action, item.data.said, at, original, item.data.reporter)
    replied = item.host if dsn.is_reply(item.data.text) else ""
    return dsn.NoticeRecipient(item.address, _ACTIONS[item.type], item.data.text, at, original, replied)
