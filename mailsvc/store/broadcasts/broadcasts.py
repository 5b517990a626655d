"""Broadcasts of an account: creating, changing and reading them, and the changes of state that people ask for.

How one is sent: store/broadcasts/sending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.broadcasts.values import COLUMNS, Broadcast, Content, Status, broadcast
from mailsvc.store.ids import uuid7
from mailsvc.store.paging import Page
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue.claims_sql import MORE_TIME

SUFFIX, COPIED_NAME = " (copy)", 70  # what the name of a copy ends with, and how long it may be

_CONTENT = ("name", "segment_id", "topic_id", "sender", "reply_to", "subject", "preview_text", "html", "text", "hourly_rate")
_GIVEN = ", ".join(f"%({name})s" for name in _CONTENT)
ADD = f"""
INSERT INTO broadcasts (account_id, id, {", ".join(_CONTENT)}, status, created_at)
VALUES (%(account_id)s, %(id)s, {_GIVEN}, 'draft', %(now)s)
"""
GET = f"SELECT {COLUMNS} FROM broadcasts WHERE account_id = %s AND id = %s"
BODIES = "SELECT html, text FROM broadcasts WHERE account_id = %s AND id = %s"
LIST = f"SELECT {COLUMNS} FROM broadcasts WHERE account_id = %s"
LOCK = f"{GET} FOR UPDATE"
NAME = "SELECT name FROM broadcasts WHERE account_id = %s AND id = %s"
_COPIED = [name if name != "text" else "CASE WHEN NOT %(without_text)s THEN text END" for name in _CONTENT[1:]]
COPY = f"""
INSERT INTO broadcasts (account_id, id, {", ".join(_CONTENT)}, status, created_at)
SELECT account_id, %(new)s, left(name, %(length)s) || '{SUFFIX}', {", ".join(_COPIED)}, 'draft', %(now)s
FROM broadcasts WHERE account_id = %(account_id)s AND id = %(id)s
"""
# The copy opens in the editor as the original does.
COPY_VERSION = """
INSERT INTO broadcast_versions (account_id, broadcast_id, version, begun_at, saved_at, author, editor, document, settings, html, text)
SELECT v.account_id, b.id, 1, b.created_at, b.created_at, v.author, v.editor, v.document, v.settings || jsonb_build_object('name', b.name),
       v.html, v.text
