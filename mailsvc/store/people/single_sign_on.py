"""Single sign-on of accounts: their own OpenID Connect provider, the email domains it is for, and who members are at the provider.

The protocol and the pages are in dashboard/signin. An account can use it for a domain that it has verified for sending, and for
subdomains. The domain stays with it until it is removed, or until another account has verified the sending domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.people.audit import SERVICE, Line, write
from mailsvc.store.people.identities import Identity
from mailsvc.store.people.roles import LEAST
from mailsvc.store.people.users import ADD_MEMBER, NewUser, Taken, User, add
from mailsvc.store.postgres.pool import Pool, Transaction

_DOMAINS = "ARRAY(SELECT domain FROM {} d WHERE d.account_id = s.account_id ORDER BY domain)"
_FIND = f"""
SELECT s.account_id, s.issuer, s.client, s.secret, s.required, s.new_members, s.vouches, s.changed_at,
    {_DOMAINS.format("single_sign_on_domains")}, {_DOMAINS.format("single_sign_on_claims")}
FROM single_sign_on s WHERE
"""
_OF_ACCOUNT = _FIND + "s.account_id = %s"
_OF_DOMAIN = _FIND + "s.account_id = (SELECT account_id FROM single_sign_on_claims WHERE domain = %s)"
# The part of a user's address behind the last @.
_HOST = "substring(u.email FROM '[^@]*$')"
# Whether the user of `m` and `u` must use the provider of the account of `m`.
AFFECTED = f"""
EXISTS (
    SELECT FROM single_sign_on o JOIN single_sign_on_claims c ON c.account_id = o.account_id
    WHERE o.account_id = m.account_id AND o.required AND c.domain = {_HOST}
)
"""
_REQUIRED_OF = (
    _FIND
    + f"""
s.account_id = (SELECT m.account_id FROM members m JOIN users u ON u.id = m.user_id WHERE u.id = %s AND {AFFECTED} LIMIT 1)
"""
)
_LOCK = "SELECT issuer, client, secret, required FROM single_sign_on WHERE account_id = %s FOR UPDATE"
_SAVE = """
INSERT INTO single_sign_on (account_id, issuer, client, secret, required, new_members, vouches, changed_at)
VALUES (%(account)s, %(issuer)s, %(client)s, %(secret)s, false, %(new_members)s, %(vouches)s, %(now)s)
ON CONFLICT (account_id) DO UPDATE SET
    issuer = excluded.issuer, client = excluded.client, secret = excluded.secret, new_members = excluded.new_members,
    vouches = excluded.vouches, required = single_sign_on.required AND NOT %(other)s,
    changed_at = CASE WHEN %(other)s THEN excluded.changed_at ELSE single_sign_on.changed_at END
