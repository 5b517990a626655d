"""Looks through messages, which have to be decoded: stored messages, those of the development inbox, and CSV files that are imported.

Messages are read a few pieces at a time and searched in a thread, one after the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import attrs

from mailsvc.mail.address_search import LONGEST, Search
from mailsvc.store.postgres.pool import Pool, Transaction

Key = Mapping[str, str]
InThread = Callable[..., Awaitable[Any]]

PIECES = 32  # of at most 256 kB, read at once
_NOWHERE = "00000000-0000-0000-0000-000000000000"

_MESSAGES = """
SELECT account_id::text, email_id::text, piece, bytes FROM messages
WHERE (%(account)s::uuid IS NULL OR account_id = %(account)s)
AND (account_id, email_id, piece) > (%(account_id)s::uuid, %(email_id)s::uuid, %(piece)s)
ORDER BY account_id, email_id, piece LIMIT %(limit)s
"""
QUEUED = "SELECT count(*) FROM queue WHERE email_id = %(email_id)s::uuid"
DELETE = "DELETE FROM messages WHERE account_id = %(account_id)s::uuid AND email_id = %(email_id)s::uuid"
_INBOX = """
SELECT id::text, message FROM sandbox_emails
WHERE (%(account)s::uuid IS NULL OR account_id = %(account)s) AND id > %(id)s::uuid ORDER BY id LIMIT 1
"""
DELETE_INBOX = "DELETE FROM sandbox_emails WHERE id = %(id)s::uuid"
_CHUNKS = """
SELECT account_id::text, import_id::text, number, data FROM contact_import_chunks
WHERE (%(account)s::uuid IS NULL OR account_id = %(account)s)
AND (account_id, import_id, number) > (%(account_id)s::uuid, %(import_id)s::uuid, %(number)s)
ORDER BY account_id, import_id, number LIMIT 1
"""
_CHUNK = """
SELECT data FROM contact_import_chunks
WHERE account_id = %(account_id)s::uuid AND import_id = %(import_id)s::uuid AND number = %(number)s FOR UPDATE
"""
_OVERWRITE = """
UPDATE contact_import_chunks SET data = %(data)s
WHERE account_id = %(account_id)s::uuid AND import_id = %(import_id)s::uuid AND number = %(number)s
"""


@attrs.frozen
class Messages:
    """The messages of one account, or of all."""

    pool: Pool
    search: Search
    account: UUID | None
    in_thread: InThread

    async def stored(self, after: Key | None = None) -> AsyncIterator[tuple[Key, bool]]:
        """Each message after a key, and whether it has the address."""
        at: dict[str, object] = {"account_id": _NOWHERE, "email_id": _NOWHERE, **(after or {}), "piece": 32767 if after else -2}
        pieces: list[bytes] = []
        while rows := await self.pool.rows(_MESSAGES, {**at, "account": self.account, "limit": PIECES}):
            whole: list[tuple[Key, list[bytes]]] = []
            for account_id, email_id, piece, content in rows:
                if pieces and email_id != at["email_id"]:
                    whole.append((_key(at), pieces))
                    pieces = []
                at = {"account_id": account_id, "email_id": email_id, "piece": piece}
                pieces.append(content)
            for key, has in await self._which(whole):
                yield key, has
        for key, has in await self._which([(_key(at), pieces)] if pieces else []):
            yield key, has

    async def inbox(self, after: Key | None = None) -> AsyncIterator[tuple[Key, bool]]:
        """The same for the development inbox."""
        at: dict[str, object] = {"id": _NOWHERE, **(after or {})}
        while rows := await self.pool.rows(_INBOX, {**at, "account": self.account}):
            at = {"id": rows[0][0]}
            for key, has in await self._which([({"id": rows[0][0]}, [rows[0][1]])]):
                yield key, has

    async def chunks(self, after: Key | None = None) -> AsyncIterator[tuple[Key, bool]]:
        """The chunks of uploaded files. An address can begin in one chunk and end in the next, and is then found in both."""
        at: dict[str, Any] = {"account_id": _NOWHERE, "import_id": _NOWHERE, **(after or {})}
        at["number"] = int(at.get("number", -1))
        tail, of = b"", None
        while rows := await self.pool.rows(_CHUNKS, {**at, "account": self.account}):
            [(account_id, import_id, number, data)] = rows
            at = {"account_id": account_id, "import_id": import_id, "number": number}
            key = {"account_id": account_id, "import_id": import_id, "number": str(number)}
            yield key, await self.in_thread(self.search.in_bytes, (tail if of == import_id else b"") + data)
            tail, of = data[-LONGEST:], import_id

    async def overwrite(self, tx: Transaction, key: Key) -> None:
        """Put `x` in place of the address in a chunk and the end of the one before, which keep their lengths."""
        number = int(key["number"])
        before = await tx.rows(_CHUNK, {**key, "number": number - 1})
        [(data,)] = await tx.rows(_CHUNK, {**key, "number": number})
        first = before[0][0] if before else b""
        head, tail = first[:-LONGEST], first[-LONGEST:]
        blanked = await self.in_thread(self.search.blank, tail + data)
        if before and blanked[: len(tail)] != tail:
            await tx.run(_OVERWRITE, {**key, "number": number - 1, "data": head + blanked[: len(tail)]})
        await tx.run(_OVERWRITE, {**key, "number": number, "data": blanked[len(tail) :]})

    async def _which(self, found: Sequence[tuple[Key, list[bytes]]]) -> Sequence[tuple[Key, bool]]:
        """Which messages have the address, in one call in a thread."""

        def search() -> Sequence[tuple[Key, bool]]:
            return [(key, self.search.in_message(b"".join(pieces))) for key, pieces in found]

        return await self.in_thread(search) if found else []


def _key(at: Mapping[str, object]) -> Key:
    return {name: str(at[name]) for name in ("account_id", "email_id")}
