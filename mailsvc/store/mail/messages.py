"""The exact bytes of messages, read for sending and for display. A hot path: rows are read by position.

Only the messages of broadcasts are not stored: they are composed, from values that do not change (`compose`; broadcasts/personal).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol
from uuid import UUID

import attrs

from mailsvc.store.broadcasts.personal import PersonalEmail
from mailsvc.store.encryption.body_cipher import BodyCipher
from mailsvc.store.encryption.body_key_files import BodyKeyError
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.mail.compression import original
from mailsvc.store.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.postgres.shared_commits import SharedCommits
from mailsvc.store.queue.claims_sql import PLAN_BY_INDEX

BeforeRest = Callable[[int], Awaitable[None]]
_COMPOSED = "SELECT 1 FROM emails WHERE account_id = %s AND email_id = %s AND broadcast_id IS NOT NULL"
_WHOLE = """
SELECT m.piece, m.bytes, e.encrypted AND m.piece >= 0, CASE WHEN e.compressed AND m.piece = 0 THEN e.size END
FROM messages m JOIN emails e ON e.account_id = m.account_id AND e.email_id = m.email_id
WHERE m.account_id = %s AND m.email_id = %s ORDER BY m.piece
"""
MAX_TOGETHER = 16  # first pieces read in one statement: 8 MB at most

# Signatures and first pieces; most messages have no further ones.
_HEADS = """
SELECT g.n, m.piece, m.bytes, e.size, CASE WHEN m.piece = 0 THEN e.envelope END, e.broadcast_id, e.topic_id,
       e.encrypted, e.compressed
FROM unnest($1, $2) WITH ORDINALITY AS g(account_id, email_id, n)
JOIN emails e ON e.account_id = g.account_id AND e.email_id = g.email_id
LEFT JOIN messages m ON m.account_id = g.account_id AND m.email_id = g.email_id AND m.piece <= 0
"""
HEADS = Prepared("heads", ("uuid[]", "uuid[]"), _HEADS, PLAN_BY_INDEX)
PIECE = Prepared(
    "a_piece", ("uuid", "uuid", "smallint"), "SELECT bytes FROM messages WHERE account_id = $1 AND email_id = $2 AND piece = $3"
)


class Composer(Protocol):
    """broadcasts/personal. The message of a broadcast's email; None if the email or its broadcast no longer exists."""

    async def message(self, account_id: UUID, email_id: UUID, before_large: BeforeRest | None) -> bytes | None: ...

    async def compose(self, email: PersonalEmail, before_large: BeforeRest | None) -> bytes | None: ...


@attrs.frozen
class Piece:
    """A stored piece of a message; -1 is its signature. `size`: of the message, if the piece is compressed."""

    number: int
    stored: bytes = attrs.field(repr=False)
    encrypted: bool | None = None
    size: int | None = None

    def plain(self, cipher: BodyCipher | None, email_id: UUID) -> bytes:
        """Raises BodyKeyError and Damaged."""
        if not self.encrypted:
            return self.stored if self.size is None else original(self.stored, self.size)
        if cipher is None:
            raise BodyKeyError("The key of this message is not available.")
        return cipher.decrypt(email_id, self.number, self.stored)


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
    """Like StoredMessage, with the pieces not joined. An email of a broadcast, or about a topic, is only for people who want it."""

    signature: bytes | None
    body: bytes | Parts = attrs.field(repr=False)
    envelope: StoredEnvelope = EMPTY
    broadcast_id: UUID | None = None
    topic_id: UUID | None = None


@attrs.define
class _Head:
    """The first piece and the signature of a message. `size` 0: there is no message. `encrypted`, `compressed`: its pieces are."""

    size: int = 0
    first: bytes | None = None
    signature: bytes | None = None
    envelope: StoredEnvelope = EMPTY
    broadcast_id: UUID | None = None
    topic_id: UUID | None = None
    encrypted: bool | None = None
    compressed: bool | None = None


