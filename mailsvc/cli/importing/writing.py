"""Stores what an export has: through the same code as the API and the dashboard, in batches, and in an order that can be repeated.

Whoever unsubscribed there or is suppressed there gets no mail from here either, also if the contact was here before.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from mailsvc.accounts.onboarding import Customers, Refused
from mailsvc.audience.import_plan import Plan
from mailsvc.audience.imports import ImportWorker
from mailsvc.cli.importing.records import Export, Kind, Person
from mailsvc.clock import utc
from mailsvc.store.audience import members
from mailsvc.store.audience.contacts import Contacts
from mailsvc.store.audience.import_values import Import, Orders
from mailsvc.store.audience.imports import CHUNK, Imports
from mailsvc.store.audience.keys import folded
from mailsvc.store.audience.segments import Segments, locked
from mailsvc.store.events.suppressions import Origin, Suppressions
from mailsvc.store.paging import ALL
from mailsvc.store.people.accounts import Account
from mailsvc.store.postgres.pool import Pool, Transaction

BATCH = 1000
AGAIN = 0.2  # seconds until an import that another process works on is looked at again
_PLAN = Plan(",", 0, 1, 2, 3)


@attrs.frozen
class Count:
    """`new` of those that the files have; the others were there before."""

    kind: Kind
    given: int
    new: int


@attrs.frozen
class Destination:
    """The account that gets them."""

    owner: Account
    region: str
    pool: Pool
    clock: Any
    customers: Customers
    suppressions: Suppressions
    contacts: Contacts
    segments: Segments
    imports: Imports

    # What would be new

    async def counts(self, export: Export) -> list[Count]:
        suppressed = await self._known(self.suppressions.known, export.suppressed)
        people = await self._known(self.contacts.known, export.people)
        named = {each.name for each in await self._segments()}
        domains = {each.name for each in (await self.customers.domains.list(self.owner.id))[0]}
        wanted = set(export.segments.values())
        return [
            Count("suppressions", len(export.suppressed), len(export.suppressed) - suppressed),
            Count("contacts", len(export.people), len(export.people) - people),
            Count("segments", len(wanted), len(wanted - named)),
            Count("domains", len(export.domains), len(export.domains.keys() - domains)),
        ]

    async def _known(self, known: Callable[[UUID, Sequence[str]], Awaitable[set[str]]], addresses: dict[str, Any]) -> int:
        return sum([len(await known(self.owner.id, batch)) for batch in _batches(list(addresses))])

    async def _segments(self) -> Sequence[Any]:
        return (await self.segments.list(self.owner.id, ALL))[0]

    # Storing

    async def store(self, export: Export, service: str, update: bool) -> Sequence[str]:
        """`update`: overwrite names of contacts that are here already. Returns why segments were left out and domains not added."""
        await self._suppress(export, service)
        await self._import(list(export.people.values()), update)
        if not update:  # of those who are here already, only this changes
            await self._import([Person(each.email, unsubscribed=True) for each in export.people.values() if each.unsubscribed], True)
        return [*await self._join(export), *await self._add_domains(export)]

    async def _add_domains(self, export: Export) -> Sequence[str]:
        there = {each.name for each in (await self.customers.domains.list(self.owner.id))[0]}
        refused: list[str] = []
        for name in export.domains.keys() - there:
            try:
                await self.customers.add_domain(self.owner.id, name, self.region)
            except Refused as why:
                refused.append(str(why))
        return refused

    async def _suppress(self, export: Export, service: str) -> None:
        origins: Sequence[Origin] = ("complaint", "bounce", "manual")
        for origin in origins:
            for batch in _batches([each.email for each in export.suppressed.values() if each.origin == origin]):
                await self.suppressions.add(self.owner.id, batch, origin=origin, reason=f"Imported from {service}.")

    async def _import(self, people: Sequence[Person], update: bool) -> None:
        if not people:
            return
        data = _table(people, self.contacts.limits.name)
        one = await self.imports.add(self.owner.id, Orders(_PLAN.stored(), update, (), ()), len(data), 0, _chunks(data))
        worker = ImportWorker(self.imports, self.contacts.keys, deferToThread, self.clock, self.contacts.limits)
        found: Import | None = one
        while found is not None and found.completed_at is None:
            if not await worker.poll():  # another process works on it
                await deferLater(self.clock, AGAIN)
            found = await self.imports.get(self.owner.id, one.id)
        if found is not None and found.reason is not None:
            raise Refused(f"The contacts could not be imported: {found.reason}")

    async def _join(self, export: Export) -> list[str]:
        there = {each.name: each.id for each in await self._segments()}
        for name in dict.fromkeys(export.segments.values()):
            if name not in there:
                there[name] = (await self.segments.add(self.owner.id, name)).id
        joining: dict[str, list[str]] = {}
        for person, name in export.memberships():
            joining.setdefault(name, []).append(folded(person.email))
        added = {name: all([await self._add(there[name], batch) for batch in _batches(addresses)]) for name, addresses in joining.items()}
        why = "has a double opt-in, so nobody was added to it: a file is no confirmation."
        return [f"The segment {name} {why}" for name, done in added.items() if not done]

    async def _add(self, segment: UUID, addresses: Sequence[str]) -> bool:
        """Returns false if the segment has a double opt-in."""

        async def add(tx: Transaction) -> bool:
            if (await locked(tx, self.owner.id, [segment]))[segment].confirmation is not None:
                return False
            await members.join(tx, self.owner.id, segment, addresses, utc(self.clock))
            return True

        return await self.pool.transact(add)


def _table(people: Sequence[Person], most: int) -> bytes:
    """As a file that contacts are imported from. Rows with names of more than `most` characters would be left out."""
    text = io.StringIO()
    csv.writer(text).writerows(
        (each.email, each.first_name[:most], each.last_name[:most], "yes" if each.unsubscribed else "") for each in people
    )
    return text.getvalue().encode("utf-8", "replace")


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


def _batches(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), BATCH):
        yield values[start : start + BATCH]
