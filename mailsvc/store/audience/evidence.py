"""Evidence of consent: what a person subscribed to or unsubscribed from, when, by what means, and what they were shown.

Rows are only added. When a contact is deleted, the address is removed from its rows; the hash stays, so that the evidence for an address
can still be found.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.store.audience.values import By
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.inserts import document
from mailsvc.store.paging import Page
from mailsvc.store.people.minimization import minimized, network_of
from mailsvc.store.postgres.adapters import json
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

Kind = Literal["all", "segment", "topic"]
Action = Literal["requested", "subscribed", "unsubscribed"]
PAGE = 500

ADD = """
INSERT INTO consents (account_id, id, hash, contact_id, email, kind, target_id, target_name, action, source, text_hash, details, at)
SELECT %(account_id)s, g.id, %(hash)s, %(contact_id)s, %(email)s, g.kind, g.target_id, g.target_name, g.action, %(source)s, %(text_hash)s,
       %(details)s, %(at)s
FROM json_to_recordset(%(rows)s) AS g(id uuid, kind text, target_id uuid, target_name text, action text)
"""
ADD_TEXT = "INSERT INTO consent_texts (account_id, hash, text) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
FORGET = "UPDATE consents SET email = NULL WHERE account_id = %s AND hash = %s AND email IS NOT NULL"
_CONSENT = Columns.of(
    id="c.id",
    contact_id="c.contact_id",
    email="c.email",
    kind="c.kind",
    target_id="c.target_id",
    target_name="c.target_name",
    action="c.action",
    source="c.source",
    text="t.text",
    details="c.details",
    at="c.at",
)
_SELECT = f"""
SELECT {_CONSENT} FROM consents c LEFT JOIN consent_texts t ON t.account_id = c.account_id AND t.hash = c.text_hash
WHERE c.account_id = %s
"""
_OF_ADDRESS = " AND c.hash = %s"
_NEXT = " AND (%s::uuid IS NULL OR c.id > %s) ORDER BY c.id LIMIT %s"


@attrs.frozen
class Act:
    """What a person did. `target_id` and `name`: of the segment or topic; none if it is about everything."""

    kind: Kind
    action: Action
    target_id: UUID | None = None
    name: str | None = None


@attrs.frozen
class Consent:
    """An act as it was recorded."""

    id: UUID
    contact_id: UUID | None
    email: str | None
    kind: Kind
    target_id: UUID | None
    target_name: str | None
    action: Action
    source: str
    text: str | None
    details: dict[str, Any]
    at: datetime


@attrs.frozen
class Person:
    """Whose consent it is. Somebody who is no contact has only a hash."""

    account_id: UUID
    hash: bytes = attrs.field(repr=False)
    contact_id: UUID | None = None
    email: str | None = attrs.field(default=None, repr=False)


async def record(tx: Transaction, person: Person, acts: Iterable[Act], by: By, now: datetime) -> None:
    rows = [
        {"id": uuid7(now.timestamp()), "kind": a.kind, "target_id": a.target_id, "target_name": a.name, "action": a.action} for a in acts
    ]
    if not rows:
        return
    text_hash = None
    if by.text is not None:
        text_hash = hashlib.sha256(by.text.encode()).digest()
        await tx.run(ADD_TEXT, (person.account_id, text_hash, by.text))
    values = {"account_id": person.account_id, "hash": person.hash, "contact_id": person.contact_id, "email": person.email}
    details = dict(by.details)
    if "ip" in details and "addresses" in await minimized(tx, person.account_id):
        details["ip"] = network_of(details["ip"])
    means = {"source": by.source, "text_hash": text_hash, "details": json(details), "at": now}
    await tx.run(ADD, {**values, **means, "rows": document(rows)})


@attrs.define(eq=False)
class Evidence:
    pool: Pool

    async def of(self, account_id: UUID, hash: bytes, limit: int = PAGE) -> list[Consent]:
        """The newest acts of one address."""
        return (await self.list(account_id, Page(limit), hash))[0]

    async def list(self, account_id: UUID, page: Page, hash: bytes | None = None) -> tuple[list[Consent], bool]:
        """A page of the acts of an account, or of one address."""
        select, params = _selected(account_id, hash)
        end, more_params = page.where("c.id")
        found, more = page.cut(await self.pool.rows(select + end, (*params, *more_params)))
        return [Consent(**_CONSENT.read(row)) for row in found], more

    async def all(self, account_id: UUID, hash: bytes | None = None) -> AsyncIterator[Sequence[Consent]]:
        """All acts of an account or of one address in pages, oldest first, for an export."""
        select, params = _selected(account_id, hash)
        after: UUID | None = None
        while rows := await self.pool.rows(select + _NEXT, (*params, after, after, PAGE)):
            page = [Consent(**_CONSENT.read(row)) for row in rows]
            after = page[-1].id
            yield page


def _selected(account_id: UUID, hash: bytes | None) -> tuple[str, tuple[object, ...]]:
    """The beginning of a statement, and its parameters."""
    return (_SELECT, (account_id,)) if hash is None else (_SELECT + _OF_ADDRESS, (account_id, hash))
