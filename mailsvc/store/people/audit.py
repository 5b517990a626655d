"""The audit log of an account: who did what, and from where. Entries are only added.

A line is written in the transaction of its change, so neither exists without the other. It becomes part of the account's hash chain
(store/audit) right before the commit: the head of the chain is the last row that a transaction locks, so transactions of one account wait
for each other only while they commit, and cannot deadlock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import unix, utc
from mailsvc.store.audit import chain
from mailsvc.store.audit.chain import Committed, Link
from mailsvc.store.ids import uuid7, uuid7_floor
from mailsvc.store.postgres.connection import Params
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import statement

Kind = Literal["member", "key", "operator", "service", "visitor"]

INSTALLATION = UUID(int=0)  # the account of what concerns no account alone, or all of them
OPERATOR = "the operator"
SERVICE = "mailsvc"

APPEND = statement("mailsvc.store.people", "append_audit")
KEY_NAME = "SELECT name, hint FROM api_keys WHERE id = %s"
ACCOUNTS = "SELECT account_id FROM members WHERE user_id = %s"
ERASED = "(erased)"
OLDER = """
SELECT id, at, coalesce(actor, %s), coalesce(address, %s), action, coalesce(subject, %s) FROM audit_entries
WHERE account_id = %s AND (%s::uuid IS NULL OR id < %s) ORDER BY id DESC LIMIT %s
"""
PAGE = 500
DENIED, DENIED_MOST, DENIED_PERIOD = "access denied", 20, timedelta(hours=1)
DENIALS = """
SELECT count(*) FROM (SELECT FROM audit WHERE account_id = %s AND id > %s AND user_id = %s AND action = %s LIMIT %s) a
"""


@attrs.frozen
class Entry:
    id: UUID
    at: datetime
    actor: str
    address: str
    action: str
    subject: str


@attrs.frozen
class Line:
    """A new entry for the log of `account_id`, or of every account that `person` is a member of.

    `key_id`: the API key that made the change, which becomes the actor.
    """

    account_id: UUID | None
    person: UUID | None
    user_id: UUID | None
    actor: str
    address: str
    action: str
    subject: str = ""
    key_id: UUID | None = None

    @property
    def kind(self) -> Kind:
        return "key" if self.key_id is not None else kind_of(self.user_id, self.actor)


def kind_of(user_id: UUID | None, actor: str) -> Kind:
    """Who somebody is that uses no API key."""
    if user_id is not None:
        return "member"
    return "operator" if actor == OPERATOR or actor.startswith(f"{OPERATOR} (") else "service" if actor == SERVICE else "visitor"


def by_operator(account_id: UUID, action: str, subject: str = "") -> Line:
    """An entry for what the operator does with a command."""
    return Line(account_id, None, None, OPERATOR, "", action, subject)


def by_named_operator(email: str, address: str, account_id: UUID, action: str, subject: str = "", about: str = "") -> list[Line]:
    """Entries for what a person does in the operator's console: the account's log says "the operator", that of the installation who.

    `about`: the account, as the installation's log names it.
    """
    named = Line(INSTALLATION, None, None, f"{OPERATOR} ({email})", address, action, ": ".join(filter(None, (about, subject))))
    return [named] if account_id == INSTALLATION else [by_operator(account_id, action, subject), named]


class Audit:
    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def add(self, account_id: UUID, user_id: UUID | None, actor: str, address: str, action: str, subject: str = "") -> None:
        await self.write(Line(account_id, None, user_id, actor, address, action, subject))

    async def write(self, line: Line) -> None:
        """Write an entry without a change in the database."""
        await self._pool.transact(lambda tx: write(tx, [line], unix(self._clock)))

    async def write_denial(self, line: Line) -> None:
        """Write that a page was refused to a member, so many times an hour: they can request it without end, and lines stay for ever."""
        since = uuid7_floor(utc(self._clock) - DENIED_PERIOD)
        before = (await self._pool.rows(DENIALS, (line.account_id, since, line.user_id, DENIED, DENIED_MOST)))[0][0]
        if before < DENIED_MOST:
            last = "; further ones are not recorded for an hour" if before == DENIED_MOST - 1 else ""
            await self.write(attrs.evolve(line, subject=line.subject[:600] + last))

    async def list(self, account_id: UUID, limit: int, after: UUID | None = None) -> tuple[list[Entry], bool]:
        """Newest first, older than `after`, and whether there are more."""
        rows = await self._pool.rows(OLDER, (ERASED, ERASED, ERASED, account_id, after, after, limit + 1))
        return [Entry(*row) for row in rows[:limit]], len(rows) > limit

    async def all(self, account_id: UUID) -> AsyncIterator[Sequence[Entry]]:
        """The whole log in pages, newest first."""
        after: UUID | None = None
        more = True
        while more:
            page, more = await self.list(account_id, PAGE, after)
            if page:
                after = page[-1].id
                yield page


async def write(tx: Transaction, lines: Sequence[Line], now: float) -> None:
    """Have the lines written at the end of the transaction. The names in them are those of this moment."""
    for line in lines:
        accounts = [line.account_id] if line.person is None else [id_ for (id_,) in await tx.rows(ACCOUNTS, (line.person,))]
        actor = line.actor if line.key_id is None else await _key(tx, line.key_id)
        for account_id in accounts:
            assert account_id is not None
            tx.at_end(account_id, partial(_append, attrs.evolve(line, account_id=account_id, actor=actor), now))


async def _key(tx: Transaction, key_id: UUID) -> str:
    rows = await tx.rows(KEY_NAME, (key_id,))
    return f"API key {rows[0][0]} ({rows[0][1]}…)" if rows else "a deleted API key"


async def _append(line: Line, now: float, tx: Transaction) -> None:
    assert line.account_id is not None
    actor, address, subject = (Committed.to(text) for text in (line.actor[:320], line.address[:100], line.subject[:700]))
    link = Link(
        line.account_id, uuid7(now), datetime.fromtimestamp(now, UTC), line.user_id, line.kind, line.action,
        actor.hash, address.hash, subject.hash,
    )  # fmt: skip
    texts = {
        "actor": actor.text, "actor_salt": actor.salt, "address": address.text, "address_salt": address.salt,
        "subject": subject.text, "subject_salt": subject.salt,
    }  # fmt: skip
    given = attrs.asdict(link, recurse=False) | texts | {"start": chain.start(link.account_id), "digest": link.digest()}
    await tx.run(APPEND, given)


async def changed(pool: Pool, now: float, lines: Sequence[Line], sql: str, params: Params) -> int:
    """Run a statement, and write the lines if it changed rows. Returns how many."""
    if not lines:
        return await pool.run(sql, params)

    async def change(tx: Transaction) -> int:
        count = await tx.run(sql, params)
        if count:
            await write(tx, lines, now)
        return count

    return await pool.transact(change)
