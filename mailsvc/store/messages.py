"""The exact bytes of an email: read for sending and for showing, never rebuilt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.pool import Pool

# The signature and the first piece; most messages have no other.
HEAD = """
SELECT m.piece, m.bytes, e.size, e.envelope FROM emails e JOIN messages m USING (account_id, email_id)
WHERE e.account_id = %s AND e.email_id = %s AND m.piece <= 0
"""
PIECE = "SELECT bytes FROM messages WHERE account_id = %s AND email_id = %s AND piece = %s"


@attrs.frozen
class StoredMessage:
    """`signature` are the DKIM-Signature fields of the first attempt, None when none was made yet; they precede `body`."""

    signature: bytes | None
    body: bytes = attrs.field(repr=False)
    envelope: Mapping[str, Any] | None = None  # as it was kept with the email


class Messages:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def load(self, account_id: UUID, email_id: UUID) -> StoredMessage | None:
        """Piece by piece, each in a round trip of its own, so that no reactor turn is long. None when it is not there, or not whole."""
        rows = await self._pool.rows(HEAD, (account_id, email_id))
        head = {piece: octets for piece, octets, *_ in rows}
        if 0 not in head:
            return None
        size: int = rows[0][2]
        pieces: list[bytes] = [head[0]]
        have = len(head[0])
        while have < size:
            found = await self._pool.rows(PIECE, (account_id, email_id, len(pieces)))
            if not found:
                return None
            pieces.append(found[0][0])
            have += len(pieces[-1])
        return StoredMessage(head.get(-1), pieces[0] if len(pieces) == 1 else b"".join(pieces), rows[0][3])
