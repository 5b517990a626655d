"""The versions of a draft: saving one from the editor, listing earlier ones, and noticing what somebody else saved meanwhile."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import attrs
import orjson

from mailsvc.clock import utc
from mailsvc.store.broadcasts.broadcasts import Refused, missing, named
from mailsvc.store.broadcasts.values import Content
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.adapters import json
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

Editor = Literal["react-email/1", "html"]
KEPT, BYTES = 50, 16 << 20  # versions of a draft, and how large they can be together, about
ONE_VERSION = timedelta(minutes=1)  # saves of one person within this time

_SETTINGS = ("name", "segment_id", "topic_id", "sender", "reply_to", "subject", "preview_text")
_STORED = ("status", *_SETTINGS, "html", "text")
_CURRENT = f"SELECT {', '.join(_STORED)} FROM broadcasts WHERE account_id = %s AND id = %s"
_LOCK = f"{_CURRENT} FOR UPDATE"
_COLUMNS = Columns.named("version", "begun_at", "saved_at", "author", "editor", "document", "settings", "html", "text")
_ONE = f"SELECT {_COLUMNS} FROM broadcast_versions WHERE account_id = %s AND broadcast_id = %s"
_NEWEST = f"{_ONE} ORDER BY version DESC LIMIT 1"
_NUMBERED = f"{_ONE} AND version = %s"
_LISTED = Columns.named("version", "saved_at", "author", "editor")
_LIST = f"SELECT {_LISTED} FROM broadcast_versions WHERE account_id = %s AND broadcast_id = %s ORDER BY version DESC"
_CHANGE = f"""
UPDATE broadcasts SET {", ".join(f"{name} = %({name})s" for name in (*_SETTINGS, "html", "text"))}
WHERE account_id = %(account_id)s AND id = %(broadcast_id)s
"""
_ADD = """
INSERT INTO broadcast_versions (account_id, broadcast_id, version, begun_at, saved_at, author, editor, document, settings, html, text)
VALUES (%(account_id)s, %(broadcast_id)s, %(version)s, %(now)s, %(now)s, %(author)s, %(editor)s, %(document)s, %(stored)s, %(html)s,
        %(text)s)
"""
_REPLACE = """
UPDATE broadcast_versions SET version = version + 1, saved_at = %(now)s, editor = %(editor)s, document = %(document)s,
    settings = %(stored)s, html = %(html)s, text = %(text)s
WHERE account_id = %(account_id)s AND broadcast_id = %(broadcast_id)s AND version = %(version)s - 1
"""
_PRUNE = """
DELETE FROM broadcast_versions WHERE account_id = %s AND broadcast_id = %s AND version IN (
    SELECT version FROM (
        SELECT version, row_number() OVER newest AS place, sum(octet_length(concat(html, text, document))) OVER newest AS size
        FROM broadcast_versions WHERE account_id = %s AND broadcast_id = %s WINDOW newest AS (ORDER BY version DESC)
    ) v WHERE place > %s OR (place > 2 AND size > %s)
)
"""


@attrs.frozen
class Listed:
    """A version without its content. `author`: None if it came through the API."""

    version: int
    saved_at: datetime
    author: str | None
    editor: Editor


@attrs.frozen(kw_only=True)
class Draft:
    """What the editor opens and saves. `document`: the editor's JSON, None of content that was written as HTML."""

    content: Content
    document: str | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class Opened:
    """A draft as it is now. `base` names this state: it is passed to `save`, which then knows whether somebody else saved meanwhile."""

    draft: Draft
    base: str
    newest: Listed | None


@attrs.frozen
class Saved:
    """`overwritten`: what somebody else saved meanwhile, which is in the list of versions now."""

    base: str
    overwritten: Listed | None


@attrs.frozen
class _Version:
    listed: Listed
    begun_at: datetime
    draft: Draft


