"""What people change themselves, by a link in an email: unsubscribe, subscribe again, choose topics, confirm a double opt-in.

A link names the hash of the address, so it works after the contact was deleted, and after it was added again. Everything here can be
repeated, and is remembered for an address that is no contact.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.audience import choices, confirmations, evidence, members, segments, topics, unsubscribes
from mailsvc.store.audience.choices import EFFECTIVE
from mailsvc.store.audience.confirmations import Request
from mailsvc.store.audience.contacts import BY_HASH, change, contact_of, lock, lock_by_hash
from mailsvc.store.audience.evidence import Act, Person
from mailsvc.store.audience.listing import TopicOfContact
from mailsvc.store.audience.values import EVERYTHING, By, Choice, Contact, Topic, Unknown
from mailsvc.store.ids import uuid7_floor
from mailsvc.store.postgres.pool import Pool, Transaction

NOBODY = UUID(int=0)  # no contact has this ID
Also = Callable[[Transaction], Awaitable[None]]
AT_ONCE = timedelta(0)  # people who change it themselves are not asked to confirm
# Whoever has a link can subscribe and unsubscribe again and again, and each change is evidence that is kept.
SUBSCRIBED_MOST, PERIOD = 100, timedelta(days=1)
SUBSCRIBED = """
SELECT count(*) FROM (
    SELECT FROM consents WHERE account_id = %s AND hash = %s AND id > %s AND source = 'preferences' AND action = 'subscribed' LIMIT %s
) c
"""


@attrs.frozen
class Standing:
    """What holds for an address: `contact` is None if it is no contact. `topics`: those that the person may see, with what holds."""

    contact: Contact | None
    unsubscribed: bool
    topics: Sequence[TopicOfContact]


@attrs.define(eq=False)
class Preferences:
    pool: Pool
    clock: Any

    async def standing(self, account_id: UUID, hash: bytes) -> Standing:
        """For the preference page: public topics, and private ones that the person is subscribed to.

        Somebody who is no contact can only leave topics and come back, because nothing else is stored about the address.
        """
        rows = await self.pool.rows(BY_HASH, (account_id, hash))
        contact = contact_of(rows[0]) if rows else None
        remembered = {id_ for (id_,) in await self.pool.rows(unsubscribes.REMEMBERED, (account_id, hash))}
        found = [
            TopicOfContact(*row)
            for row in await self.pool.rows(f"{EFFECTIVE} ORDER BY t.id", (NOBODY if contact is None else contact.id, account_id))
        ]
        if contact is None:
            found = [attrs.evolve(each, subscribed=each.id not in remembered) for each in found if each.subscribed]
        unsubscribed = EVERYTHING in remembered if contact is None else contact.unsubscribed
        return Standing(contact, unsubscribed, [each for each in found if each.public or each.subscribed])

    async def may_subscribe(self, account_id: UUID, hash: bytes) -> bool:
        """Whether the person has not subscribed too often with links lately. They can always unsubscribe."""
        since = uuid7_floor(utc(self.clock) - PERIOD)
        return bool((await self.pool.rows(SUBSCRIBED, (account_id, hash, since, SUBSCRIBED_MOST)))[0][0] < SUBSCRIBED_MOST)

    async def unsubscribe(self, account_id: UUID, hash: bytes, topic_id: UUID | None, by: By, also: Also | None = None) -> bool:
        """From one topic, or (None) from everything. Returns whether that changed anything.

        From everything, too, if the topic was deleted: whoever unsubscribes must not be told so without any effect.
        """
        if topic_id is None:
            return await self.change(account_id, hash, (), True, by, also)
        return await self.change(account_id, hash, [Choice(topic_id, False)], None, by, also, or_everything=True)

    async def change(
        self, account_id: UUID, hash: bytes, wanted: Sequence[Choice], unsubscribed: bool | None, by: By, also: Also | None = None,
        *, or_everything: bool = False,
    ) -> bool:  # fmt: skip
        """Set choices of topics, and unsubscribe from everything or subscribe again. None: leave that. Returns whether anything changed.

        Topics that were deleted meanwhile are left out. `or_everything`: unsubscribe from everything if none is left. `also`: done in
        the same transaction if anything changed, because a client that repeats its request changes nothing.
        """

        async def put(tx: Transaction) -> bool:
            changed = await choose(tx)
            if changed and also is not None:
                await also(tx)
            return changed

        async def choose(tx: Transaction) -> bool:
            now = utc(self.clock)
            await unsubscribes.alone(tx, account_id)
            about = await _live(tx, account_id, [each.topic_id for each in wanted])
            live = [each for each in wanted if each.topic_id in about]
            out = True if or_everything and not live else unsubscribed
            contact = await lock_by_hash(tx, account_id, hash)
            if contact is None:
                return await _without_contact(tx, Person(account_id, hash), about, live, out, by, now)
            changed = bool(await choices.choose(tx, account_id, contact, about, live, by, now, AT_ONCE))
            if out is not None:
                after = await change(tx, account_id, contact, attrs.evolve(contact, unsubscribed=out), by, now)
                changed |= after != contact
                if out:
                    await unsubscribes.remember(tx, account_id, hash, [EVERYTHING], now)
                else:
                    await unsubscribes.forget(tx, account_id, hash, [EVERYTHING])
            return changed

        return await self.pool.transact(put)

    async def confirm(self, account_id: UUID, id_: UUID, by: By) -> Request | None:
        """A person pressed the button of a double opt-in: they are subscribed, also if they had unsubscribed before.

        Returns the request as it was before; None if there is none, for example because the contact was deleted.
        """

        async def put(tx: Transaction) -> Request | None:
            now = utc(self.clock)
            await unsubscribes.alone(tx, account_id)
            asked = await confirmations.find(tx, account_id, id_)
            if asked is None or asked.name is None:
                return asked
            if asked.kind == "topic":
                about = await topics.locked(tx, account_id, [asked.target_id])
            else:
                into = await segments.locked(tx, account_id, [asked.target_id])
            contact = await lock(tx, account_id, asked.contact_id)  # before the request, as whoever deletes the contact or asks again
            if contact is None:
                return None
            if not await confirmations.confirm(tx, account_id, id_, now):
                return asked
            if asked.kind == "topic":
                await choices.choose(tx, account_id, contact, about, [Choice(asked.target_id, True)], by, now, AT_ONCE)
            else:
                await members.add(tx, account_id, contact, into, by, now, AT_ONCE)
                person = Person(account_id, contact.hash, contact.id, contact.email)
                await evidence.record(tx, person, [Act("segment", "subscribed", asked.target_id, asked.name)], by, now)
            await change(tx, account_id, contact, attrs.evolve(contact, unsubscribed=False), by, now)
            await unsubscribes.forget(tx, account_id, contact.hash, [EVERYTHING])
            return asked

        return await self.pool.transact(put)


async def _live(tx: Transaction, account_id: UUID, ids: Sequence[UUID]) -> Mapping[UUID, Topic]:
    found: dict[UUID, Topic] = {}
    for id_ in ids:
        try:
            found |= await topics.locked(tx, account_id, [id_])
        except Unknown:
            continue
    return found


async def _without_contact(
    tx: Transaction,
    person: Person,
    about: Mapping[UUID, Topic],
    wanted: Sequence[Choice],
    unsubscribed: bool | None,
    by: By,
    now: datetime,
) -> bool:
    """The address is no contact: only remember what it unsubscribed from."""
    before = await unsubscribes.remembered(tx, person.account_id, person.hash)
    out = {each.topic_id for each in wanted if not each.subscribed} | ({EVERYTHING} if unsubscribed else set())
    back = {each.topic_id for each in wanted if each.subscribed} | (set() if unsubscribed or unsubscribed is None else {EVERYTHING})
    await unsubscribes.remember(tx, person.account_id, person.hash, out, now)
    await unsubscribes.forget(tx, person.account_id, person.hash, back)
    changed = [(id_, False) for id_ in sorted(out - before)] + [(id_, True) for id_ in sorted(back & before)]
    acts = [
        Act("all", "subscribed" if back_again else "unsubscribed")
        if id_ == EVERYTHING
        else Act("topic", "subscribed" if back_again else "unsubscribed", id_, about[id_].name)
        for id_, back_again in changed
    ]
    await evidence.record(tx, person, acts, by, now)
    return bool(changed)