FROM broadcast_versions v JOIN broadcasts b ON b.account_id = v.account_id AND b.id = %s
WHERE v.account_id = %s AND v.broadcast_id = %s ORDER BY v.version DESC LIMIT 1
"""
SEND = """
UPDATE broadcasts SET status = %(status)s, scheduled_at = %(at)s, next_at = coalesce(%(at)s, %(now)s), key_id = %(key_id)s, reason = NULL
WHERE account_id = %(account_id)s AND id = %(id)s
"""
UNSCHEDULE = "UPDATE broadcasts SET status = 'draft', scheduled_at = NULL, next_at = NULL WHERE account_id = %s AND id = %s"
# The process that works on it next removes its emails from the queue.
CANCEL = "UPDATE broadcasts SET status = 'canceled', paused_at = NULL, reason = NULL, next_at = %s WHERE account_id = %s AND id = %s"
REMOVE = "DELETE FROM broadcasts WHERE account_id = %s AND id = %s"
CONTINUE = "UPDATE broadcasts SET paused_at = NULL, reason = NULL, baseline = %s, next_at = %s WHERE account_id = %s AND id = %s"
# The pause does not count: each recipient has the time that was left when it began. Those that would have expired since were given more.
RELEASE = f"""
UPDATE queue SET next_at = %(now)s, reason = NULL, expires_at = %(now)s + make_interval(
    secs => mod(greatest(0, extract(epoch FROM expires_at - %(paused_at)s)), {MORE_TIME} * 86400)::double precision
)
WHERE account_id = %(account_id)s AND broadcast_id = %(id)s AND lease IS NULL AND attempts = 0
"""
COUNTS = "SELECT type, sum(count)::bigint FROM broadcast_counts WHERE account_id = %s AND broadcast_id = %s GROUP BY type"
SEGMENT = "SELECT EXISTS (SELECT FROM segments WHERE account_id = %s AND id = %s AND deleted_at IS NULL)"
TOPIC = "SELECT EXISTS (SELECT FROM topics WHERE account_id = %s AND id = %s AND deleted_at IS NULL)"

# Why a change was refused: there is no such broadcast, segment or topic, or its status does not allow it.
Refused = Literal["not_found", "segment", "topic", "status"]


@attrs.define(eq=False)
class Broadcasts:
    """`lines` are for the audit log. `listed`: broadcasts in a list without a limit."""

    pool: Pool
    clock: Any
    listed: int = 10_000

    async def add(
        self, account_id: UUID, content: Content, lines: Sequence[Line] = (), *, key_id: UUID | None = None,
        send: bool = False, at: datetime | None = None,
    ) -> UUID | Refused:  # fmt: skip
        """Create a draft; with `send`, send it now or at that time."""
        now = utc(self.clock)
        id_ = uuid7(now.timestamp())

        async def add(tx: Transaction) -> UUID | Refused:
            lacking = await missing(tx, account_id, content)
            if lacking is not None:
                return lacking
            await tx.run(ADD, {**_given(content), "account_id": account_id, "id": id_, "now": now})
            if send:
                await self._send(tx, account_id, id_, key_id, at, now)
            await write(tx, about(id_, content.name, lines), now.timestamp())
            return id_

        return await self.pool.transact(add)

    async def get(self, account_id: UUID, id_: UUID) -> Broadcast | None:
        rows = await self.pool.rows(GET, (account_id, id_))
        return broadcast(rows[0]) if rows else None

    async def bodies(self, account_id: UUID, id_: UUID) -> tuple[str | None, str | None]:
        """The HTML and the text."""
        rows = await self.pool.rows(BODIES, (account_id, id_))
        return rows[0] if rows else (None, None)

    async def list(self, account_id: UUID, page: Page) -> tuple[Sequence[Broadcast], bool]:
        """Newest first, and whether there are more."""
        page = page if page.limit is not None else attrs.evolve(page, limit=self.listed)
        where, params = page.where("id")
        rows, more = page.cut(await self.pool.rows(LIST + where, (account_id, *params)))
        return [broadcast(row) for row in rows], more

    async def update(self, account_id: UUID, id_: UUID, changes: Mapping[str, Any], lines: Sequence[Line] = ()) -> Refused | None:
        """Change a draft or a scheduled broadcast. Of others, only the name can be changed. `changes`: fields of Content."""

        async def update(tx: Transaction) -> Refused | None:
            found = await self._locked(tx, account_id, id_)
            if found is None:
                return "not_found"
            if found.status not in ("draft", "scheduled") and set(changes) - {"name"}:
                return "status"
            if changes.get("segment_id") is not None and not (await tx.rows(SEGMENT, (account_id, changes["segment_id"])))[0][0]:
                return "segment"
            if changes.get("topic_id") is not None and not (await tx.rows(TOPIC, (account_id, changes["topic_id"])))[0][0]:
                return "topic"
            if changes:
                assert set(changes) <= set(_CONTENT)
                columns = ", ".join(f"{name} = %s" for name in changes)
                values = [list(value) if isinstance(value, tuple) else value for value in changes.values()]
                await tx.run(f"UPDATE broadcasts SET {columns} WHERE account_id = %s AND id = %s", (*values, account_id, id_))
            await write(tx, named(changes.get("name", found.name), lines), utc(self.clock).timestamp())
            return None

        return await self.pool.transact(update)

    async def send(
        self, account_id: UUID, id_: UUID, key_id: UUID | None, at: datetime | None, lines: Sequence[Line] = ()
    ) -> Refused | None:  # fmt: skip
        """Send a draft, now or at that time."""
        now = utc(self.clock)

        async def send(tx: Transaction) -> Refused | None:
            found = await self._locked(tx, account_id, id_)
            if found is None or found.status != "draft":
                return "not_found" if found is None else "status"
            if found.segment_id is None or not (await tx.rows(SEGMENT, (account_id, found.segment_id)))[0][0]:
                return "segment"
            if found.topic_id is not None and not (await tx.rows(TOPIC, (account_id, found.topic_id)))[0][0]:
                return "topic"
            await self._send(tx, account_id, id_, key_id, at, now)
            await write(tx, named(found.name, lines), now.timestamp())
            return None

        return await self.pool.transact(send)

    async def duplicate(self, account_id: UUID, id_: UUID, lines: Sequence[Line] = (), *, without_text: bool = False) -> UUID | None:
        """A draft with the same content; None if there is no such broadcast. `without_text`: its text will be made from the HTML."""
        now = utc(self.clock)
        new = uuid7(now.timestamp())
        copied = {
            "account_id": account_id, "id": id_, "new": new, "length": COPIED_NAME - len(SUFFIX), "without_text": without_text, "now": now,
        }  # fmt: skip

        async def duplicate(tx: Transaction) -> UUID | None:
            if not await tx.run(COPY, copied):
                return None
            await tx.run(COPY_VERSION, (new, account_id, id_))
            await write(tx, about(new, (await tx.rows(NAME, (account_id, new)))[0][0], lines), now.timestamp())
            return new

        return await self.pool.transact(duplicate)

    async def cancel(
        self, account_id: UUID, id_: UUID, lines: Sequence[Line] = (), only: Sequence[Status] = ("scheduled", "queued")
    ) -> Refused | None:  # fmt: skip
        """Make a scheduled broadcast a draft again, or stop one that is being sent for good. `only`: in which states."""
        now = utc(self.clock)

        async def cancel(tx: Transaction) -> Refused | None:
            found = await self._locked(tx, account_id, id_)
            if found is None or found.status not in only:
                return "not_found" if found is None else "status"
            if found.status == "scheduled":
                await tx.run(UNSCHEDULE, (account_id, id_))
            else:
                await tx.run(CANCEL, (now, account_id, id_))
            await write(tx, named(found.name, lines), now.timestamp())
            return None

        return await self.pool.transact(cancel)

    async def continue_(self, account_id: UUID, id_: UUID, lines: Sequence[Line] = ()) -> Refused | None:
        """Continue a broadcast that was paused because too many emails bounced or were reported. What went out so far no longer counts."""
        now = utc(self.clock)

        async def continue_(tx: Transaction) -> Refused | None:
            found = await self._locked(tx, account_id, id_)
            if found is None or found.paused_at is None or found.status != "queued":
                return "not_found" if found is None else "status"
            baseline = outcomes(dict(await tx.rows(COUNTS, (account_id, id_))))
            await tx.run(CONTINUE, (baseline, now, account_id, id_))
            await tx.run(RELEASE, {"now": now, "paused_at": found.paused_at, "account_id": account_id, "id": id_})
            await write(tx, named(found.name, lines), now.timestamp())
            return None

        return await self.pool.transact(continue_)

    async def remove(self, account_id: UUID, id_: UUID, lines: Sequence[Line] = ()) -> Refused | None:
        """Delete a draft or a scheduled broadcast."""

        async def remove(tx: Transaction) -> Refused | None:
            found = await self._locked(tx, account_id, id_)
            if found is None or found.status not in ("draft", "scheduled"):
                return "not_found" if found is None else "status"
            await tx.run(REMOVE, (account_id, id_))
            await write(tx, named(found.name, lines), utc(self.clock).timestamp())
            return None

        return await self.pool.transact(remove)

    async def counts(self, account_id: UUID, id_: UUID) -> Mapping[str, int]:
        """Events of its emails by type, bounces by kind as in `email.bounced.permanent`."""
        return dict(await self.pool.rows(COUNTS, (account_id, id_)))

    async def _locked(self, tx: Transaction, account_id: UUID, id_: UUID) -> Broadcast | None:
        rows = await tx.rows(LOCK, (account_id, id_))
        return broadcast(rows[0]) if rows else None

    async def _send(
        self, tx: Transaction, account_id: UUID, id_: UUID, key_id: UUID | None, at: datetime | None, now: datetime
    ) -> None:  # fmt: skip
        status = "queued" if at is None else "scheduled"
        await tx.run(SEND, {"account_id": account_id, "id": id_, "status": status, "at": at, "now": now, "key_id": key_id})


def named(name: str, lines: Sequence[Line]) -> list[Line]:
    """Entries for the audit log, which have the broadcast's ID, with its name."""
    return [attrs.evolve(line, subject=f"{line.subject} ({name})") if name else line for line in lines]


def about(id_: UUID, name: str, lines: Sequence[Line]) -> list[Line]:
    """Entries for the audit log about a new broadcast."""
    return named(name, [attrs.evolve(line, subject=str(id_)) for line in lines])


def outcomes(counts: Mapping[str, int]) -> dict[str, int]:
    """How many emails were delivered, bounced and reported."""
    bounced = sum(count for kind, count in counts.items() if kind.startswith("email.bounced"))
    return {"delivered": counts.get("email.delivered", 0), "bounced": bounced, "complained": counts.get("email.complained", 0)}


async def missing(tx: Transaction, account_id: UUID, content: Content) -> Literal["segment", "topic"] | None:
    """Whether its segment or its topic does not exist."""
    if content.segment_id is not None and not (await tx.rows(SEGMENT, (account_id, content.segment_id)))[0][0]:
        return "segment"
    if content.topic_id is not None and not (await tx.rows(TOPIC, (account_id, content.topic_id)))[0][0]:
        return "topic"
    return None


def _given(content: Content) -> dict[str, Any]:
    return {**{name: getattr(content, name) for name in _CONTENT}, "reply_to": list(content.reply_to)}
