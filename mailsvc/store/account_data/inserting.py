"""Inserts the rows of an archive into this database. Every step can be repeated, so an import that was interrupted runs again.

Until the last step the account is suspended, and `accounts.archive` has the archive's ID.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.account_data import tables
from mailsvc.store.account_data.copying import Rows
from mailsvc.store.account_data.secrets import encrypt_again
from mailsvc.store.encryption.body_key_files import BodyKeyError
from mailsvc.store.encryption.body_keys import TABLE as BODY_KEYS
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.encryption.secrets import Encryption, fingerprint
from mailsvc.store.ids import uuid7_seconds
from mailsvc.store.logs.retention import KINDS, MAIL
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.adapters import json
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.privacy import statements
from mailsvc.store.privacy.statements import Shape

# The column whose UUID has the day of a row, by partitioned table.
DAYS = dict.fromkeys(MAIL, "email_id") | {table: kind.key for kind in KINDS.values() for table in kind.tables}

_FIND = "SELECT archive FROM accounts WHERE id = %s"
_TAKEN = "SELECT name FROM domains WHERE name = ANY (%s) AND account_id <> %s ORDER BY name"
_ACCOUNT = "INSERT INTO accounts ({columns}) SELECT {columns} FROM jsonb_populate_record(NULL::accounts, %s)"
_USER = "SELECT id FROM users WHERE email = %s"
_USER_ID = "SELECT count(*) FROM users WHERE id = %s"
_ADD_USER = "INSERT INTO users (id, email, name, created_at) VALUES (%s, %s, %s, %s)"
_ADD_MEMBER = "INSERT INTO members (account_id, user_id, role, created_at) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
_INSERT = """
INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE
SELECT {columns} FROM jsonb_populate_recordset(NULL::{table}, %(rows)s) t WHERE {scope} ON CONFLICT DO NOTHING
"""
# The account was used while its archive was written: what these rows refer to can be newer than what the archive has of that table.
_REFERS = {
    "api_keys": "AND (t.domain_id IS NULL OR EXISTS (SELECT FROM domains d WHERE d.id = t.domain_id))",
    "broadcast_versions": "AND EXISTS (SELECT FROM broadcasts b WHERE b.account_id = t.account_id AND b.id = t.broadcast_id)",
}
# New properties get numbers after those of the archive.
_NUMBERS = """
SELECT setval(s.name, greatest(nextval(s.name), (SELECT coalesce(max(number), 1) FROM contact_properties WHERE account_id = %s)))
FROM (SELECT 'contact_properties_number_seq'::regclass) AS s(name)
"""
_FINISH = "UPDATE accounts SET archive = NULL, suspended_at = %s WHERE id = %s AND archive IS NOT NULL"


class Unsuitable(Exception):
    """The archive cannot be imported here. The text is a sentence for the operator."""


@attrs.define(eq=False)
class Inserting:
    """One archive. `hash_keys`: fingerprints of the keys of hashes of erased addresses, by number.

    `plans`: those of this installation. `days`: older rows are left out.
    """

    pool: Pool
    clock: Any
    account_id: UUID
    archive_id: UUID
    encryption: Encryption
    transfer: Encryption
    hash_keys: Mapping[int, str]
    plans: Collection[str]
    days: int
    bodies: BodyKeys
    left_out: dict[str, int] = attrs.field(factory=dict, init=False)
    _shapes: dict[str, Shape] = attrs.field(factory=dict, init=False)
    _users: dict[str, str] = attrs.field(factory=dict, init=False)
    _partitions: set[datetime] = attrs.field(factory=set, init=False)

    async def begin(self, account: Mapping[str, Any], domains: Sequence[str]) -> None:
        """Create the account, suspended, or continue. Raises Unsuitable."""
        self._shapes = {shape.name: shape for shape in await tables.shapes(self.pool, ["accounts", *tables.ARCHIVED])}
        if account.get("id") != str(self.account_id):
            raise Unsuitable("The archive has another account than its manifest says.")
        found = await self.pool.rows(_FIND, (self.account_id,))
        if found and found[0][0] != self.archive_id:
            raise Unsuitable(f"The account {self.account_id} exists here.")
        taken = [name for (name,) in await self.pool.rows(_TAKEN, (list(domains), self.account_id))]
        if taken:
            raise Unsuitable(f"Another account here has the domain {', '.join(taken)}. Remove it there first.")
        if not found:
            now = utc(self.clock).isoformat()
            row = {**account, "suspended_at": now, "archive": str(self.archive_id), "closed_at": None, "closes_at": None}
            if row.get("plan") not in self.plans:
                row["plan"] = None
            self._known(self._shapes["accounts"], row)
            await self.pool.run(_ACCOUNT.format(columns=", ".join(row)), (json(row),))

    async def members(self, rows: Rows) -> None:
        """Add the members. Somebody who has a user here keeps it; others get one, and sign in with a link that is sent to them."""
        for row in rows:
            await self.pool.transact(lambda tx, row=row: self._member(tx, row))  # type: ignore[misc]

    async def insert(self, table: str, rows: Rows) -> None:
        """Insert rows of one table. What is there already stays as it is."""
        shape = self._shapes[table]
        kept = [row for row in map(dict, rows) if self._kept(table, row)]
        for row in kept:
            self._known(shape, row)
            encrypt_again(table, row, self.transfer, self.encryption)
            if table == BODY_KEYS:
                await self._body_key(row)
            if (change := _CHANGES.get(table)) is not None:
                change(self, row)
        if kept:
            await self._prepare(table, kept)
            scope = f"{statements.scope(shape, True)} {_REFERS.get(table, '')}"
            sql = _INSERT.format(table=table, columns=", ".join(kept[0]), scope=scope)
            await self.pool.run(sql, {"rows": json(kept), "account": self.account_id})

    async def _body_key(self, row: dict[str, Any]) -> None:
        try:
            await self.bodies.imported(row, self.transfer)
        except BodyKeyError as error:
            raise Unsuitable(f"The archive has encrypted messages. {error}") from None

    async def finish(self, suspended_at: str | None, lines: Sequence[Line]) -> None:
        """The account is complete, and can be used unless it was suspended."""

        async def finish(tx: Transaction) -> None:
            await tx.rows(_NUMBERS, (self.account_id,))
            if await tx.run(_FINISH, (suspended_at, self.account_id)):
                await write(tx, lines, utc(self.clock).timestamp())

        await self.pool.transact(finish)

    async def _member(self, tx: Transaction, row: Mapping[str, Any]) -> None:
        found = await tx.rows(_USER, (row["email"],))
        if found:
            user_id = str(found[0][0])
        else:
            user_id = row["user_id"]
            if (await tx.rows(_USER_ID, (user_id,)))[0][0]:
                raise Unsuitable(f"The user {user_id} has another address here.")
            await tx.run(_ADD_USER, (user_id, row["email"], row["name"], row["created_at"]))
        await tx.run(_ADD_MEMBER, (self.account_id, user_id, row["role"], row["created_at"]))
        self._users[row["user_id"]] = user_id

    def _known(self, shape: Shape, row: Mapping[str, Any]) -> None:
        unknown = sorted(row.keys() - shape.types.keys())
        if unknown:
            raise Unsuitable(f"{shape.name} has no column {unknown[0]} here: the archive is from a newer release. Upgrade first.")

    def _kept(self, table: str, row: Mapping[str, Any]) -> bool:
        """Whether a row has a place here; others are counted."""
        if table == "erased_suppressions":
            own = self.encryption.keys.by_number.get(row["key"])
            kept = own is not None and fingerprint(row["key"], own) == self.hash_keys.get(row["key"])
        else:
            kept = table not in DAYS or self._day(row[DAYS[table]]) >= utc(self.clock) - timedelta(days=self.days)
        if not kept:
            self.left_out[table] = self.left_out.get(table, 0) + 1
        return kept

    async def _prepare(self, table: str, rows: Rows) -> None:
        """Create the partitions of the days."""
        if table in DAYS:
            wanted = {self._day(row[DAYS[table]]) for row in rows}
            for day in sorted(wanted - self._partitions):
                await partitions.ensure_day(self.pool, day)
            self._partitions |= wanted

    def _day(self, id_: str) -> datetime:
        moment = datetime.fromtimestamp(uuid7_seconds(UUID(id_)), UTC)
        return moment.replace(hour=0, minute=0, second=0, microsecond=0)

    def _key(self, row: dict[str, Any]) -> None:
        row["created_by"] = self._users.get(row["created_by"])


def _broadcast(_: Inserting, row: dict[str, Any]) -> None:
    """What was not sent yet is a draft; what was being sent ends."""
    if row["status"] == "scheduled":
        row |= {"status": "draft", "scheduled_at": None}
    elif row["status"] == "queued":
        row |= {"status": "canceled", "reason": "It was being sent when the account was exported."}
    row["next_at"] = None


def _head(_: Inserting, row: dict[str, Any]) -> None:
    row["anchored"] = 0


def _import(_: Inserting, row: dict[str, Any]) -> None:
    row |= {"claim": None, "claimed_until": None}
    if row["status"] not in ("completed", "failed"):
        row |= {"status": "failed", "reason": "It was running when the account was exported."}


def _domain(_: Inserting, row: dict[str, Any]) -> None:
    row["pool"] = None


_CHANGES: Mapping[str, Callable[[Inserting, dict[str, Any]], None]] = {
    "api_keys": Inserting._key,
    "audit_heads": _head,
    "broadcasts": _broadcast,
    "contact_imports": _import,
    "domains": _domain,
}
