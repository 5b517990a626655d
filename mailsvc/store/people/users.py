"""Users, their memberships and their factors for signing in, which dashboard/signin checks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import unix, utc
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.ids import uuid7
from mailsvc.store.people.audit import Line, changed, write
from mailsvc.store.people.identities import Identity, connect
from mailsvc.store.people.passkeys import END_CODES, LOCK
from mailsvc.store.people.roles import Role
from mailsvc.store.people.sign_in_attempts import spend
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

PASSKEY = "EXISTS (SELECT FROM passkeys p WHERE p.user_id = {}.id)"
COLUMNS = Columns.of(
    id="id",
    email="email",
    name="name",
    password="password",  # noqa: S106  a column
    totp="totp_at IS NOT NULL",
    totp_step="totp_step",
    created_at="created_at",
    signed_in_at="signed_in_at",
    passkey=PASSKEY.format("users"),
)
GET = f"SELECT {COLUMNS} FROM users WHERE id = %s"
NAMED = f"SELECT {COLUMNS} FROM users WHERE email = %s"
CREATE = f"""
INSERT INTO users (id, email, name, password, created_at, verified_at) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (email) DO NOTHING RETURNING {COLUMNS}
"""
END_CHANGE = "DELETE FROM address_changes WHERE user_id = %s"
END_OTHERS = "DELETE FROM sessions WHERE user_id = %s AND hash <> %s"
# These links allow signing in or choosing a password.
END_LINKS = "DELETE FROM links WHERE purpose <> 'invite' AND email = (SELECT email FROM users WHERE id = %s)"
# Invitations that could let a former member return: those they created, and those for their address.
END_INVITATIONS = """
DELETE FROM links WHERE purpose = 'invite' AND account_id = %s AND (created_by = %s OR email = (SELECT email FROM users WHERE id = %s))
"""
REVOKE_KEYS = "UPDATE api_keys SET revoked_at = %s WHERE account_id = %s AND id = ANY (%s::uuid[]) AND revoked_at IS NULL"
FORGET_PROPOSAL = "UPDATE users SET totp = NULL WHERE id = %s AND totp_at IS NULL"
SET_PASSWORD = "UPDATE users SET password = %s WHERE id = %s"
HASH_AGAIN = f"{SET_PASSWORD} AND password = %s"
VERIFIED = "UPDATE users SET verified_at = coalesce(verified_at, %s) WHERE id = %s"
SIGNED_IN = "UPDATE users SET signed_in_at = %s WHERE id = %s"
ADD_MEMBER = "INSERT INTO members (account_id, user_id, role, created_at) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
ACCOUNTS = """
SELECT a.id, a.name, m.role, a.mfa_since IS NOT NULL FROM members m JOIN accounts a ON a.id = m.account_id
WHERE m.user_id = %s ORDER BY m.created_at, a.id
"""
_MEMBER = Columns.of(
    user_id="u.id",
    email="u.email",
    name="u.name",
    role="m.role",
    second_factor=f"u.totp_at IS NOT NULL OR {PASSKEY.format('u')}",
    signed_in_at="u.signed_in_at",
    since="m.created_at",
)
MEMBERS = f"""
SELECT {_MEMBER}
FROM members m JOIN users u ON u.id = m.user_id WHERE m.account_id = %s ORDER BY m.created_at, u.id
"""
# Locks the admins of an account, so that two of them cannot remove each other concurrently.
ADMINS = "SELECT user_id FROM members WHERE account_id = %s AND role = 'admin' ORDER BY user_id FOR UPDATE"
REMOVE = "DELETE FROM members WHERE account_id = %s AND user_id = %s"
END_SESSIONS = "DELETE FROM sessions WHERE account_id = %s AND user_id = %s"
SET_ROLE = "UPDATE members SET role = %s WHERE account_id = %s AND user_id = %s"
CHANGE_ACCOUNT = """
UPDATE accounts SET name = %s, mfa_since = CASE WHEN %s THEN coalesce(mfa_since, %s) END, dashboard_networks = %s WHERE id = %s
"""
HIDE_STEPS = "UPDATE members SET steps_hidden_at = %s WHERE account_id = %s AND user_id = %s"
PROPOSE_TOTP = "UPDATE users SET totp = %s WHERE id = %s AND totp_at IS NULL"
TAKE_TOTP = "UPDATE users SET totp_step = %s, totp_at = coalesce(totp_at, %s) WHERE id = %s AND totp IS NOT NULL AND totp_step < %s"
END_TOTP = "UPDATE users SET totp = NULL, totp_at = NULL WHERE id = %s"
END_PASSKEYS = "DELETE FROM passkeys WHERE user_id = %s"
FORGET_CODES = "DELETE FROM recovery_codes WHERE user_id = %s"
ADD_CODES = "INSERT INTO recovery_codes (user_id, hash) SELECT %s, unnest(%s::bytea[])"


@attrs.frozen
class User:
    """`password`: its Argon2id hash; `totp`: whether an authenticator app is active."""

    id: UUID
    email: str
    name: str
    password: str | None = attrs.field(repr=False)
    totp: bool
    totp_step: int
    created_at: datetime
    signed_in_at: datetime | None
    passkey: bool = False

    @property
    def second_factor(self) -> bool:
        return self.totp or self.passkey


@attrs.frozen
class NewUser:
    """A user to create. `identity`: an identity at another service, for signing in.

    `verified`: a link sent to the address was opened, or a provider verified it. `ticket`: used up with it, and until when it is known.
    """

    name: str = ""
    password: str | None = attrs.field(default=None, repr=False)
    identity: Identity | None = None
    verified: bool = False
    ticket: tuple[str, datetime] | None = attrs.field(default=None, repr=False)


class Taken(Exception):
    """Another user already has this address or identity, or the ticket was used before."""


@attrs.frozen
class Membership:
    """A user's membership in an account."""

    account_id: UUID
    name: str
    role: Role
    mfa_required: bool


