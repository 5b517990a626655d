"""Mail that the service itself sends to customers. It goes through intake like all mail, from a domain of one of the accounts."""

from __future__ import annotations

import hashlib
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.intake import Busy, Content, Incoming, Intake, Key, Rejected
from mailsvc.mail.address import AddressError, Mailbox, parse_mailbox
from mailsvc.store.domains.domains import Domains
from mailsvc.store.people.api_keys import Caller

ENDPOINT = "own"

log = Logger()


@attrs.frozen
class SystemMail:
    """Sends system mail. With `sender` None, nothing is sent."""

    intake: Intake
    domains: Domains
    sender: Mailbox | None

    async def account(self) -> UUID | None:
        """The account that it is sent from."""
        domain = None if self.sender is None else await self.domains.called(self.sender.domain)
        return None if domain is None else domain.account_id

    async def send(self, to: str | None, subject: str, text: str, key: str, *, html: str | None = None, source: str = "system") -> bool:
        """Sends an email once for each `key`. Returns False if it should be tried again later."""
        if self.sender is None or to is None:
            return True
        domain = await self.domains.called(self.sender.domain)
        if domain is None:
            log.warn("System mail was not sent: no account has {domain}, the domain of the setting sender", domain=self.sender.domain)
            return True
        try:
            email = Incoming(self.sender, (parse_mailbox(to),), subject, Content(html=html, text=text), source=source)
        except AddressError as error:
            log.warn("System mail was not sent: {why}", why=str(error))
            return True
        caller = Caller.of_service(domain.account_id, domain.id)
        answer = await self.intake.submit(caller, [email], Key(ENDPOINT, key, hashlib.sha256(key.encode()).digest()))
        if isinstance(answer, Rejected):
            log.warn("System mail was not sent: {why}", why=answer.refusals[0].message)
        return not isinstance(answer, Busy)
