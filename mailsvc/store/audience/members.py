"""Which contacts are in which segments.

Lists of contacts by segment: store/audience/listing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from mailsvc.store.audience import confirmations, evidence
from mailsvc.store.audience.evidence import Act, Person
from mailsvc.store.audience.values import By, Contact, Segment
from mailsvc.store.postgres.pool import Transaction

ADD = """
INSERT INTO contact_segments (account_id, segment_id, contact_id, added_at) SELECT %s, g, %s, %s FROM unnest(%s::uuid[]) AS g
ON CONFLICT DO NOTHING RETURNING segment_id
"""
# The contacts are locked, so that none is deleted meanwhile.
JOIN = """
INSERT INTO contact_segments (account_id, segment_id, contact_id, added_at)
SELECT c.account_id, %s, c.id, %s FROM contacts c WHERE c.account_id = %s AND c.address = ANY (%s) FOR KEY SHARE
ON CONFLICT DO NOTHING
"""
OF = "SELECT segment_id FROM contact_segments WHERE account_id = %s AND contact_id = %s"
REMOVE = "DELETE FROM contact_segments WHERE account_id = %s AND contact_id = %s AND segment_id = %s"
REMOVE_ALL = "DELETE FROM contact_segments WHERE account_id = %s AND contact_id = %s"
LIST = """
SELECT s.id, s.name, m.added_at FROM contact_segments m JOIN segments s ON s.account_id = m.account_id AND s.id = m.segment_id
WHERE m.account_id = %s AND m.contact_id = %s AND s.deleted_at IS NULL
"""


async def add(
    tx: Transaction, account_id: UUID, contact: Contact, segments: Mapping[UUID, Segment], by: By, now: datetime, confirm: timedelta
) -> Collection[UUID]:
    """Add a contact to segments, or ask it to confirm those with a double opt-in. Returns those that it was added to.

    `confirm`: the time to do so. The caller has locked the segments and the contact.
    """
    if not segments:
        return ()
    member = {id_ for (id_,) in await tx.rows(OF, (account_id, contact.id))}
    new = [each for each in segments.values() if each.id not in member]
    asked = [each for each in new if each.confirmation is not None and not by.in_person]
    person = Person(account_id, contact.hash, contact.id, contact.email)
    for each in asked:
        if await confirmations.request(tx, account_id, contact.id, "segment", each.id, now, confirm):
            await evidence.record(tx, person, [Act("segment", "requested", each.id, each.name)], by, now)
    direct = sorted(each.id for each in new if each not in asked)
    if not direct:
        return ()
    return [id_ for (id_,) in await tx.rows(ADD, (account_id, contact.id, now, direct))]


async def join(tx: Transaction, account_id: UUID, segment: UUID, addresses: Sequence[str], now: datetime) -> int:
    """Add the contacts with these addresses to a segment, which the caller has locked, without asking them. Returns how many are new."""
    return await tx.run(JOIN, (segment, now, account_id, list(addresses)))


async def remove(tx: Transaction, account_id: UUID, contact_id: UUID, segment_id: UUID) -> bool:
    return await tx.run(REMOVE, (account_id, contact_id, segment_id)) > 0
