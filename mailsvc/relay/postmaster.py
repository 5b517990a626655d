"""Mail to postmaster@ and abuse@ goes on to the operator, as it came and inside a mail of ours (5321 §4.5.1, RFC 2142)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Protocol

import attrs
from twisted.logger import Logger

from mailsvc.intake import Admitted, AsReceived, Incoming
from mailsvc.mail import header
from mailsvc.mail.address import Mailbox
from mailsvc.mail.compose import rfc5322_date
from mailsvc.mail.envelope import StoredEnvelope
from mailsvc.mail.reply import Reply
from mailsvc.policy import Refusal
from mailsvc.relay import replies
from mailsvc.relay.inbound import ForPostmaster
from mailsvc.relay.notices import Submitting
from mailsvc.store.domains.domains import Domain
from mailsvc.store.ids import uuid7
from mailsvc.store.people.api_keys import Caller

log = Logger()


class Domains(Protocol):
    async def called(self, name: str) -> Domain | None: ...


@attrs.frozen
class Postmaster:
    """`to` is the operator; `domain` the sending domain, of the operator's own account, under which it goes there."""

    to: Mailbox
    domain: str
    domains: Domains
    intake: Submitting
    clock: Callable[[], float]
    overhear: Callable[[bytes], Awaitable[None]]  # a report of abuse is read before it goes on

    async def forward(self, mail: ForPostmaster) -> Reply | None:
        """None when it is on its way."""
        await self.overhear(mail.message)
        domain = await self.domains.called(self.domain)
        if domain is None:
            log.error("mail for {role} cannot be forwarded: no account has the domain {name}", role=mail.recipients[0], name=self.domain)
            return replies.STORE_AWAY
        now = self.clock()
        email_id, date = uuid7(now), datetime.fromtimestamp(now, UTC)
        sender = Mailbox("", "postmaster", domain.name)
        message_id = f"<{email_id}@{domain.name}>"
        message = wrapped(mail, sender, self.to, message_id, date)
        content = AsReceived(message, (self.to.address,), message_id, StoredEnvelope(report=True), email_id)
        email = Incoming(sender, (self.to,), f"Mail for {mail.recipients[0]}", content, source="system")
        caller = Caller(domain.account_id, None, "sending_access", domain.id, None)
        answer = await self.intake.submit(caller, [email])
        if isinstance(answer, Admitted) and not isinstance(answer.results[0], Refusal):
            return None
        log.error("mail for {role} cannot be forwarded: {answer}", role=mail.recipients[0], answer=answer)
        return replies.STORE_AWAY


def wrapped(mail: ForPostmaster, sender: Mailbox, to: Mailbox, message_id: str, date: datetime) -> bytes:
    """A mail whose one attachment is the mail that came."""
    boundary = f"=_f{message_id[1:37]}"
    fields = [
        header.mailboxes("From", (sender,)),
        header.mailboxes("To", (to,)),
        header.unstructured("Subject", f"Mail for {' and '.join(mail.recipients)}"),
        f"Date: {rfc5322_date(date)}\r\n",
        header.fold("Message-ID", (" " + message_id,)),
        "Auto-Submitted: auto-generated\r\n",  # 3834 §5
        "MIME-Version: 1.0\r\n",
        f'Content-Type: multipart/mixed; boundary="{boundary}"\r\n',
    ]
    note = f"From the envelope sender <{mail.sender}>.\r\n"
    plain = f"\r\n--{boundary}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n{note}"
    encoding = "" if mail.message.isascii() else "Content-Transfer-Encoding: 8bit\r\n"
    attached = f"\r\n--{boundary}\r\nContent-Type: message/rfc822\r\n{encoding}\r\n"
    return "".join([*fields, plain, attached]).encode("utf-8") + mail.message + f"\r\n--{boundary}--\r\n".encode("ascii")
