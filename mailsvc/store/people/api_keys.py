"""API keys. Only the SHA-256 of a key is stored.

A key consists of `ms_`, 32 random characters and a checksum of 6, so that a mistyped key is rejected without a query. In a cell, the name
of the cell follows `ms_`, so that a proxy in front of several cells can tell which one a request is for.
"""

from __future__ import annotations

import hashlib
import secrets
import string
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import unix, utc
from mailsvc.store.cache import Cache
from mailsvc.store.domains.values import Domain
from mailsvc.store.ids import uuid7
from mailsvc.store.paging import ALL, Page
from mailsvc.store.people.account_lock import LOCK
from mailsvc.store.people.accounts import Account
from mailsvc.store.people.audit import Line, changed, write
from mailsvc.store.postgres.cells import cell_of
from mailsvc.store.postgres.notifications import Notifier
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

Permission = Literal["full_access", "sending_access"]

PREFIX = "ms_"
NAME_MAX = 50  # characters
ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
RANDOM, CHECK = 32, 6
SHOWN = 6  # random characters of a key that are stored, with what is before them, to recognise it

_CALLER = Columns.of(
    account_id="k.account_id",
    key_id="k.id",
    permission="k.permission",
    domain_id="k.domain_id",
    rate_limit="a.rate_limit",
    suspended="a.suspended_at IS NOT NULL",
    plan="a.plan",
    ramp="a.ramp",
    networks="k.networks",
)
LIVE = "(k.expires_at IS NULL OR k.expires_at > %s)"
_FIND = f"SELECT {_CALLER} FROM api_keys k JOIN accounts a ON a.id = k.account_id WHERE k.revoked_at IS NULL AND {LIVE} AND "
FIND, FIND_BY_ID = _FIND + "k.hash = %s", _FIND + "k.id = %s"
# An account that comes back may still be among those that have left.
MOVED = r"""
SELECT NULL FROM account_arrivals WHERE name = 'api_keys' AND content ->> 'hash' = '\x' || encode(%s, 'hex')
UNION ALL
SELECT cell FROM account_move_keys WHERE hash = %s
"""
MOVED_BY_ID = """
SELECT NULL FROM account_arrivals WHERE name = 'api_keys' AND content ->> 'id' = %s::text
UNION ALL
SELECT cell FROM account_move_keys WHERE key_id = %s
"""
MOST = 5000  # active keys of an account, and keys in a list that includes revoked ones
COUNT = "SELECT count(*) FROM (SELECT FROM api_keys WHERE account_id = %s AND revoked_at IS NULL LIMIT %s) k"
CREATE = """
INSERT INTO api_keys (id, account_id, name, hash, hint, permission, domain_id, created_at, expires_at, networks, created_by)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, coalesce(%s::uuid, (SELECT created_by FROM api_keys WHERE id = %s)))
"""
_VIEW = Columns.of(
    id="k.id",
    name="k.name",
    hint="k.hint",
    permission="k.permission",
    domain_id="k.domain_id",
    created_at="k.created_at",
    last_used_at="k.last_used_at",
    created_by="k.created_by",
    creator="u.email",
    expires_at="k.expires_at",
    networks="k.networks",
    revoked_at="k.revoked_at",
)
_ALL = f"SELECT {_VIEW} FROM api_keys k LEFT JOIN users u ON u.id = k.created_by WHERE k.account_id = %s"
LIST = f"{_ALL} AND k.revoked_at IS NULL"
EVER = f"{_ALL} ORDER BY k.revoked_at DESC, k.id DESC LIMIT {MOST}"  # nulls, of active keys, are first
RENAME = "UPDATE api_keys SET name = %s WHERE account_id = %s AND id = %s AND revoked_at IS NULL"
REVOKE = "UPDATE api_keys SET revoked_at = %s WHERE account_id = %s AND id = %s AND revoked_at IS NULL"


