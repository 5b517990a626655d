"""Contacts: create, change, find, delete. Lists and searches: store/audience/listing.

The address is the identity. Creating one that exists changes the contact, and never subscribes somebody who has unsubscribed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.audience import choices, evidence, members, notices, properties, segments, topics, unsubscribes
from mailsvc.store.audience.evidence import Act, Person
from mailsvc.store.audience.keys import AudienceKeys, folded
from mailsvc.store.audience.values import EVERYTHING, TRACKING, By, Choice, Contact, Limits, NewContact, PropertyValue
from mailsvc.store.ids import uuid7
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.errors import Contention
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

T = TypeVar("T")
Ref = UUID | str  # a contact's ID or address

COLUMNS = Columns.named(
    "id", "email", "first_name", "last_name", "unsubscribed", "untracked", "properties", "hash", "created_at", "updated_at"
)
_FIND = f"SELECT {COLUMNS} FROM contacts WHERE account_id = %s AND"
BY_ID, BY_ADDRESS, BY_HASH = f"{_FIND} id = %s", f"{_FIND} address = %s", f"{_FIND} hash = %s"
KNOWN = "SELECT address FROM contacts WHERE account_id = %s AND address = ANY (%s)"
LOCKED = " FOR NO KEY UPDATE"
INSERT = f"""
INSERT INTO contacts (
    account_id, id, address, email, first_name, last_name, unsubscribed, untracked, properties, hash, created_at, updated_at
) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING RETURNING {COLUMNS}
"""
UPDATE = f"""
UPDATE contacts SET first_name = %s, last_name = %s, unsubscribed = %s, untracked = %s, properties = %s, updated_at = %s
WHERE account_id = %s AND id = %s RETURNING {COLUMNS}
"""
DELETE = "DELETE FROM contacts WHERE account_id = %s AND id = %s"
DELETE_CONFIRMATIONS = "DELETE FROM confirmations WHERE account_id = %s AND contact_id = %s"
SEGMENT = "SELECT FROM contact_segments WHERE account_id = %s AND segment_id = %s AND contact_id = %s"
LIVE_TOPICS = "SELECT id FROM topics WHERE account_id = %s AND id = ANY (%s::uuid[]) AND deleted_at IS NULL ORDER BY id FOR KEY SHARE"


def contact_of(row: Row) -> Contact:
    return Contact(**COLUMNS.read(row))


async def lock(tx: Transaction, account_id: UUID, ref: Ref) -> Contact | None:
    """A contact by its ID or address, which stays as it is until the transaction ends."""
    return await _one(tx, *(_by(account_id, ref, LOCKED)))


async def lock_by_hash(tx: Transaction, account_id: UUID, hash: bytes) -> Contact | None:
    return await _one(tx, BY_HASH + LOCKED, (account_id, hash))


async def _one(tx: Transaction, sql: str, params: tuple[object, ...]) -> Contact | None:
    rows = await tx.rows(sql, params)
    return contact_of(rows[0]) if rows else None


def _by(account_id: UUID, ref: Ref, end: str = "") -> tuple[str, tuple[object, ...]]:
    if isinstance(ref, UUID):
        return BY_ID + end, (account_id, ref)
    return BY_ADDRESS + end, (account_id, folded(ref))


async def change(tx: Transaction, account_id: UUID, before: Contact, after: Contact, by: By, now: datetime) -> Contact:
    """Write what differs, with its evidence and event."""
    if after == before:
        return before
    values = (after.first_name, after.last_name, after.unsubscribed, after.untracked, dict(after.properties), now)
    [row] = await tx.rows(UPDATE, (*values, account_id, before.id))
    changed = contact_of(row)
    if changed.unsubscribed is not before.unsubscribed:
        act = Act("all", "unsubscribed" if changed.unsubscribed else "subscribed")
        await evidence.record(tx, Person(account_id, changed.hash, changed.id, changed.email), [act], by, now)
    if before.untracked and not changed.untracked:
        await unsubscribes.forget(tx, account_id, changed.hash, [TRACKING])
    await notices.contact(tx, account_id, "updated", changed, now)
    return changed


@attrs.define(eq=False)
class Contacts:
    """`lines` are for the audit log, from the contact that was changed."""

    pool: Pool
    clock: Any
    keys: AudienceKeys
    limits: Limits = attrs.field(factory=Limits)

    async def get(self, account_id: UUID, ref: Ref) -> Contact | None:
        rows = await self.pool.rows(*_by(account_id, ref))
        return contact_of(rows[0]) if rows else None

    async def known(self, account_id: UUID, addresses: Sequence[str]) -> set[str]:
        """Those that contacts have, of folded addresses."""
        return {address for (address,) in await self.pool.rows(KNOWN, (account_id, list(addresses)))}

    async def get_member(self, account_id: UUID, segment_id: UUID, ref: Ref) -> Contact | None:
        """The contact if it is in the segment."""
        found = await self.get(account_id, ref)
        return found if found is not None and await self.pool.run(SEGMENT, (account_id, segment_id, found.id)) else None

    async def create(self, account_id: UUID, new: NewContact, by: By, lines: Callable[[Contact], Sequence[Line]] = lambda _: ()) -> Contact:
        """Create a contact, or change the one that has the address. Raises Unknown or WrongProperty."""
        key = await self.keys.of(account_id)
        return await self._transact(partial(self._create, account_id, new, key.hash(new.email), by, lines))

    async def _create(
        self, account_id: UUID, new: NewContact, hash: bytes, by: By, lines: Callable[[Contact], Sequence[Line]], tx: Transaction
    ) -> Contact:
        now = utc(self.clock)
        await unsubscribes.share(tx, account_id)
        into = await segments.locked(tx, account_id, new.segments)
        about = await topics.locked(tx, account_id, [each.topic_id for each in new.topics])
        definitions = await properties.by_key(tx, account_id, new.properties) if new.properties else {}
        given = properties.values(definitions, new.properties, self.limits.value)
        contact = await self._insert(tx, account_id, new, hash, given, by, now)
        kind: str | None = "created"
        if contact is None:
            kind, contact = None, await self._merge(tx, account_id, new, given, by, now)
        await members.add(tx, account_id, contact, into, by, now, self.limits.confirm)
        if kind is not None:
            await notices.contact(tx, account_id, kind, contact, now)
        await choices.choose(tx, account_id, contact, about, new.topics, by, now, self.limits.confirm, keep_refusals=True)
        await write(tx, lines(contact), now.timestamp())
        return contact

    async def _insert(
        self,
        tx: Transaction,
        account_id: UUID,
        new: NewContact,
        hash: bytes,
        given: Mapping[str, PropertyValue | None],
        by: By,
        now: datetime,
    ) -> Contact | None:
        """The new contact with its remembered unsubscribes; None if the address exists."""
        names = (new.first_name or None, new.last_name or None)
        values = {number: value for number, value in given.items() if value is not None}
        choice = (bool(new.unsubscribed), bool(new.untracked))
        row = (account_id, uuid7(now.timestamp()), folded(new.email), new.email, *names, *choice, values, hash, now, now)
        rows = await tx.rows(INSERT, row)
        if not rows:
            return None
        contact = contact_of(rows[0])
        if contact.unsubscribed:
            person = Person(account_id, hash, contact.id, contact.email)
            await evidence.record(tx, person, [Act("all", "unsubscribed")], by, now)
        remembered = await unsubscribes.remembered(tx, account_id, hash)
        flags = (contact.unsubscribed or EVERYTHING in remembered, contact.untracked or TRACKING in remembered)
        if flags != (contact.unsubscribed, contact.untracked):
            after = (contact.first_name, contact.last_name, *flags, dict(contact.properties), now)
            contact = contact_of((await tx.rows(UPDATE, (*after, account_id, contact.id)))[0])
        about = remembered - {EVERYTHING, TRACKING}
        live = await tx.rows(LIVE_TOPICS, (account_id, sorted(about))) if about else []
        await choices.record(tx, account_id, contact.id, [Choice(id_, False) for (id_,) in live], now)
        return contact

    async def _merge(
        self, tx: Transaction, account_id: UUID, new: NewContact, given: Mapping[str, PropertyValue | None], by: By, now: datetime
    ) -> Contact:
        """The existing contact with what was given. An `unsubscribed` of false does not subscribe it again."""
        before = await lock(tx, account_id, new.email)
        if before is None:  # deleted since the insert found it
            raise Contention("40001", "The contact was deleted at the same time.")
        after = attrs.evolve(
            before,
            first_name=before.first_name if new.first_name is None else new.first_name or None,
            last_name=before.last_name if new.last_name is None else new.last_name or None,
            unsubscribed=before.unsubscribed or bool(new.unsubscribed),
            untracked=before.untracked or bool(new.untracked),
            properties=merged(before.properties, given),
        )
        return await change(tx, account_id, before, after, by, now)

    async def update(
        self,
        account_id: UUID,
        ref: Ref,
        changes: Mapping[str, Any],
        by: By,
        lines: Callable[[Contact], Sequence[Line]] = lambda _: (),
        *,
        segment_id: UUID | None = None,
    ) -> Contact | None:
        """`changes`: first_name, last_name, unsubscribed, untracked, and properties by key. Returns None if there is no such contact."""

        async def put(tx: Transaction) -> Contact | None:
            now = utc(self.clock)
            by_key = changes.get("properties") or {}
            definitions = await properties.by_key(tx, account_id, by_key) if by_key else {}
            given = properties.values(definitions, by_key, self.limits.value)
            before = await lock(tx, account_id, ref)
            if before is None or (segment_id is not None and not await tx.run(SEGMENT, (account_id, segment_id, before.id))):
                return None
            direct = {name: value for name, value in changes.items() if name != "properties"}
            after = attrs.evolve(before, **direct, properties=merged(before.properties, given))
            contact = await change(tx, account_id, before, after, by, now)
            await write(tx, lines(contact), now.timestamp())
            return contact

        return await self._transact(put)

    async def delete(self, account_id: UUID, ref: Ref, lines: Callable[[Contact], Sequence[Line]] = lambda _: ()) -> Contact | None:
        """Delete a contact with everything about it. What it was unsubscribed from is remembered without the address."""

        async def take(tx: Transaction) -> Contact | None:
            now = utc(self.clock)
            contact = await lock(tx, account_id, ref)
            if contact is None:
                return None
            await notices.contact(tx, account_id, "deleted", contact, now)
            chosen = await tx.rows(choices.REMOVE_ALL, (account_id, contact.id))
            opted_out = [topic_id for topic_id, subscribed in chosen if not subscribed]
            await unsubscribes.keep(tx, account_id, contact, opted_out, now)
            await tx.run(members.REMOVE_ALL, (account_id, contact.id))
            await tx.run(DELETE_CONFIRMATIONS, (account_id, contact.id))
            await tx.run(evidence.FORGET, (account_id, contact.hash))
            await tx.run(DELETE, (account_id, contact.id))
            await write(tx, lines(contact), now.timestamp())
            return contact

        return await self._transact(take)

    # Segments and topics of a contact

    async def join(
        self, account_id: UUID, ref: Ref, segment_id: UUID, by: By, lines: Callable[[Contact], Sequence[Line]] = lambda _: ()
    ) -> Contact | None:
        """Add a contact to a segment, or ask it to confirm. Raises Unknown if there is no such segment."""

        async def put(tx: Transaction) -> Contact | None:
            now = utc(self.clock)
            into = await segments.locked(tx, account_id, [segment_id])
            contact = await lock(tx, account_id, ref)
            if contact is not None:
                await members.add(tx, account_id, contact, into, by, now, self.limits.confirm)
                await write(tx, lines(contact), now.timestamp())
            return contact

        return await self._transact(put)

    async def leave(
        self, account_id: UUID, ref: Ref, segment_id: UUID, lines: Callable[[Contact], Sequence[Line]] = lambda _: ()
    ) -> Contact | None:
        """Remove a contact from a segment; it stays a contact. None: there is no such contact."""

        async def take(tx: Transaction) -> Contact | None:
            contact = await lock(tx, account_id, ref)
            if contact is not None and await members.remove(tx, account_id, contact.id, segment_id):
                await write(tx, lines(contact), utc(self.clock).timestamp())
            return contact

        return await self._transact(take)

    async def choose(
        self, account_id: UUID, ref: Ref, wanted: Sequence[Choice], by: By, lines: Callable[[Contact], Sequence[Line]] = lambda _: ()
    ) -> Contact | None:
        """Set choices of topics. Others stay as they are. Raises Unknown if there is no such topic; nothing changes then."""

        async def put(tx: Transaction) -> Contact | None:
            now = utc(self.clock)
            about = await topics.locked(tx, account_id, [each.topic_id for each in wanted])
            contact = await lock(tx, account_id, ref)
            if contact is not None:
                await choices.choose(tx, account_id, contact, about, wanted, by, now, self.limits.confirm)
                await write(tx, lines(contact), now.timestamp())
            return contact

        return await self._transact(put)

    async def _transact(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Once more if another transaction was in the way."""
        try:
            return await self.pool.transact(work)
        except Contention:
            return await self.pool.transact(work)


def merged(before: Mapping[str, PropertyValue], given: Mapping[str, PropertyValue | None]) -> dict[str, PropertyValue]:
    """Values after a change. None removes one."""
    return {number: value for number, value in {**before, **given}.items() if value is not None}
