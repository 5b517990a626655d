"""What this service itself writes to its customers. It takes the way of all mail, from a domain that some account here may send from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import attrs
from twisted.logger import Logger

from mailsvc.intake import Admission, Busy, Content, Incoming, Key, Rejected
from mailsvc.mail.address import AddressError, Mailbox, parse_mailbox
from mailsvc.store.domains.domains import Domain
from mailsvc.store.people.api_keys import Caller

ENDPOINT = "own"

log = Logger()


class Domains(Protocol):
    """store/domains/domains"""

    async def called(self, name: str) -> Domain | None: ...


class Submitting(Protocol):
    """intake.Intake"""

    async def submit(
        self, caller: Caller, emails: Sequence[Incoming], key: Key | None = None, *, permissive: bool = False
    ) -> Admission: ...


@attrs.frozen
class SystemMail:
    """`sender` None: the operator wants none sent."""

    intake: Submitting
    domains: Domains
    sender: Mailbox | None

    async def send(self, to: str | None, subject: str, text: str, key: str, *, html: str | None = None, source: str = "system") -> bool:
        """Whether it is dealt with: sent, now or under the same key before, or never to be sent. False: try again later."""
        if self.sender is None or to is None:
            return True
        domain = await self.domains.called(self.sender.domain)
        if domain is None:
            log.warn(
                "mail to a customer was not sent: nobody here owns {domain}, the domain of the setting sender", domain=self.sender.domain
            )
            return True
        try:
            email = Incoming(self.sender, (parse_mailbox(to),), subject, Content(html=html, text=text), source=source)
        except AddressError as error:
            log.warn("mail to a customer was not sent: {why}", why=str(error))
            return True
        caller = Caller(domain.account_id, None, "sending_access", domain.id, None)
        answer = await self.intake.submit(caller, [email], Key(ENDPOINT, key, hashlib.sha256(key.encode()).digest()))
        if isinstance(answer, Rejected):
            log.warn("mail to a customer was not sent: {why}", why=answer.refusals[0].message)
        return not isinstance(answer, Busy)