@attrs.frozen
class Caller:
    """The account and permissions of an API key. `domain_id`: the only domain that the key can send from."""

    account_id: UUID
    key_id: UUID | None  # None: this service sends on behalf of the account
    permission: Permission
    domain_id: UUID | None
    rate_limit: int | None
    suspended: bool = False
    plan: str | None = None  # None: the default of the settings
    ramp: int | None = None  # recipients per day while the account is new; None: no such limit
    networks: tuple[str, ...] = attrs.field(default=(), converter=tuple)  # from which the key can be used (net/allow_list); empty: from any

    @classmethod
    def without_key(cls, account: Account, domain_id: UUID | None = None) -> Caller:
        """For mail that an account sends by other means than a key, such as from the dashboard. Its limits apply."""
        suspended = account.suspended_at is not None
        return cls(account.id, None, "sending_access", domain_id, account.rate_limit, suspended, account.plan, account.ramp)

    @classmethod
    def of_service(cls, account_id: UUID, domain_id: UUID) -> Caller:
        """For mail of this service itself, whose sources do not count towards limits (intake)."""
        return cls(account_id, None, "sending_access", domain_id, None)


class TooManyKeys(Exception):
    """The account has as many keys as an account can have. The message is a sentence for the user."""


@attrs.frozen
class Moved:
    """The account of a key is not in this cell. `cell`: the one that has it; None: it is about to arrive here."""

    cell: str | None


@attrs.frozen
class KeyView:
    """A key in a list, without the key itself."""

    id: UUID
    name: str
    hint: str
    permission: Permission
    domain_id: UUID | None
    created_at: datetime
    last_used_at: datetime | None  # to about a minute; over SMTP, when a session ended
    created_by: UUID | None = None  # the user who created it, or who created the key that it was created with
    creator: str | None = None  # their address
    expires_at: datetime | None = None  # when it stops working; None: never
    networks: tuple[str, ...] = attrs.field(default=(), converter=tuple)  # from which it can be used; empty: from any
    revoked_at: datetime | None = None