@attrs.define(eq=False)
class Versions:
    """`lines` are for the audit log. They are written once for each version, not for each save."""

    pool: Pool
    clock: Any

    async def open(self, account_id: UUID, broadcast_id: UUID) -> Opened | Refused:
        rows = await self.pool.rows(_CURRENT, (account_id, broadcast_id))
        if not rows or rows[0][0] != "draft":
            return "status" if rows else "not_found"
        newest = await self.pool.rows(_NEWEST, (account_id, broadcast_id))
        return _opened(_content(rows[0]), _version(newest[0]) if newest else None)

    async def list(self, account_id: UUID, broadcast_id: UUID) -> list[Listed]:
        """Newest first."""
        rows = await self.pool.rows(_LIST, (account_id, broadcast_id))
        return [Listed(**_LISTED.read(row)) for row in rows]

    async def get(self, account_id: UUID, broadcast_id: UUID, version: int) -> Draft | None:
        rows = await self.pool.rows(_NUMBERED, (account_id, broadcast_id, version))
        return _version(rows[0]).draft if rows else None

    async def save(
        self, account_id: UUID, broadcast_id: UUID, base: str, draft: Draft, author: str, lines: Sequence[Line] = (), *, apart: bool = False
    ) -> Saved | Refused:  # fmt: skip
        """Save a draft, whatever somebody else saved meanwhile: that stays in the list of versions. `apart`: as a version of its own."""
        now = utc(self.clock)

        async def save(tx: Transaction) -> Saved | Refused:
            rows = await tx.rows(_LOCK, (account_id, broadcast_id))
            if not rows or rows[0][0] != "draft":
                return "status" if rows else "not_found"
            refused = await missing(tx, account_id, draft.content)
            if refused is not None:
                return refused
            found = await tx.rows(_NEWEST, (account_id, broadcast_id))
            newest = _version(found[0]) if found else None
            before = _opened(_content(rows[0]), newest)
            number = newest.listed.version if newest else 0
            overwritten = None
            if (newest is None or _differs(newest.draft.content, before.draft.content)) and _written(before.draft.content):
                number += 1
                await tx.run(_ADD, _row(account_id, broadcast_id, number, None, before.draft, now))
                newest, overwritten = None, Listed(number, now, None, _editor(before.draft))
            elif newest is not None:
                overwritten = newest.listed
            overwritten = None if before.base == base else overwritten
            row = _row(account_id, broadcast_id, number + 1, author, draft, now)
            await tx.run(_CHANGE, row)
            same = newest is not None and newest.listed.author == author and now - newest.begun_at < ONE_VERSION
            if same and overwritten is None and not apart:
                await tx.run(_REPLACE, row)
            else:
                await tx.run(_ADD, row)
                await write(tx, named(draft.content.name, lines), now.timestamp())
            await tx.run(_PRUNE, (account_id, broadcast_id, account_id, broadcast_id, KEPT, BYTES))
            return Saved(_base(number + 1, draft.content), overwritten)

        return await self.pool.transact(save)


def _opened(content: Content, newest: _Version | None) -> Opened:
    """The document belongs to the content only if nobody changed the HTML elsewhere."""
    fits = newest is not None and (newest.draft.content.html, newest.draft.content.text) == (content.html, content.text)
    document = newest.draft.document if newest is not None and fits else None
    listed = newest.listed if newest else None
    return Opened(draft=Draft(content=content, document=document), base=_base(listed.version if listed else 0, content), newest=listed)


def _base(version: int, content: Content) -> str:
    whole = orjson.dumps([_settings(content), content.html, content.text])
    return f"{version}-{hashlib.sha256(whole).hexdigest()[:16]}"


def _differs(one: Content, other: Content) -> bool:
    return _base(0, one) != _base(0, other)


def _written(content: Content) -> bool:
    return bool(content.html or content.text)


def _editor(draft: Draft) -> Editor:
    return "html" if draft.document is None else "react-email/1"


def _settings(content: Content) -> dict[str, Any]:
    values = {name: getattr(content, name) for name in _SETTINGS}
    return {name: str(value) if isinstance(value, UUID) else value for name, value in values.items()}


def _row(account_id: UUID, broadcast_id: UUID, version: int, author: str | None, draft: Draft, now: datetime) -> dict[str, Any]:
    content = draft.content
    columns = {name: getattr(content, name) for name in (*_SETTINGS, "html", "text")} | {"reply_to": list(content.reply_to)}
    return {
        **columns, "account_id": account_id, "broadcast_id": broadcast_id, "version": version, "now": now, "author": author,
        "editor": _editor(draft), "document": draft.document, "stored": json(_settings(content)),
    }  # fmt: skip


def _content(row: Row) -> Content:
    values = dict(zip(_STORED[1:], row[1:], strict=True))
    return Content(**values | {"reply_to": tuple(values["reply_to"])})


def _version(row: Row) -> _Version:
    values = _COLUMNS.read(row)
    listed = Listed(values["version"], values["saved_at"], values["author"], values["editor"])
    settings = values["settings"]
    ids = {name: UUID(settings[name]) if settings[name] else None for name in ("segment_id", "topic_id")}
    content = Content(**settings | ids | {"reply_to": tuple(settings["reply_to"]), "html": values["html"], "text": values["text"]})
    return _Version(listed, values["begun_at"], Draft(content=content, document=values["document"]))
