"""The exact bytes of messages, read for sending and for display, never rebuilt. A hot path: rows are read by position."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

import attrs

from mailsvc.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.postgres.shared_commits import SharedCommits
from mailsvc.store.queue.claims_sql import PLAN_BY_INDEX

BeforeRest = Callable[[int], Awaitable[None]]
MAX_TOGETHER = 16  # first pieces read in one statement: 4 MB at most

# Signatures and first pieces; most messages have no further ones.
_HEADS = """
SELECT g.n, m.piece, m.bytes, e.size, CASE WHEN m.piece = 0 THEN e.envelope END
FROM unnest($1, $2) WITH ORDINALITY AS g(account_id, email_id, n)
JOIN emails e ON e.account_id = g.account_id AND e.email_id = g.email_id
JOIN messages m ON m.account_id = g.account_id AND m.email_id = g.email_id AND m.piece <= 0
"""
HEADS = Prepared("heads", ("uuid[]", "uuid[]"), _HEADS, PLAN_BY_INDEX)
PIECE = Prepared(
    "a_piece", ("uuid", "uuid", "smallint"), "SELECT bytes FROM messages WHERE account_id = $1 AND email_id = $2 AND piece = $3"
)


@attrs.frozen
class StoredMessage:
    """`signature` has the DKIM-Signature fields of the first attempt, which precede `body`; None before it."""

    signature: bytes | None
    body: bytes = attrs.field(repr=False)
    envelope: StoredEnvelope = EMPTY


@attrs.frozen
class Parts:
    """A message in the pieces in which it is stored."""

    parts: tuple[bytes, ...] = attrs.field(repr=False)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.parts)


@attrs.frozen
class StoredPieces:
    """Like StoredMessage, with the pieces not joined."""

    signature: bytes | None
    body: bytes | Parts = attrs.field(repr=False)
    envelope: StoredEnvelope = EMPTY


@attrs.define
class _Head:
    """The first piece and the signature of a message. `size` 0: there is no message."""

    size: int = 0
    first: bytes | None = None
    signature: bytes | None = None
    envelope: StoredEnvelope = EMPTY


class Messages:
    """Reads messages. Those requested in one turn of the reactor are read together."""

    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._heads: SharedCommits[tuple[UUID, UUID], _Head] = SharedCommits(
            self._read, clock, max_items=MAX_TOGETHER, linger=0.0, writes=4
        )

    async def load(self, account_id: UUID, email_id: UUID, most: int | None = None) -> StoredMessage | None:
        """None if it is missing or incomplete. With `most`, the body may be cut off after that many bytes."""
        stored = await self.in_pieces(account_id, email_id, most)
        return None if stored is None else StoredMessage(stored.signature, _joined(stored.body), stored.envelope)

    async def in_pieces(
        self, account_id: UUID, email_id: UUID, most: int | None = None, before_rest: BeforeRest | None = None
    ) -> StoredPieces | None:
        """Each further piece is read in its own round trip, to keep the reactor's turns short.

        `before_rest` gets the message's size and is awaited before further pieces are read.
        """
        head = await self._heads.submit((account_id, email_id))
        if head.first is None:
            return None
        if before_rest is not None:
            await before_rest(head.size)
        pieces = [head.first]
        have = len(head.first)
        while have < (head.size if most is None else min(most, head.size)):
            found = await self._pool.rows(PIECE, (account_id, email_id, len(pieces)))
            if not found:
                return None
            pieces.append(found[0][0])
            have += len(pieces[-1])
        return StoredPieces(head.signature, pieces[0] if len(pieces) == 1 else Parts(tuple(pieces)), head.envelope)

    async def _read(self, keys: list[tuple[UUID, UUID]]) -> list[_Head]:
        accounts, emails = zip(*keys, strict=True)
        heads = [_Head() for _ in keys]
        for n, piece, content, size, envelope in await self._pool.rows(HEADS, (list(accounts), list(emails))):
            head = heads[n - 1]
            head.size = size
            if piece == 0:
                head.first, head.envelope = content, StoredEnvelope.read(envelope)
            else:
                head.signature = content
        return heads


@attrs.frozen
class InPieces:
    """For sequential readers: large messages are not joined, because that would block the reactor."""

    messages: Messages

    async def load(self, account_id: UUID, email_id: UUID, before_rest: BeforeRest) -> StoredPieces | None:
        return await self.messages.in_pieces(account_id, email_id, before_rest=before_rest)


def _joined(body: bytes | Parts) -> bytes:
    return body if isinstance(body, bytes) else b"".join(body)
