"""Collects opens and clicks, and stores them in batches. A redirect never waits for this.

While the database is down they wait in memory, up to a limit; further ones are counted and left out.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
from twisted.logger import Logger
from twisted.python.failure import Failure

from mailsvc.mail.tracking.machine import AGENT_MAX, BURST, LINKS, Circumstances, machine
from mailsvc.mail.tracking.token import Tracked
from mailsvc.runtime.polling import PollingLoop
from mailsvc.store.audience.objections import Objections, Person
from mailsvc.store.ids import uuid7
from mailsvc.store.people.minimization import network_of
from mailsvc.store.postgres.errors import Conflict, StoreError, Transient
from mailsvc.store.tracking.hits import Email, Facts, Hits, NewHit

EVERY = 1.0  # seconds
BATCH = 100  # that are stored at a time, to keep the reactor's turns short
PER_EMAIL = 10_000  # that are stored of one email
PENDING_PER_EMAIL = 500  # of one email that wait, so that one link leaves room for others
MOST_BYTES = 16 << 20  # of the texts of those that wait
RECENT = 10_000  # emails whose latest clicks are remembered
UNIQUE = "23505"  # unique_violation: it had been stored before the connection to the database broke
_BURST = timedelta(seconds=BURST)

log = Logger()


@attrs.frozen
class Seen:
    """A request for a pixel or a link. `address`: of the client; `purpose`: the header field Sec-Purpose.

    `id`: of the event, so that it is not stored twice if an answer of the database is lost.
    """

    tracked: Tracked
    at: datetime
    method: str
    address: str
    agent: str
    purpose: str = ""
    id: UUID = attrs.field(init=False)

    @id.default
    def _new_id(self) -> UUID:
        return uuid7(self.at.timestamp())

    @property
    def email(self) -> Email:
        return self.tracked.account_id, self.tracked.email_id

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return 500 + len(self.tracked.url or "") + len(self.agent)


@attrs.define(eq=False)
class HitRecorder:
    """`on_events` is called after each commit. `recorded` and `dropped` are for metrics."""

    stored: Hits
    objections: Objections
    clock: Any
    on_events: Callable[[], None]
    most: int
    truncate: bool = True
    recorded: Counter[tuple[str, str]] = attrs.field(factory=Counter)  # by kind, and "person" or the code of a program
    dropped: Counter[str] = attrs.field(factory=Counter)  # by reason
    _pending: list[Seen] = attrs.field(factory=list)
    _taken: list[Seen] = attrs.field(factory=list)  # the batch that is being stored, and stored again after a failure
    _bytes: int = 0
    _by_email: Counter[Email] = attrs.field(factory=Counter)  # how many wait
    _recent: RecentClicks = attrs.field(factory=lambda: RecentClicks())

    def __len__(self) -> int:
        return len(self._pending) + len(self._taken)

    def add(self, seen: Seen) -> None:
        if len(self) >= self.most or self._bytes + seen.size > MOST_BYTES:
            self.dropped["full"] += 1
            return
        if self._by_email[seen.email] >= PENDING_PER_EMAIL:
            self.dropped["repeated"] += 1
            return
        self._by_email[seen.email] += 1
        self._pending.append(attrs.evolve(seen, agent=seen.agent[:AGENT_MAX], purpose=seen.purpose[:AGENT_MAX]))
        self._bytes += self._pending[-1].size

    def loop(self) -> PollingLoop:
        return PollingLoop(self.clock, "storing opens and clicks", self.store_pending, EVERY)

    async def store_pending(self) -> None:
        """Store what has been collected. Raises Transient if the database is not available; nothing is lost then."""
        while len(self):
            if not self._taken:
                self._taken, self._pending = self._pending[:BATCH], self._pending[BATCH:]
                self._by_email -= Counter(each.email for each in self._taken)
            try:
                await self._store(self._taken)
            except Transient:
                raise
            except Exception as error:  # otherwise all later ones would wait behind this batch for ever
                await self._store_each(error)
            self._bytes -= sum(each.size for each in self._taken)
            self._taken = []

    async def _store_each(self, error: Exception) -> None:
        """The batch failed with this error. Only one of them may be the reason, so each is tried alone."""
        errors = [error]
        if len(self._taken) > 1:
            errors = [own for each in self._taken if (own := await self._error(each)) is not None]
        errors = [each for each in errors if not (isinstance(each, Conflict) and each.sqlstate == UNIQUE)]
        if not errors:
            log.info("A batch of opens and clicks failed, but all of it is stored: {error}", error=str(error))
            return
        self.dropped["failed"] += len(errors)
        if isinstance(errors[0], StoreError):
            log.error("{count} opens and clicks could not be stored: {error}", count=len(errors), error=str(errors[0]))
        else:
            log.failure("{count} opens and clicks could not be stored", Failure(errors[0]), count=len(errors))

    async def _error(self, seen: Seen) -> Exception | None:
        try:
            await self._store([seen])
        except Transient:
            raise
        except Exception as error:
            return error
        return None

    async def _store(self, taken: Sequence[Seen]) -> None:
        facts = await self.stored.facts({each.email for each in taken})
        objected = await self.objections.among({(email[0], to) for email, found in facts.items() for to in found.recipients})
        for each in taken:
            if each.tracked.url is not None:
                self._recent.add(each.email, each.tracked.url, each.at)
        refused = {each.id: _refusal(each, facts.get(each.email), objected) for each in taken}
        hits = [self._judged(each, facts[each.email]) for each in taken if refused[each.id] is None]
        if hits:
            await self.stored.write(hits, facts)
            self.on_events()
        self.recorded.update((hit.kind, hit.machine or "person") for hit in hits)
        self.dropped.update(reason for reason in refused.values() if reason is not None)

    def _judged(self, seen: Seen, facts: Facts) -> NewHit:
        url = seen.tracked.url
        after = None if facts.delivered_at is None else (seen.at - facts.delivered_at).total_seconds()
        links = 0 if url is None else self._recent.links(seen.email, seen.at)
        reason = machine(Circumstances(url is not None, seen.method, seen.agent, seen.purpose, after, links))
        shortened = self.truncate or "addresses" in facts.minimized
        address = network_of(seen.address) if shortened else seen.address.partition("/")[0]
        return NewHit(*seen.email, seen.id, seen.at, url, seen.method, address, seen.agent, reason)


def _refusal(seen: Seen, facts: Facts | None, objected: Collection[Person]) -> str | None:
    """Why it is not stored. One recipient who objects is enough, because nobody knows which of them it was."""
    if facts is None:
        return "deleted"
    if any((seen.tracked.account_id, to) in objected for to in facts.recipients):
        return "objected"
    if "tracking" in facts.minimized:
        return "off"
    return "repeated" if facts.hits >= PER_EMAIL else None


@attrs.define(eq=False)
class RecentClicks:
    """The links that were followed within the last seconds, by email. Of each email, as many of the latest ones as a burst has."""

    _clicks: OrderedDict[Email, dict[int, datetime]] = attrs.field(factory=OrderedDict)  # by the hash of the URL, which is small

    def add(self, email: Email, url: str, at: datetime) -> None:
        link = hash(url)
        before = [(one, then) for one, then in self._clicks.pop(email, {}).items() if at - then <= _BURST and one != link]
        self._clicks[email] = dict([*before[1 - LINKS :], (link, at)])
        if len(self._clicks) > RECENT:
            self._clicks.popitem(last=False)

    def links(self, email: Email, at: datetime) -> int:
        """How many different links of the email were followed around that time, up to the number of a burst."""
        return sum(abs(at - then) <= _BURST for then in self._clicks.get(email, {}).values())
