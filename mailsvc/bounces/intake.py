"""Takes mail that arrives at our return paths: bounces, complaints and automatic replies. Nothing is answered with mail.

Which email: relay/inbound, by mail/return_path. Parsing, and which recipient: reading. Recording the result: store/events/async_bounces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.bounces import reading
from mailsvc.bounces.reading import ReportMail
from mailsvc.mail import return_path
from mailsvc.mail.reply import Reply
from mailsvc.runtime.offload import InThread
from mailsvc.store.events.async_bounces import AsyncBounces
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.postgres.errors import Contention, Unavailable

NOT_MONITORED = Reply(550, "This address only accepts delivery reports, nobody reads it", "5.7.1")


class NotSettledYet(Contention):
    """The delivery that the report is about has not been settled. The sending server should try again later."""


class ReturnedMail(Protocol):
    """A mail to our return paths. `paths` has each of them with the account's number and the email's ID, whose signature was checked."""

    @property
    def sender(self) -> str: ...
    @property
    def paths(self) -> tuple[tuple[str, int, UUID], ...]: ...
    @property
    def message(self) -> bytes: ...


@attrs.define(eq=False)
class BounceIntake:
    """Records returned mail.

    `read_path` decodes one of our return paths; `in_thread` runs a function in a thread; `seconds` returns Unix time; `held` returns
    the reason why no mail may be accepted at the moment. `counts`: returned mail by result, since the start.
    """

    log = Logger()

    read_path: Callable[[str], tuple[int, UUID] | None]
    accounts: Accounts
    store: AsyncBounces
    in_thread: InThread
    seconds: Callable[[], float]
    held: Callable[[], str | None] = lambda: None
    counts: Counter[str] = attrs.field(factory=Counter, init=False)

    async def take(self, returned: ReturnedMail) -> Reply | None:
        """Record what the mail reports. Raises StoreError if that failed; the sending server should then try again later.

        Returns a refusal if a person seems to have written the mail, so that they learn that nobody reads it.
        """
        held = self.held()
        if held is not None:
            raise Unavailable(held)
        mail = await self._parse(returned.message)
        for _, number, email_id in returned.paths if mail.others else ():
            await self._forward(mail, number, email_id)
        if not (mail.failed or mail.feedback):
            self._count(mail.kind)
            return NOT_MONITORED if mail.kind == "unknown" and returned.sender else None
        for _, number, email_id in returned.paths:
            await self._record(mail, number, email_id)
        return None

    async def take_abuse_report(self, message: bytes) -> bool:
        """Record a complaint that a provider sent to abuse@ or postmaster@. The return path in the report identifies the email.

        Returns whether the mail is such a complaint.
        """
        mail = await self._parse(message)
        found = None if mail.feedback is None else self.find_email(mail.feedback.sender)
        if found is None:
            return False
        await self._record(mail, *found)
        return True

    async def _parse(self, message: bytes) -> ReportMail:
        def parse() -> ReportMail:
            return reading.read(message)

        return await self.in_thread(parse)  # also a small one, because anybody can write it

    def find_email(self, address: str) -> tuple[int, UUID] | None:
        """The account's number and the email's ID of a return path. None if it is not ours; forged ones are counted."""
        found = self.read_path(address)
        if found is None and return_path.resembles(address):
            self._count("forged")
        return found

    async def _record(self, mail: ReportMail, number: int, email_id: UUID) -> None:
        account = await self.accounts.numbered(number)
        now = datetime.fromtimestamp(self.seconds(), UTC)
        recorded = None if account is None else await self.store.record(account.id, email_id, mail.reports, now)
        if not recorded:
            self._count("no_recipient" if recorded is not None else "gone", email_id)
            return
        if "early" in recorded.values():
            self._count("early", email_id)
            raise NotSettledYet("", "The delivery that this mail is about is not settled yet.")
        for result in recorded.values():
            self._count(mail.kind if result == "changed" else "repeated", email_id)

    async def _forward(self, mail: ReportMail, number: int, email_id: UUID) -> None:
        """Forward reports of delays and deliveries to submitters who requested them (3461 §5.2)."""
        account = await self.accounts.numbered(number)
        if account is not None:
            await self.store.forward(account.id, email_id, mail.forwardable, datetime.fromtimestamp(self.seconds(), UTC))

    def _count(self, result: str, email_id: UUID | None = None) -> None:
        self.counts[result] += 1
        self.log.info("returned mail: {result}", result=result, email_id=str(email_id) if email_id else None)
