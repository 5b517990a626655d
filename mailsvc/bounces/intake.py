"""The way in for mail to our return paths: whoever receives it hands it to `BounceIntake.take`, and gets no mail for an answer.

What a mail says: reading. Writing it down: store/events/async_bounces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.bounces import reading
from mailsvc.bounces.reading import Letter
from mailsvc.mail import return_path
from mailsvc.mail.reply import Reply
from mailsvc.store.events.async_bounces import Heard, Report
from mailsvc.store.mail.dsn_requests import Passed
from mailsvc.store.people.accounts import Account
from mailsvc.store.postgres.errors import Contention, Unavailable

NOBODY = Reply(550, "Nobody reads this address, it takes reports of delivery alone", "5.7.1")
_IN_THREAD = 64 * 1024  # octets above which a mail is read off the reactor


class Early(Contention):
    """The delivery that a mail is about is not settled yet: whoever brings it is to come again."""


class Returned(Protocol):
    """A mail to return paths of ours; `paths` has each with the account's number and the email's id, both signed by us."""

    @property
    def sender(self) -> str: ...
    @property
    def paths(self) -> tuple[tuple[str, int, UUID], ...]: ...
    @property
    def message(self) -> bytes: ...


class Accounts(Protocol):
    """store/people/accounts"""

    async def numbered(self, number: int) -> Account | None: ...


class Store(Protocol):
    """store/events/async_bounces"""

    async def hear(
        self, account_id: UUID, email_id: UUID, judge: Callable[[Sequence[str]], Sequence[Report]], now: datetime
    ) -> Mapping[int, Heard] | None: ...

    async def pass_on(
        self, account_id: UUID, email_id: UUID, judge: Callable[[Sequence[str]], Sequence[Passed]], now: datetime
    ) -> None: ...


@attrs.define(eq=False)
class BounceIntake:
    """`read` reads a return path of ours; `in_thread` runs a function off the reactor; `seconds` tells unix time; `held` says why
    nothing may be accepted just now.

    `counts`: what came of each mail, since the start.
    """

    log = Logger()

    read: Callable[[str], tuple[int, UUID] | None]
    accounts: Accounts
    store: Store
    in_thread: Callable[[Callable[[], Letter]], Awaitable[Any]]
    seconds: Callable[[], float]
    held: Callable[[], str | None] = lambda: None
    counts: Counter[str] = attrs.field(factory=Counter, init=False)

    async def take(self, returned: Returned) -> Reply | None:
        """Written down, or of no consequence, when this returns; else it raises a StoreError, and is to be brought again.

        A refusal for people who write here, so that they know that nobody reads it.
        """
        held = self.held()
        if held is not None:
            raise Unavailable(held)
        letter = await self._read(returned.message)
        for _, number, email_id in returned.paths if letter.told else ():
            await self._pass_on(letter, number, email_id)
        if not (letter.fates or letter.feedback):
            self._count(letter.kind)
            return NOBODY if letter.kind == "unknown" and returned.sender else None
        for _, number, email_id in returned.paths:
            await self._hear(letter, number, email_id)
        return None

    async def overhear(self, message: bytes) -> None:
        """An abuse report that came to abuse@ or postmaster@, where providers send them; the return path in it tells whose it is."""
        letter = await self._read(message)
        found = None if letter.feedback is None else self.whose(letter.feedback.sender)
        if found is not None:
            await self._hear(letter, *found)

    async def _read(self, message: bytes) -> Letter:
        def read() -> Letter:
            return reading.read(message)

        return await self.in_thread(read) if len(message) > _IN_THREAD else read()

    def whose(self, address: str) -> tuple[int, UUID] | None:
        """The account's number and the email's id; None, and counted, when it looks like a return path and we did not sign it."""
        found = self.read(address)
        if found is None and return_path.resembles(address):
            self._count("forged")
        return found

    async def _hear(self, letter: Letter, number: int, email_id: UUID) -> None:
        account = await self.accounts.numbered(number)
        now = datetime.fromtimestamp(self.seconds(), UTC)
        heard = None if account is None else await self.store.hear(account.id, email_id, letter.news, now)
        if not heard:
            self._count("stranger" if heard is not None else "gone", email_id)
            return
        if "early" in heard.values():
            self._count("early", email_id)
            raise Early("", "The delivery that this mail is about is not settled yet.")
        for what in heard.values():
            self._count(letter.kind if what == "changed" else "repeated", email_id)

    async def _pass_on(self, letter: Letter, number: int, email_id: UUID) -> None:
        """What the next server told of a mail goes on to whoever asked for it (3461 §5.2)."""
        account = await self.accounts.numbered(number)
        if account is not None:
            await self.store.pass_on(account.id, email_id, letter.passed, datetime.fromtimestamp(self.seconds(), UTC))

    def _count(self, what: str, email_id: UUID | None = None) -> None:
        self.counts[what] += 1
        self.log.info("mail came back: {what}", what=what, email_id=str(email_id) if email_id else None)
