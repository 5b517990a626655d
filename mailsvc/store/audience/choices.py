"""What contacts have chosen for topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from mailsvc.store.audience import confirmations, evidence, notices, unsubscribes
from mailsvc.store.audience.evidence import Act, Person
from mailsvc.store.audience.values import By, Choice, Contact, Topic
from mailsvc.store.mail.inserts import document
from mailsvc.store.postgres.pool import Transaction

OF = "SELECT topic_id, subscribed FROM contact_topics WHERE account_id = %s AND contact_id = %s"
SET = """
INSERT INTO contact_topics (account_id, contact_id, topic_id, subscribed, changed_at)
SELECT %s, %s, g.topic_id, g.subscribed, %s FROM json_to_recordset(%s) AS g(topic_id uuid, subscribed boolean)
ON CONFLICT (account_id, contact_id, topic_id) DO UPDATE SET subscribed = excluded.subscribed, changed_at = excluded.changed_at
"""
REMOVE_ALL = "DELETE FROM contact_topics WHERE account_id = %s AND contact_id = %s RETURNING topic_id, subscribed"
# Every topic with what holds for the contact: its choice, otherwise the default.
EFFECTIVE = """
SELECT t.id, t.name, t.description, coalesce(c.subscribed, t.subscribed), t.public, t.created_at FROM topics t
LEFT JOIN contact_topics c ON c.account_id = t.account_id AND c.topic_id = t.id AND c.contact_id = %s
WHERE t.account_id = %s AND t.deleted_at IS NULL
"""


async def of(tx: Transaction, account_id: UUID, contact_id: UUID) -> dict[UUID, bool]:
    return dict(await tx.rows(OF, (account_id, contact_id)))


async def choose(
    tx: Transaction,
    account_id: UUID,
    contact: Contact,
    topics: Mapping[UUID, Topic],
    wanted: Iterable[Choice],
    by: By,
    now: datetime,
    confirm: timedelta,
    *,
    keep_refusals: bool = False,
) -> Sequence[Choice]:
    """Record choices, or ask for confirmation of topics with a double opt-in. Returns those that changed.

    `confirm`: the time to do so. `keep_refusals`: an opt-in does not replace an earlier opt-out.
    The caller has locked the topics and the contact.
    """
    latest = {each.topic_id: each for each in wanted}
    if not latest:
        return ()
    before = await of(tx, account_id, contact.id)
    person = Person(account_id, contact.hash, contact.id, contact.email)
    changed = []
    for each in latest.values():
        topic, known = topics[each.topic_id], before.get(each.topic_id)
        if each.subscribed is known or (each.subscribed and known is False and keep_refusals):
            continue
        if each.subscribed and topic.confirmation is not None and not by.in_person:
            if await confirmations.request(tx, account_id, contact.id, "topic", topic.id, now, confirm):
                await evidence.record(tx, person, [Act("topic", "requested", topic.id, topic.name)], by, now)
            continue
        changed.append(each)
    await record(tx, account_id, contact.id, changed, now)
    acts = [Act("topic", "subscribed" if c.subscribed else "unsubscribed", c.topic_id, topics[c.topic_id].name) for c in changed]
    await evidence.record(tx, person, acts, by, now)
    if by.in_person:
        await unsubscribes.remember(tx, account_id, contact.hash, [c.topic_id for c in latest.values() if not c.subscribed], now)
        await unsubscribes.forget(tx, account_id, contact.hash, [c.topic_id for c in latest.values() if c.subscribed])
    await notices.choices(tx, account_id, contact.email, changed, now)
    return changed


async def record(tx: Transaction, account_id: UUID, contact_id: UUID, changed: Sequence[Choice], now: datetime) -> None:
    """Write choices without any consequence."""
    if changed:
        rows = [{"topic_id": each.topic_id, "subscribed": each.subscribed} for each in sorted(changed, key=lambda c: c.topic_id)]
        await tx.run(SET, (account_id, contact_id, now, document(rows)))