@attrs.frozen
class Member:
    """A member as shown to other members."""

    user_id: UUID
    email: str
    name: str
    role: Role
    second_factor: bool
    signed_in_at: datetime | None
    since: datetime


class Users:
    def __init__(self, pool: Pool, clock: Any, encryption: Encryption) -> None:
        self._pool = pool
        self._clock = clock
        self._encryption = encryption

    async def get(self, user_id: UUID) -> User | None:
        return await self._one(GET, user_id)

    async def named(self, email: str) -> User | None:
        return await self._one(NAMED, email.lower())

    async def create(self, email: str, name: str = "", password: str | None = None) -> User:
        """Create a user, or return the existing one with this address."""
        found = await self.add(email, NewUser(name, password)) or await self.named(email)
        assert found is not None
        return found

    async def add(self, email: str, new: NewUser) -> User | None:
        """Create a user. None if the address or identity belongs to another user."""
        try:
            return await self._pool.transact(lambda tx: add(tx, email, new, self._now()))
        except Taken:
            return None

    async def set_password(self, user_id: UUID, password: str, lines: Sequence[Line] = (), *, keep: bytes) -> None:
        """End all access that the old password could have given, except the session with the SHA-256 `keep`."""

        async def change(tx: Transaction) -> None:
            await tx.run(SET_PASSWORD, (password, user_id))
            await end_access(tx, user_id, keep)
            await write(tx, lines, unix(self._clock))

        await self._pool.transact(change)

    async def hash_again(self, user: User, password: str) -> User:
        """Store another hash of the same password, unless it was changed after `user` was read."""
        done = await self._pool.run(HASH_AGAIN, (password, user.id, user.password))
        return attrs.evolve(user, password=password) if done else user

    async def rename(self, user_id: UUID, name: str, lines: Sequence[Line] = ()) -> None:
        await self._changed(lines, "UPDATE users SET name = %s WHERE id = %s", (name, user_id))

    async def prefer(self, user_id: UUID, time_zone: str, shortcuts: bool, lines: Sequence[Line] = ()) -> None:
        """Set what the user prefers on the pages."""
        await self._changed(lines, "UPDATE users SET time_zone = %s, shortcuts = %s WHERE id = %s", (time_zone, shortcuts, user_id))

    async def hide_steps(self, account_id: UUID, user_id: UUID, hidden: bool, lines: Sequence[Line] = ()) -> None:
        """Hide the steps on the account's home page from this member, or show them again."""
        await self._changed(lines, HIDE_STEPS, (self._now() if hidden else None, account_id, user_id))

    async def suggest_zone(self, user_id: UUID, time_zone: str) -> None:
        """Set the time zone of a user who has none yet."""
        await self._pool.run("UPDATE users SET time_zone = %s WHERE id = %s AND time_zone = ''", (time_zone, user_id))

    async def signed_in(self, user_id: UUID, lines: Sequence[Line] = ()) -> None:
        await self._changed(lines, SIGNED_IN, (self._now(), user_id))

    # Memberships

    async def accounts(self, user_id: UUID) -> list[Membership]:
        """Memberships of a user, oldest first."""
        return [Membership(*row) for row in await self._pool.rows(ACCOUNTS, (user_id,))]

    async def members(self, account_id: UUID) -> list[Member]:
        return [Member(**_MEMBER.read(row)) for row in await self._pool.rows(MEMBERS, (account_id,))]

    async def join(self, account_id: UUID, user_id: UUID, role: Role, lines: Sequence[Line] = ()) -> bool:
        """Add a member; false if they already were one."""
        return await self._changed(lines, ADD_MEMBER, (account_id, user_id, role, self._now())) > 0

    async def remove(self, account_id: UUID, user_id: UUID, lines: Sequence[Line] = (), revoke: Sequence[UUID] = ()) -> bool:
        """Remove a member, except the last admin, with their sessions and invitations, and revoke these API keys; whether it was done."""

        async def remove(tx: Transaction) -> bool:
            if await _last_admin(tx, account_id, user_id) or not await tx.run(REMOVE, (account_id, user_id)):
                return False
            await tx.run(END_SESSIONS, (account_id, user_id))
            await tx.run(END_INVITATIONS, (account_id, user_id, user_id))
            if revoke:
                await tx.run(REVOKE_KEYS, (self._now(), account_id, list(revoke)))
            await write(tx, lines, unix(self._clock))
            return True

        return await self._pool.transact(remove)

    async def set_role(self, account_id: UUID, user_id: UUID, role: Role, lines: Sequence[Line] = ()) -> bool:
        """Change a role, except for the last admin; whether it was done. Invitations of a former admin end."""

        async def change(tx: Transaction) -> bool:
            if role != "admin" and await _last_admin(tx, account_id, user_id):
                return False
            if not await tx.run(SET_ROLE, (role, account_id, user_id)):
                return False
            if role != "admin":
                await tx.run(END_INVITATIONS, (account_id, user_id, user_id))
            await write(tx, lines, unix(self._clock))
            return True

        return await self._pool.transact(change)

    async def change_account(self, account_id: UUID, name: str, mfa: bool, networks: Sequence[str], lines: Sequence[Line] = ()) -> None:
        """Change the name, whether members need a second factor, and from which networks they can open its pages (empty: any)."""
        await self._changed(lines, CHANGE_ACCOUNT, (name, mfa, self._now(), list(networks), account_id))

    # The second factor

    async def propose_totp(self, user_id: UUID, secret: bytes) -> None:
        """Store the secret of a new authenticator app, which becomes active with its first code. An active one stays."""
        await self._pool.run(PROPOSE_TOTP, (self._encryption.encrypt(secret, user_id), user_id))

    async def totp(self, user_id: UUID) -> bytes | None:
        """The secret of the proposed or active app."""
        rows = await self._pool.rows("SELECT totp FROM users WHERE id = %s AND totp IS NOT NULL", (user_id,))
        return self._encryption.decrypt(rows[0][0], user_id) if rows else None

    async def take_totp(self, user_id: UUID, step: int) -> bool:
        """Record a valid code of this time step; false if this or a later one was already used."""
        return await self._pool.run(TAKE_TOTP, (step, self._now(), user_id, step)) > 0

    async def begin_totp(self, user_id: UUID, step: int, codes: Sequence[bytes], keep: bytes, lines: Sequence[Line] = ()) -> bool:
        """Activate an app after its first valid code. `codes`: hashes of new recovery codes; if empty, the existing ones stay. Sessions
        end, except the one with the SHA-256 `keep`."""

        async def begin(tx: Transaction) -> bool:
            if not await tx.run(TAKE_TOTP, (step, self._now(), user_id, step)):
                return False
            await self._replace(tx, user_id, codes)
            await tx.run(END_OTHERS, (user_id, keep))
            await write(tx, lines, unix(self._clock))
            return True

        return await self._pool.transact(begin)

    async def set_recovery_codes(self, user_id: UUID, hashes: Sequence[bytes], lines: Sequence[Line] = ()) -> None:
        """Replace the recovery codes."""

        async def replace(tx: Transaction) -> None:
            await self._replace(tx, user_id, hashes)
            await write(tx, lines, unix(self._clock))

        await self._pool.transact(replace)

    async def _replace(self, tx: Transaction, user_id: UUID, hashes: Sequence[bytes]) -> None:
        if hashes:
            await tx.run(FORGET_CODES, (user_id,))
            await tx.run(ADD_CODES, (user_id, list(hashes)))

    async def take_recovery_code(self, user_id: UUID, hashes: Sequence[bytes]) -> bool:
        """Use a recovery code with one of these hashes; whether it existed."""
        return await self._pool.run("DELETE FROM recovery_codes WHERE user_id = %s AND hash = ANY (%s)", (user_id, list(hashes))) > 0

    async def recovery_codes_left(self, user_id: UUID) -> int:
        [(left,)] = await self._pool.rows("SELECT count(*) FROM recovery_codes WHERE user_id = %s", (user_id,))
        return int(left)

    async def end_totp(self, user_id: UUID, lines: Sequence[Line] = ()) -> bool:
        """Remove the app; whether there was one. Also deletes the recovery codes if it was the last second factor."""

        async def end(tx: Transaction) -> bool:
            await tx.run(LOCK, (user_id,))
            if not await tx.run(f"{END_TOTP} AND totp_at IS NOT NULL", (user_id,)):
                return False
            await tx.run(END_CODES, (user_id,))
            await write(tx, lines, unix(self._clock))
            return True

        return await self._pool.transact(end)

    async def forget_second_factors(self, user_id: UUID, lines: Sequence[Line] = ()) -> None:
        """Remove all second factors of a user who has lost them, and end all sessions."""

        async def forget(tx: Transaction) -> None:
            await tx.run(END_TOTP, (user_id,))
            await tx.run(END_PASSKEYS, (user_id,))
            await tx.run(FORGET_CODES, (user_id,))
            await end_access(tx, user_id, b"")
            await write(tx, lines, unix(self._clock))

        await self._pool.transact(forget)

    async def _changed(self, lines: Sequence[Line], sql: str, params: tuple[object, ...]) -> int:
        return await changed(self._pool, unix(self._clock), lines, sql, params)

    async def _one(self, sql: str, key: object) -> User | None:
        rows = await self._pool.rows(sql, (key,))
        return User(**COLUMNS.read(rows[0])) if rows else None

    def _now(self) -> datetime:
        return utc(self._clock)


async def _last_admin(tx: Transaction, account_id: UUID, user_id: UUID) -> bool:
    return [row[0] for row in await tx.rows(ADMINS, (account_id,))] == [user_id]


async def add(tx: Transaction, email: str, new: NewUser, now: datetime) -> User:
    """Create a user within the caller's transaction. If it raises Taken, the transaction must be rolled back."""
    if new.ticket is not None and not await spend(tx, *new.ticket):
        raise Taken
    rows = await tx.rows(CREATE, (uuid7(now.timestamp()), email.lower(), new.name, new.password, now, now if new.verified else None))
    user = User(**COLUMNS.read(rows[0])) if rows else None
    if user is None or (new.identity is not None and not await connect(tx, user.id, new.identity, now)):
        raise Taken
    return user


async def end_access(tx: Transaction, user_id: UUID, keep: bytes) -> None:
    """End sessions (except the one with the SHA-256 `keep`), links, an address change and a proposed authenticator app."""
    await tx.run(END_OTHERS, (user_id, keep))
    await tx.run(END_LINKS, (user_id,))
    await tx.run(END_CHANGE, (user_id,))
    await tx.run(FORGET_PROPOSAL, (user_id,))
