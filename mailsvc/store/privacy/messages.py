"""Looks through messages, which have to be decoded: stored messages, those of the development inbox, and CSV files that are imported.

Messages are read a few pieces at a time and searched in a thread, one after the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import attrs

from mailsvc.mail.address_search import LONGEST, Search
from mailsvc.store.encryption.body_cipher import BodyCipher
from mailsvc.store.encryption.body_key_files import BodyKeyError
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.mail.messages import Piece
from mailsvc.store.postgres.errors import Damaged
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.privacy.statements import IN_ORDER

Key = Mapping[str, str]
InThread = Callable[..., Awaitable[Any]]

PIECES = 16  # of at most 512 kB, read at once
UNREADABLE = "messages.bytes (encrypted, without its key)"  # the place of messages that cannot be searched
_NOWHERE = "00000000-0000-0000-0000-000000000000"

# A column without its table in ORDER BY would be the text, which no index has: all messages that are left would be read and sorted.
_MESSAGES = """
SELECT m.account_id::text, m.email_id::text, m.piece, m.bytes, e.encrypted AND m.piece >= 0,
       CASE WHEN e.compressed AND m.piece = 0 THEN e.size END
FROM messages m LEFT JOIN LATERAL (
    SELECT encrypted, compressed, size FROM emails WHERE account_id = m.account_id AND email_id = m.email_id OFFSET 0
) e ON true
WHERE {after} ORDER BY m.account_id, m.email_id, m.piece LIMIT %(limit)s
"""
_OF_ALL = IN_ORDER + _MESSAGES.format(after="(m.account_id, m.email_id, m.piece) > (%(account_id)s::uuid, %(email_id)s::uuid, %(piece)s)")
_OF_ONE = IN_ORDER + _MESSAGES.format(after="m.account_id = %(account)s AND (m.email_id, m.piece) > (%(email_id)s::uuid, %(piece)s)")
_WHOLE = """
SELECT piece, bytes, e.encrypted AND piece >= 0, CASE WHEN e.compressed AND piece = 0 THEN e.size END
FROM messages m LEFT JOIN LATERAL (
    SELECT encrypted, compressed, size FROM emails WHERE account_id = m.account_id AND email_id = m.email_id OFFSET 0
) e ON true WHERE account_id = %(account_id)s::uuid AND email_id = %(email_id)s::uuid ORDER BY piece
"""
QUEUED = "SELECT count(*) FROM queue WHERE email_id = %(email_id)s::uuid"
DELETE = "DELETE FROM messages WHERE account_id = %(account_id)s::uuid AND email_id = %(email_id)s::uuid"
_INBOX = """
SELECT s.id::text, s.message FROM sandbox_emails s
WHERE (%(account)s::uuid IS NULL OR s.account_id = %(account)s) AND s.id > %(id)s::uuid ORDER BY s.id LIMIT 1
"""
DELETE_INBOX = "DELETE FROM sandbox_emails WHERE id = %(id)s::uuid"
_CHUNKS = """
SELECT c.account_id::text, c.import_id::text, c.number, c.data FROM contact_import_chunks c
WHERE (%(account)s::uuid IS NULL OR c.account_id = %(account)s)
AND (c.account_id, c.import_id, c.number) > (%(account_id)s::uuid, %(import_id)s::uuid, %(number)s)
ORDER BY c.account_id, c.import_id, c.number LIMIT 1
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
    bodies: BodyKeys | None = None

    async def stored(self, after: Key | None = None) -> AsyncIterator[tuple[Key, bool | None]]:
        """Each message after a key, and whether it has the address. None: it is encrypted, and cannot be read."""
        at: dict[str, object] = {"account_id": _NOWHERE, "email_id": _NOWHERE, **(after or {}), "piece": 32767 if after else -2}
        pieces: list[Piece] = []
        sql = _OF_ALL if self.account is None else _OF_ONE
        while rows := await self.pool.rows(sql, {**at, "account": self.account, "limit": PIECES}):
            whole: list[tuple[Key, list[Piece]]] = []
            for account_id, email_id, *piece in rows:
                if pieces and email_id != at["email_id"]:
                    whole.append((_key(at), pieces))
                    pieces = []
                pieces.append(Piece(*piece))
                at = {"account_id": account_id, "email_id": email_id, "piece": pieces[-1].number}
            for key, has in await self._which(whole):
                yield key, has
        for key, has in await self._which([(_key(at), pieces)] if pieces else []):
            yield key, has

    async def whole(self, key: Key) -> bytes:
        """One message, with its signature. Raises BodyKeyError and Damaged."""
        pieces = [Piece(*row) for row in await self.pool.rows(_WHOLE, key)]
        cipher = await self._cipher(key, pieces)
        return b"".join(each.plain(cipher, UUID(key["email_id"])) for each in pieces)

    async def inbox(self, after: Key | None = None) -> AsyncIterator[tuple[Key, bool | None]]:
        """The same for the development inbox."""
        at: dict[str, object] = {"id": _NOWHERE, **(after or {})}
        while rows := await self.pool.rows(_INBOX, {**at, "account": self.account}):
            at = {"id": rows[0][0]}
            for key, has in await self._which([({"id": rows[0][0]}, [Piece(0, rows[0][1])])]):
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

    async def _which(self, found: Sequence[tuple[Key, list[Piece]]]) -> Sequence[tuple[Key, bool | None]]:
        """Which messages have the address, in one call in a thread."""
        ciphers = [await self._cipher_or_none(key, pieces) for key, pieces in found]

        def has(key: Key, pieces: Sequence[Piece], cipher: BodyCipher | None) -> bool | None:
            try:
                return self.search.in_message(b"".join(each.plain(cipher, UUID(key.get("email_id", _NOWHERE))) for each in pieces))
            except (BodyKeyError, Damaged):
                return None

        def search() -> Sequence[tuple[Key, bool | None]]:
            return [(key, has(key, pieces, cipher)) for (key, pieces), cipher in zip(found, ciphers, strict=True)]

        return await self.in_thread(search) if found else []

    async def _cipher_or_none(self, key: Key, pieces: Sequence[Piece]) -> BodyCipher | None:
        try:
            return await self._cipher(key, pieces)
        except BodyKeyError:
            return None

    async def _cipher(self, key: Key, pieces: Sequence[Piece]) -> BodyCipher | None:
        encrypted = any(each.encrypted for each in pieces)
        return await self.bodies.of(UUID(key["account_id"])) if encrypted and self.bodies is not None else None


def _key(at: Mapping[str, object]) -> Key:
    return {name: str(at[name]) for name in ("account_id", "email_id")}
