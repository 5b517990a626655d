"""Tells the senders of mails what became of them, where they asked for it (NOTIFY, RFC 3461). What is told is in store/notices.

A notification is an email like any other, signed and queued, with the null sender and never one of its own. It goes only to an
address in a domain that the account itself may send from: what somebody wrote into MAIL FROM brings mail to nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.intake import Admission, AsReceived, Busy, Incoming, Key, Rejected
from mailsvc.mail import dsn
from mailsvc.mail.address import AddressError, Mailbox, parse_mailbox
from mailsvc.store.domains import Domain
from mailsvc.store.ids import uuid7
from mailsvc.store.keys import Caller
from mailsvc.store.messages import StoredMessage
from mailsvc.store.notices import Notice, Told

log = Logger()

ENDPOINT = "notice"
_ACTIONS: dict[str, dsn.Action] = {
    "email.delivered": "relayed",
    "email.bounced": "failed",
    "email.failed": "failed",
    "email.suppressed": "failed",
    "email.delivery_delayed": "delayed",
}


class Store(Protocol):
    async def take(self, now: datetime, limit: int = 500) -> Sequence[Notice]: ...
    async def done(self, report: UUID) -> None: ...


class Messages(Protocol):
    async def load(self, account_id: UUID, email_id: UUID) -> StoredMessage | None: ...


class Domains(Protocol):
    async def find(self, account_id: UUID, name: str) -> Domain | None: ...


class Submitting(Protocol):
    async def submit(
        self, caller: Caller, emails: Sequence[Incoming], key: Key | None = None, *, permissive: bool = False
    ) -> Admission: ...


@attrs.frozen
class Notices:
    """`host` is our name; `clock` tells unix seconds."""

    store: Store
    messages: Messages
    domains: Domains
    intake: Submitting
    host: str
    clock: Callable[[], float]

    async def tell(self) -> int:
        """Send what is due; how many notifications were dealt with."""
        taken = await self.store.take(self._now())
        for notice in taken:
            if await self._tell(notice):
                await self.store.done(notice.report)
        return len(taken)

    async def _tell(self, notice: Notice) -> bool:
        """Whether it was told, or need not be."""
        to = await self._recipient(notice)
        stored = await self.messages.load(notice.account_id, notice.email_id) if to else None
        if to is None or stored is None or not notice.told:
            return True
        email_id = uuid7(self.clock())
        sender = Mailbox("Mail Delivery System", "mailer-daemon", notice.domain)
        message_id = f"<{email_id}@{notice.domain}>"
        message = dsn.compose(self._notification(notice, sender, to, message_id, stored.body))
        content = AsReceived(message, (to.address,), message_id, {"report": True}, email_id)
        email = Incoming(sender, (to,), "Delivery status notification", content, source="system")
        caller = Caller(notice.account_id, None, "sending_access", notice.domain_id, None)
        answer = await self.intake.submit(caller, [email], Key(ENDPOINT, str(notice.report), notice.report.bytes))
        if isinstance(answer, Rejected):
            log.info("a notification about {email_id} was refused: {why}", email_id=notice.email_id, why=answer.refusals[0].message)
        return not isinstance(answer, Busy)

    async def _recipient(self, notice: Notice) -> Mailbox | None:
        try:
            to = parse_mailbox(str(notice.envelope.get("sender", "")))
        except AddressError:
            return None
        domain = await self.domains.find(notice.account_id, to.domain)
        return to if domain is not None and domain.may_send else None

    def _notification(self, notice: Notice, sender: Mailbox, to: Mailbox, message_id: str, message: bytes) -> dsn.Notification:
        originals: Any = notice.envelope.get("orcpt") or ()
        return dsn.Notification(
            host=self.host,
            sender=sender,
            to=to.address,
            message_id=message_id,
            date=self._now(),
            about=notice.message_id,
            envid=notice.envelope.get("envid"),
            arrived=notice.created_at.astimezone(UTC),
            fates=tuple(_fate(told, originals) for told in notice.told if told.type in _ACTIONS),
            message=message,
            full=notice.envelope.get("ret") == "FULL",
        )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.clock(), UTC)


def _fate(told: Told, originals: Sequence[str | None]) -> dsn.Fate:
    said = str(told.data.get("reply") or told.data.get("reason") or "")
    original = originals[told.recipient] if told.recipient < len(originals) else None
    return dsn.Fate(told.address, _ACTIONS[told.type], said, told.at.astimezone(UTC), original)
