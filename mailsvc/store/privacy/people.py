"""The steps of an erasure that know what an address means: its queued mail, its contacts, its member, its suppressions.

Each is one transaction of a few hundred rows at most; `progress` moves to the next step when nothing is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.mail.address_search import Address
from mailsvc.store.audience import choices, members, unsubscribes
from mailsvc.store.audience.contacts import DELETE, DELETE_CONFIRMATIONS, lock
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.events import events
from mailsvc.store.ids import uuid7
from mailsvc.store.postgres.pool import Transaction
from mailsvc.store.privacy.erasures import Progress
from mailsvc.store.privacy.keyed_hash import keyed_hashes
from mailsvc.store.queue.claims import stopped

BATCH = 200
STOPPED = "It was stopped because the recipient's personal data was erased."
NO_ACCOUNT = "00000000-0000-0000-0000-000000000000"

_SCOPE = "(%(account)s::uuid IS NULL OR account_id = %(account)s)"
_TAKE = f"""
WITH ended AS MATERIALIZED (
    SELECT email_id, recipient FROM queue
    WHERE {_SCOPE} AND lower(address) = ANY (%(addresses)s) AND (lease IS NULL OR %(leased)s) LIMIT %(batch)s FOR UPDATE SKIP LOCKED
)
DELETE FROM queue q USING ended WHERE q.email_id = ended.email_id AND q.recipient = ended.recipient
RETURNING q.account_id, q.email_id, q.recipient, q.domain_id, q.status
"""
LEASED = f"SELECT count(*) FROM queue WHERE {_SCOPE} AND lower(address) = ANY (%(addresses)s)"
_ACCOUNTS = (
    "SELECT a.id::text FROM accounts a WHERE a.id > %(after)s::uuid AND (%(account)s::uuid IS NULL OR a.id = %(account)s)"
    " ORDER BY a.id LIMIT 1"
)
_CONSENTS = """
UPDATE consents SET email = NULL, details = '{}' WHERE account_id = %s AND hash = %s AND (email IS NOT NULL OR details <> '{}')
"""
_SUPPRESSIONS = f"""
WITH taken AS MATERIALIZED (
    DELETE FROM suppressions WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM suppressions WHERE {_SCOPE} AND address = ANY (%(addresses)s) LIMIT %(batch)s
    )) RETURNING account_id, id, origin, created_at
), kept AS (
    INSERT INTO erased_suppressions (account_id, hash, key, id, origin, created_at)
    SELECT DISTINCT ON (account_id) account_id, %(hash)s, %(key)s, id, origin, created_at FROM taken ORDER BY account_id, id
    ON CONFLICT (account_id, hash) DO NOTHING
)
SELECT count(*) FROM taken
"""
_SUPPRESS = """
INSERT INTO erased_suppressions (account_id, hash, key, id, origin, created_at)
SELECT a.id, %(hash)s, %(key)s, %(id)s, 'manual', %(now)s FROM accounts a
WHERE a.id = %(account)s::uuid ON CONFLICT (account_id, hash) DO NOTHING
"""
_USERS = "SELECT id FROM users WHERE email = ANY (%(addresses)s) ORDER BY id LIMIT 1 FOR UPDATE"
# The admins of each account in which the person is one. Locked, so that no two of them are erased at the same time, or remove each other.
_ADMINS = """
SELECT account_id, user_id FROM members WHERE role = 'admin' AND account_id IN (
    SELECT account_id FROM members WHERE user_id = %(user)s AND role = 'admin' AND (%(account)s::uuid IS NULL OR account_id = %(account)s)
) ORDER BY account_id, user_id FOR UPDATE
"""
_LEAVE = "DELETE FROM members WHERE account_id = %s AND user_id = %s"
_END_SESSIONS = "DELETE FROM sessions WHERE account_id = %s AND user_id = %s"
_DELETE_USER = "DELETE FROM users u WHERE u.id = %s AND NOT EXISTS (SELECT FROM members m WHERE m.user_id = u.id AND %s)"
_MEMBER = "SELECT count(*) FROM members WHERE account_id = %s AND user_id = %s"
_LINKS = "DELETE FROM links WHERE email = ANY (%s)"
SOLE_ADMIN_OF = """
SELECT a.name FROM users u JOIN members m ON m.user_id = u.id JOIN accounts a ON a.id = m.account_id
WHERE u.email = ANY (%(addresses)s) AND m.role = 'admin' AND (%(account)s::uuid IS NULL OR m.account_id = %(account)s)
AND NOT EXISTS (SELECT FROM members o WHERE o.account_id = m.account_id AND o.role = 'admin' AND o.user_id <> u.id) ORDER BY a.name
"""


@attrs.frozen
class People:
    """One address, in one account or in all."""

    address: Address
    account: UUID | None
    keys: AudienceKeys
    encryption: Encryption

    @property
    def named(self) -> dict[str, object]:
        return {"account": self.account, "addresses": list(self.address.comparable), "batch": BATCH}

    async def stop(self, tx: Transaction, progress: Progress, now: datetime, *, leased: bool) -> None:
        """Remove its recipients from the queue, with an event as for a recipient that cannot be delivered. `leased`: nobody sends them."""
        rows = await tx.rows(_TAKE, {**self.named, "leased": leased})
        await events.write(tx, [stopped(now, STOPPED, *row) for row in rows])
        progress.add("erased", "queue.address", len(rows))
        if not rows:
            progress.next_step()

    async def contacts(self, tx: Transaction, progress: Progress, now: datetime) -> None:
        """The contact of one account, and of the next one in the next transaction."""
        rows = await tx.rows(_ACCOUNTS, {**self.named, "after": (progress.after or {}).get("account", NO_ACCOUNT)})
        if not rows:
            progress.next_step()
            return
        account_id, progress.after = UUID(rows[0][0]), {"account": rows[0][0]}
        key = await self.keys.read(tx, account_id)
        for email in self.address.comparable:
            contact = await lock(tx, account_id, email)
            if contact is not None:
                chosen = await tx.rows(choices.REMOVE_ALL, (account_id, contact.id))
                await unsubscribes.keep(tx, account_id, contact, [topic for topic, subscribed in chosen if not subscribed], now)
                await tx.run(members.REMOVE_ALL, (account_id, contact.id))
                await tx.run(DELETE_CONFIRMATIONS, (account_id, contact.id))
                await tx.run(DELETE, (account_id, contact.id))
                progress.add("erased", "contacts")
            if key is not None:
                progress.add("erased", "consents", await tx.run(_CONSENTS, (account_id, key.hash(email))))

    async def suppressions(self, tx: Transaction, progress: Progress, now: datetime, suppress: bool) -> None:
        """Replace the entries of the address by keyed hashes. `suppress`: every account in question gets one."""
        number, hash_ = self._hash()
        if progress.after is None:
            [(count,)] = await tx.rows(_SUPPRESSIONS, {**self.named, "hash": hash_, "key": number})
            progress.add("erased", "suppressions", count)
            if count == 0:
                progress.after = {"account": NO_ACCOUNT}
            return
        rows = await tx.rows(_ACCOUNTS, {**self.named, "after": progress.after["account"]}) if suppress else []
        for (account_id,) in rows:
            progress.after = {"account": account_id}
            values = {"hash": hash_, "key": number, "id": uuid7(now.timestamp()), "now": now, "account": account_id}
            progress.add("suppressed", "erased_suppressions", await tx.run(_SUPPRESS, values))
        if not rows:
            progress.next_step()

    async def members(self, tx: Transaction, progress: Progress) -> None:
        """Delete the user, or only the membership in the account if there are others. The only admin of an account has to wait."""
        rows = await tx.rows(_USERS, self.named)
        for (user_id,) in rows:
            admins = Counter(account_id for account_id, _ in await tx.rows(_ADMINS, {"user": user_id, "account": self.account}))
            if 1 in admins.values():
                progress.add("waiting", "users.email")
                continue
            if self.account is not None:
                if not (await tx.rows(_MEMBER, (self.account, user_id)))[0][0]:
                    continue
                await tx.run(_LEAVE, (self.account, user_id))
                await tx.run(_END_SESSIONS, (self.account, user_id))
                progress.add("erased", "members")
            deleted = await tx.run(_DELETE_USER, (user_id, self.account is not None))
            progress.add("erased", "users", deleted)
            progress.add("kept", "users.email", 1 - deleted)
            if deleted:
                progress.add("erased", "links.email", await tx.run(_LINKS, (list(self.address.comparable),)))
        progress.next_step()

    def _hash(self) -> tuple[int, bytes]:
        return next(iter(keyed_hashes(self.encryption, self.address.comparable[0]).items()))


async def sole_admin_of(tx: Transaction, address: Address, account: UUID | None) -> Sequence[str]:
    """The accounts that would have no admin without this person."""
    return [name for (name,) in await tx.rows(SOLE_ADMIN_OF, {"addresses": list(address.comparable), "account": account})]