class Keys:
    def __init__(self, pool: Pool, clock: Any, notifications: Notifier | None = None) -> None:
        self._pool = pool
        self._clock = clock
        self._callers: Cache[bytes | UUID, Caller | None] = Cache(clock, notifications)
        self._moved: Cache[bytes | UUID, Moved | None] = Cache(clock, notifications)

    async def find(self, hash: bytes) -> Caller | None:
        """The caller with the key of this SHA-256. Cached for at most two seconds."""
        return await self._callers.get(hash, lambda: self._load(FIND, hash))

    async def find_by_id(self, key_id: UUID) -> Caller | None:
        """The caller with the key of this ID, for keys in the operator's settings. Cached for at most two seconds."""
        return await self._callers.get(key_id, lambda: self._load(FIND_BY_ID, key_id))

    async def moved(self, key: bytes | UUID) -> Moved | None:
        """Where the account of a key is that this cell does not have, as far as it is known here. Cached for at most two seconds.

        `key`: its SHA-256 or ID.
        """
        return await self._moved.get(key, lambda: self._load_moved(key))

    async def create(
        self, account_id: UUID, name: str, permission: Permission, domain_id: UUID | None = None, lines: Sequence[Line] = (),
        *, created_by: UUID | None = None, created_with: UUID | None = None, expires_at: datetime | None = None,
        networks: Sequence[str] = (), limited: bool = True,
    ) -> tuple[UUID, str]:  # fmt: skip
        """Create a key. Returns its ID and the key, which is not stored. Raises TooManyKeys, unless `limited` is false.

        `created_by`: the user; `created_with`: the API key, whose own creator is recorded as the creator of the new key.
        """
        if domain_id is not None and not restrictable(permission):
            raise ValueError(f"A key with the permission {permission} cannot be restricted to one domain.")
        now = unix(self._clock)
        key_id, token = uuid7(now), new_token(cell_of(self._pool.dsn))
        at = datetime.fromtimestamp(now, UTC)
        stored = (key_id, account_id, name, digest(token), hint(token), permission, domain_id, at, expires_at, list(networks))

        async def create(tx: Transaction) -> None:
            if limited:
                await tx.rows(LOCK, (account_id,))
                if await tx.rows(COUNT, (account_id, MOST)) == [(MOST,)]:
                    raise TooManyKeys(f"An account can have at most {MOST} API keys. Delete one that you no longer need.")
            await tx.run(CREATE, (*stored, created_by, created_with))
            await write(tx, lines, now)

        await self._pool.transact(create)
        self._callers.changed()  # the cache may have a miss
        return key_id, token

    async def revoke(self, account_id: UUID, key_id: UUID, lines: Sequence[Line] = ()) -> bool:
        """Revoke a key; whether it existed."""
        now = unix(self._clock)
        revoked = await changed(self._pool, now, lines, REVOKE, (datetime.fromtimestamp(now, UTC), account_id, key_id)) > 0
        self._callers.changed()
        return revoked

    def changed(self) -> None:
        """Clear the caches of all processes, after keys were revoked by another statement."""
        self._callers.changed()

    async def rename(self, account_id: UUID, key_id: UUID, name: str, lines: Sequence[Line] = ()) -> bool:
        """Rename an active key; whether it exists."""
        return await changed(self._pool, unix(self._clock), lines, RENAME, (name, account_id, key_id)) > 0

    async def get(self, account_id: UUID, key_id: UUID) -> KeyView | None:
        """An active key."""
        rows = await self._pool.rows(LIST + " AND k.id = %s", (account_id, key_id))
        return KeyView(**_VIEW.read(rows[0])) if rows else None

    async def list(self, account_id: UUID, page: Page = ALL) -> tuple[Sequence[KeyView], bool]:
        """Active keys, newest first, and whether there are more."""
        end, edge = page.where("k.id")
        rows, has_more = page.cut(await self._pool.rows(LIST + end, (account_id, *edge)))
        return [KeyView(**_VIEW.read(row)) for row in rows], has_more

    async def ever(self, account_id: UUID) -> Sequence[KeyView]:
        """Active keys, newest first, and then revoked ones, of which emails and logs may tell."""
        return [KeyView(**_VIEW.read(row)) for row in await self._pool.rows(EVER, (account_id,))]

    async def _load_moved(self, key: bytes | UUID) -> Moved | None:
        rows = await self._pool.rows(MOVED_BY_ID if isinstance(key, UUID) else MOVED, (key, key))
        return Moved(rows[0][0]) if rows else None

    async def _load(self, statement: str, key: bytes | UUID) -> Caller | None:
        rows = await self._pool.rows(statement, (utc(self._clock), key))
        return Caller(**_CALLER.read(rows[0])) if rows else None


def restrictable(permission: str) -> bool:
    """Whether keys with this permission can be restricted to one domain. Full access includes creating keys without the restriction."""
    return permission == "sending_access"


def described(name: str, permission: Permission, domain: Domain | None, expires_at: datetime | None, networks: Sequence[str] = ()) -> str:
    """A new key, for the audit log."""
    until = "" if expires_at is None else f", until {expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return f"{name} ({', '.join([permission, *([domain.name] if domain else []), *networks])}{until})"


def digest(token: str) -> bytes:
    """The stored hash of a key."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def new_token(cell: str | None = None) -> str:
    random = "".join(secrets.choice(ALPHABET) for _ in range(RANDOM))
    return PREFIX + (f"{cell}_" if cell else "") + random + _checksum(random)


def hint(token: str) -> str:
    """The beginning of a key, which is stored."""
    return token[: token.rfind("_") + 1 + SHOWN]


def is_well_formed(token: str) -> bool:
    """Whether the format and checksum are valid."""
    body = token[token.rfind("_") + 1 :]
    return token.startswith(PREFIX) and len(body) == RANDOM + CHECK and body.isascii() and _checksum(body[:RANDOM]) == body[RANDOM:]


def _checksum(random: str) -> str:
    number, letters = zlib.crc32(random.encode()), ""
    for _ in range(CHECK):
        number, digit = divmod(number, len(ALPHABET))
        letters = ALPHABET[digit] + letters
    return letters