"""
_CLAIMED = "SELECT domain FROM single_sign_on_claims WHERE account_id = %s"
_HOLDER = """
SELECT name, account_id FROM domains WHERE name = ANY (%s) AND (status = 'verified' OR trusted_at IS NOT NULL)
ORDER BY length(name) DESC LIMIT 1
"""
_LOST = """
DELETE FROM single_sign_on_domains t WHERE t.domain = %s AND t.account_id <> %s
AND NOT EXISTS (SELECT FROM single_sign_on_claims c WHERE c.domain = t.domain) RETURNING t.account_id
"""
_CLAIM = """
INSERT INTO single_sign_on_domains (account_id, domain, verified) VALUES (%s, %s, %s)
ON CONFLICT (account_id, domain) DO UPDATE SET verified = excluded.verified
"""
_HELD = "SELECT FROM single_sign_on_domains WHERE domain = %s AND account_id <> %s"
_UNCLAIM = "DELETE FROM single_sign_on_domains WHERE account_id = %s AND NOT domain = ANY (%s)"
_FORGET = "DELETE FROM single_sign_on_members WHERE account_id = %s AND issuer <> %s"
# Sessions that began with the provider before it was changed, which may be another one, do not count as begun with it.
_END_OTHERS = f"""
DELETE FROM sessions t USING members m JOIN users u ON u.id = m.user_id JOIN single_sign_on p ON p.account_id = m.account_id
WHERE m.account_id = %s AND t.user_id = m.user_id
AND (t.single_sign_on IS DISTINCT FROM m.account_id OR t.created_at <= p.changed_at) AND {AFFECTED}
"""
_REQUIRE = "UPDATE single_sign_on SET required = %s WHERE account_id = %s AND required <> %s"
_REMOVE = "DELETE FROM single_sign_on WHERE account_id = %s"
_REMOVE_MEMBERS = "DELETE FROM single_sign_on_members WHERE account_id = %s"
_FORGET_SESSIONS = "UPDATE sessions SET single_sign_on = NULL WHERE single_sign_on = %s"
_MEMBER = "SELECT user_id FROM single_sign_on_members WHERE account_id = %s AND issuer = %s AND subject = %s"
_BOUND = "SELECT FROM single_sign_on_members WHERE account_id = %s AND issuer = %s AND user_id = %s"
_BIND = """
INSERT INTO single_sign_on_members (account_id, issuer, subject, user_id, created_at)
SELECT m.account_id, %s, %s, m.user_id, %s FROM members m WHERE m.account_id = %s AND m.user_id = %s
ON CONFLICT DO NOTHING
"""


class DomainRefused(Exception):
    """A domain cannot be used. The message is a sentence for the admin."""


@attrs.frozen
class SingleSignOn:
    """The single sign-on of an account. `claimed`: the `domains` that count now. `required`: for members with addresses at them.

    `new_members`: people who are no members become one. `vouches`: an address without `email_verified` counts as verified.
    """

    account_id: UUID
    issuer: str
    client: str
    secret: str = attrs.field(repr=False)
    required: bool
    new_members: bool
    vouches: bool
    changed_at: datetime
    domains: Sequence[str]
    claimed: Sequence[str]

    def covers(self, email: str) -> bool:
        return email.rpartition("@")[2].lower() in self.claimed


@attrs.frozen
class Provider:
    """What an admin enters. `secret`: empty if it stays."""

    issuer: str
    client: str
    secret: str = attrs.field(repr=False)
    domains: Sequence[str]
    new_members: bool
    vouches: bool


class SingleSignOns:
    def __init__(self, pool: Pool, clock: Any, encryption: Encryption) -> None:
        self._pool = pool
        self._clock = clock
        self._encryption = encryption

    async def of_account(self, account_id: UUID) -> SingleSignOn | None:
        return await self._one(_OF_ACCOUNT, account_id)

    async def of_address(self, email: str) -> SingleSignOn | None:
        """That of the domain of an address, whether or not it belongs to a user."""
        return await self._one(_OF_DOMAIN, email.rpartition("@")[2].lower())

    async def required_of(self, user_id: UUID) -> SingleSignOn | None:
        """The one that a user must use to sign in."""
        return await self._one(_REQUIRED_OF, user_id)

    async def any(self) -> bool:
        return bool(await self._pool.rows("SELECT FROM single_sign_on LIMIT 1"))

    # Set-up

    async def save(self, account_id: UUID, given: Provider, lines: Sequence[Line]) -> None:
        """Set it up or change it. Another issuer, client or secret must prove that it works before it can be required again.

        Raises DomainRefused.
        """

        async def save(tx: Transaction) -> None:
            rows = await tx.rows(_LOCK, (account_id,))
            issuer, client, secret, _ = rows[0] if rows else (None, None, None, False)
            other = bool(given.secret) or (issuer, client) != (given.issuer, given.client)
            encrypted = self._encryption.encrypt(given.secret.encode(), account_id) if given.secret else secret
            values = {
                "account": account_id, "issuer": given.issuer, "client": given.client, "secret": encrypted,
                "new_members": given.new_members, "vouches": given.vouches, "now": self._now(), "other": other,
            }  # fmt: skip
            await tx.run(_SAVE, values)
            await self._claim(tx, account_id, given.domains)
            await tx.run(_FORGET, (account_id, given.issuer))
            await tx.run(_END_OTHERS, (account_id,))  # of members at added domains, if it is required
            await write(tx, lines, self._now().timestamp())

        await self._pool.transact(save)

    async def _claim(self, tx: Transaction, account_id: UUID, domains: Sequence[str]) -> None:
        await tx.run(_UNCLAIM, (account_id, list(domains)))
        claimed = {domain for (domain,) in await tx.rows(_CLAIMED, (account_id,))}
        for domain in domains:
            if domain in claimed:
                continue
            holders = await tx.rows(_HOLDER, (_with_parents(domain),))
            if not holders or holders[0][1] != account_id:
                raise DomainRefused(f"{domain} is not a verified domain of this account, nor below one. Verify it in Domains first.")
            for (former,) in await tx.rows(_LOST, (domain, account_id)):
                lost = Line(former, None, None, SERVICE, "", "single sign-on domain lost", domain)
                await write(tx, [lost], self._now().timestamp())
            if await tx.rows(_HELD, (domain, account_id)):
                raise DomainRefused(f"{domain} is used for single sign-on by another account.")
            await tx.run(_CLAIM, (account_id, domain, holders[0][0]))

    async def require(self, account_id: UUID, required: bool, lines: Sequence[Line]) -> bool:
        """Require it, which ends sessions that began otherwise, or no longer require it; whether that was a change."""

        async def require(tx: Transaction) -> bool:
            if not await tx.run(_REQUIRE, (required, account_id, required)):
                return False
            await tx.run(_END_OTHERS, (account_id,))
            await write(tx, lines, self._now().timestamp())
            return True

        return await self._pool.transact(require)

    async def remove(self, account_id: UUID, lines: Sequence[Line]) -> bool:
        async def remove(tx: Transaction) -> bool:
            if not await tx.run(_REMOVE, (account_id,)):
                return False
            await tx.run(_REMOVE_MEMBERS, (account_id,))
            await tx.run(_FORGET_SESSIONS, (account_id,))
            await write(tx, lines, self._now().timestamp())
            return True

        return await self._pool.transact(remove)

    # Members

    async def member(self, account_id: UUID, identity: Identity) -> UUID | None:
        """The member with this identity at the provider."""
        rows = await self._pool.rows(_MEMBER, (account_id, identity.issuer, identity.subject))
        return rows[0][0] if rows else None

    async def bound(self, account_id: UUID, issuer: str, user_id: UUID) -> bool:
        """Whether a member has an identity at the provider already."""
        return bool(await self._pool.rows(_BOUND, (account_id, issuer, user_id)))

    async def bind(self, account_id: UUID, user_id: UUID, identity: Identity, lines: Sequence[Line]) -> bool:
        """Connect a member to an identity; false if one of them is connected already, or the user is no member."""

        async def bind(tx: Transaction) -> bool:
            done = await tx.run(_BIND, (identity.issuer, identity.subject, self._now(), account_id, user_id)) > 0
            await write(tx, lines if done else (), self._now().timestamp())
            return done

        return await self._pool.transact(bind)

    async def add_member(self, account_id: UUID, email: str, name: str, identity: Identity, address: str) -> User | None:
        """Create a user who is a member with the least role. None if the address belongs to a user or the identity to a member."""
        now = self._now()

        async def join(tx: Transaction) -> User:
            user = await add(tx, email, NewUser(name), now)
            await tx.run(ADD_MEMBER, (account_id, user.id, LEAST, now))
            if not await tx.run(_BIND, (identity.issuer, identity.subject, now, account_id, user.id)):
                raise Taken
            line = Line(account_id, None, user.id, user.email, address, "member added", f"{LEAST}, by single sign-on")
            await write(tx, [line], now.timestamp())
            return user

        try:
            return await self._pool.transact(join)
        except Taken:
            return None

    async def _one(self, sql: str, key: object) -> SingleSignOn | None:
        rows = await self._pool.rows(sql, (key,))
        if not rows:
            return None
        account_id, issuer, client, secret, *rest = rows[0]
        return SingleSignOn(account_id, issuer, client, self._encryption.decrypt(bytes(secret), account_id).decode(), *rest)

    def _now(self) -> datetime:
        return utc(self._clock)


def _with_parents(domain: str) -> list[str]:
    labels = domain.split(".")
    return [".".join(labels[at:]) for at in range(len(labels) - 1)]