class Messages:
    """Reads messages. Those requested in one turn of the reactor are read together. An encrypted one may raise BodyKeyError."""

    def __init__(self, pool: Pool, clock: Any, composer: Composer | None = None, bodies: BodyKeys | None = None) -> None:
        self._pool, self._composer, self.bodies = pool, composer, bodies
        self._heads: SharedCommits[tuple[UUID, UUID], _Head] = SharedCommits(
            self._read, clock, max_items=MAX_TOGETHER, linger=0.0, writes=4
        )

    async def load(
        self, account_id: UUID, email_id: UUID, most: int | None = None, before_rest: BeforeRest | None = None
    ) -> StoredMessage | None:
        """None if it is missing or incomplete. With `most`, the body may be cut off after that many bytes. `before_rest`: see in_pieces."""
        stored = await self.in_pieces(account_id, email_id, most, before_rest)
        return None if stored is None else StoredMessage(stored.signature, _joined(stored.body), stored.envelope)

    async def in_pieces(
        self, account_id: UUID, email_id: UUID, most: int | None = None, before_rest: BeforeRest | None = None
    ) -> StoredPieces | None:
        """Each further piece is read in its own round trip, to keep the reactor's turns short.

        `before_rest` gets the message's size and is awaited before further pieces are read, or before a large one is composed.
        """
        head = await self._heads.submit((account_id, email_id))
        if head.first is None:
            return await self._composed(account_id, email_id, head, before_rest)
        if before_rest is not None:
            await before_rest(head.size)
        cipher = await self._cipher(account_id) if head.encrypted else None
        pieces = [Piece(0, head.first, head.encrypted, head.size if head.compressed else None).plain(cipher, email_id)]
        have = len(pieces[0])
        while have < (head.size if most is None else min(most, head.size)):
            found = await self._pool.rows(PIECE, (account_id, email_id, len(pieces)))
            if not found:
                return None
            pieces.append(Piece(len(pieces), found[0][0], head.encrypted).plain(cipher, email_id))
            have += len(pieces[-1])
        body = pieces[0] if len(pieces) == 1 else Parts(tuple(pieces))
        return StoredPieces(head.signature, body, head.envelope, head.broadcast_id, head.topic_id)

    async def _cipher(self, account_id: UUID) -> BodyCipher:
        if self.bodies is None:
            raise BodyKeyError("This process cannot read encrypted messages.")
        return await self.bodies.of(account_id)

    async def _composed(self, account_id: UUID, email_id: UUID, head: _Head, before_rest: BeforeRest | None) -> StoredPieces | None:
        if head.broadcast_id is None or self._composer is None:
            return None
        body = await self._composer.message(account_id, email_id, before_rest)
        return None if body is None else StoredPieces(head.signature, body, EMPTY, head.broadcast_id, head.topic_id)

    async def composed(self, email: PersonalEmail, before_large: BeforeRest | None = None) -> StoredPieces | None:
        """The message of a broadcast's email that has not been attempted, and so has no signature."""
        body = None if self._composer is None else await self._composer.compose(email, before_large)
        return None if body is None else StoredPieces(None, body, EMPTY, email.broadcast_id, email.topic_id)

    async def _read(self, keys: list[tuple[UUID, UUID]]) -> list[_Head]:
        accounts, emails = zip(*keys, strict=True)
        heads = [_Head() for _ in keys]
        for n, piece, content, size, envelope, *head_ids in await self._pool.rows(HEADS, (list(accounts), list(emails))):
            head = heads[n - 1]
            head.size = size
            head.broadcast_id, head.topic_id, head.encrypted, head.compressed = head_ids
            if piece == 0:
                head.first, head.envelope = content, StoredEnvelope.read(envelope)
            elif piece is not None:
                head.signature = content
        return heads


@attrs.frozen
class InPieces:
    """For sequential readers: large messages are not joined, because that would block the reactor."""

    messages: Messages

    async def load(self, account_id: UUID, email_id: UUID, before_rest: BeforeRest) -> StoredPieces | None:
        return await self.messages.in_pieces(account_id, email_id, before_rest=before_rest)

    async def compose(self, email: PersonalEmail, before_large: BeforeRest) -> StoredPieces | None:
        return await self.messages.composed(email, before_large)


async def stored_pieces(tx: Transaction, account_id: UUID, email_id: UUID) -> Sequence[Piece]:
    """The signature, if there is one, and the pieces of a message; none if it is not stored."""
    return [Piece(*row) for row in await tx.rows(_WHOLE, (account_id, email_id))]


async def whole(pieces: Sequence[Piece], account_id: UUID, email_id: UUID, bodies: BodyKeys) -> bytes:
    """The message that these pieces are. May raise BodyKeyError and Damaged."""
    cipher = await bodies.of(account_id) if any(each.encrypted for each in pieces) else None
    return b"".join([each.plain(cipher, email_id) for each in pieces])


async def is_composed(tx: Transaction, account_id: UUID, email_id: UUID) -> bool:
    """Whether its message is composed whenever it is needed, because a broadcast sent it."""
    return bool(await tx.rows(_COMPOSED, (account_id, email_id)))


def _joined(body: bytes | Parts) -> bytes:
    return body if isinstance(body, bytes) else b"".join(body)
