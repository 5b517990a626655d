"""Forwards mail to postmaster@ and abuse@ to the operator as an attachment (5321 §4.5.1, RFC 2142). Only a Received field is added."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from string import ascii_letters, digits

import attrs
from twisted.logger import Logger

from mailsvc.intake import Admitted, AsReceived, Incoming, Intake
from mailsvc.mail import header
from mailsvc.mail.address import Mailbox
from mailsvc.mail.compose import rfc5322_date
from mailsvc.mail.reply import Reply
from mailsvc.policy import Refusal
from mailsvc.relay import replies
from mailsvc.relay.allowance import Allowance
from mailsvc.relay.connection_limits import client_network
from mailsvc.relay.inbound import PostmasterMail
from mailsvc.store.domains.domains import Domains
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.people.api_keys import Caller

log = Logger()

SIZE = 10 * 1024 * 1024  # bytes of a mail
MOST = 250 * 1024 * 1024  # bytes that a process forwards in a day: anybody can send them, and all are stored

TOO_LARGE = Reply(552, "Mail for this address can have at most 10 MB", "5.3.4")
TOO_MUCH = Reply(452, "Too much mail for this address today, try again later", "4.3.1")

_HOST_CHARACTERS = frozenset(f"{ascii_letters}{digits}.-_:[]")  # of EHLO names that are repeated


@attrs.frozen
class Postmaster:
    """`to`: the operator's address. `domain`: the sending domain, in the operator's account, to send from. `host`: this server's name.

    `clock` returns Unix time. `read_complaint` records a complaint, if the mail is one about an email of this service, and returns whether
    it is.
    """

    to: Mailbox
    domain: str
    host: str
    domains: Domains
    intake: Intake
    clock: Callable[[], float]
    read_complaint: Callable[[bytes], Awaitable[bool]]
    allowance: Allowance = attrs.field(default=attrs.Factory(lambda self: Allowance(MOST, self.clock), takes_self=True))

    async def forward(self, mail: PostmasterMail) -> Reply | None:
        """None: the mail was submitted, or it is a complaint that was recorded while there is no room to forward it."""
        if len(mail.message) > SIZE:
            return TOO_LARGE
        recorded = await self.read_complaint(mail.message)
        if not self.allowance.take(client_network(mail.client), len(mail.message)):
            return None if recorded else TOO_MUCH
        domain = await self.domains.called(self.domain)
        if domain is None:
            log.error("cannot forward mail for {role}: no account has the domain {name}", role=mail.recipients[0], name=self.domain)
            return replies.STORE_UNAVAILABLE
        now = self.clock()
        email_id, date = uuid7(now), datetime.fromtimestamp(now, UTC)
        sender = Mailbox("", "postmaster", domain.name)
        message_id = f"<{email_id}@{domain.name}>"
        message = wrapped(mail, received(mail, self.host, date), sender, self.to, message_id, date)
        content = AsReceived(message, (self.to.address,), message_id, StoredEnvelope(report=True), email_id)
        email = Incoming(sender, (self.to,), f"Mail for {mail.recipients[0]}", content, source="system")
        caller = Caller.of_service(domain.account_id, domain.id)
        answer = await self.intake.submit(caller, [email])
        if isinstance(answer, Admitted) and not isinstance(answer.results[0], Refusal):
            return None
        log.error("cannot forward mail for {role}: {answer}", role=mail.recipients[0], answer=answer)
        return replies.STORE_UNAVAILABLE


def received(mail: PostmasterMail, host: str, date: datetime) -> str:
    """The trace field: who sent the mail to this server, as which name, and when (5321 §4.4)."""
    name = mail.name if _HOST_CHARACTERS.issuperset(mail.name) and mail.name else "unknown"
    address = f"IPv6:{mail.client}" if ":" in mail.client else mail.client
    return header.fold("Received", [f" from {name}", f" ([{address}])", f" by {host}", f" with {mail.protocol};", f" {rfc5322_date(date)}"])


def wrapped(mail: PostmasterMail, trace: str, sender: Mailbox, to: Mailbox, message_id: str, date: datetime) -> bytes:
    """A message with the given mail, after its trace field, as its only attachment."""
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
        "Content-Transfer-Encoding: 8bit\r\n",  # 2045 §6.4: as its parts
    ]
    note = f"Envelope sender: <{mail.sender}>\r\n"
    plain = f"\r\n--{boundary}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n{note}"
    encoding = "" if mail.message.isascii() else "Content-Transfer-Encoding: 8bit\r\n"
    attached = f"\r\n--{boundary}\r\nContent-Type: message/rfc822\r\n{encoding}\r\n{trace}"
    return "".join([*fields, plain, attached]).encode("utf-8") + mail.message + f"\r\n--{boundary}--\r\n".encode("ascii")
