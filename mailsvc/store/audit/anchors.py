"""Anchors: signed statements of the last line of each chain that has grown. Each has the hash of the anchor before it.

The body is JSON: {"version", "number", "at", "previous", "heads": [[account, line, hash], …]}. What signs them and where they go: audit/.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import attrs

from mailsvc.store.postgres.pool import Pool, Transaction

LOCK = 0x61756469  # "audi": one process makes an anchor at a time
MOST = 200  # chains in one anchor
FIRST = bytes(32)  # what the first anchor has as the hash of the one before it

LAST = "SELECT number, at, body FROM audit_anchors ORDER BY number DESC LIMIT 1"
GROWN = """
UPDATE audit_heads SET anchored = seq WHERE account_id IN (
    SELECT account_id FROM audit_heads WHERE seq > anchored ORDER BY account_id LIMIT %s FOR UPDATE SKIP LOCKED
) RETURNING account_id, seq, hash
"""
ADD = "INSERT INTO audit_anchors (number, at, body, signature) VALUES (%s, %s, %s, %s)"
AFTER = "SELECT number, body, signature FROM audit_anchors WHERE number > %s ORDER BY number LIMIT %s"


@attrs.frozen
class Anchor:
    number: int
    body: str
    signature: bytes

    def document(self) -> dict[str, Any]:
        """For JSON. The body is a string, so that its bytes stay those that were signed."""
        return {"type": "anchor", "number": self.number, "body": self.body, "signature": self.signature.hex()}

    @classmethod
    def read(cls, document: Any) -> Anchor:
        """The opposite of `document`. Raises ValueError."""
        try:
            number, body, signature = document["number"], document["body"], bytes.fromhex(document["signature"])
        except (KeyError, TypeError) as error:
            raise ValueError(str(error)) from None
        if not isinstance(number, int) or not isinstance(body, str):
            raise ValueError("not an anchor")
        return cls(number, body, signature)


def digest(body: str) -> bytes:
    return hashlib.sha256(body.encode()).digest()


async def make(pool: Pool, now: datetime, every: timedelta, sign: Callable[[bytes], bytes]) -> int:
    """Anchor all chains that have grown, unless another process did so lately. Returns how many anchors were made."""

    async def one(tx: Transaction, first: bool) -> bool:
        if not (await tx.rows("SELECT pg_try_advisory_xact_lock(%s)", (LOCK,)))[0][0]:
            return False
        last = await tx.rows(LAST)
        number, at, body = last[0] if last else (0, None, None)
        if first and at is not None and now - at < every:
            return False
        heads = await tx.rows(GROWN, (MOST,))
        if not heads:
            return False
        previous = FIRST if body is None else digest(body)
        text = json.dumps(
            {
                "version": 1,
                "number": number + 1,
                "at": now.isoformat(),
                "previous": previous.hex(),
                "heads": [[str(account_id), seq, hash.hex()] for account_id, seq, hash in sorted(heads)],
            }
        )
        await tx.run(ADD, (number + 1, now, text, sign(text.encode())))
        return True

    count = int(await pool.transact(lambda tx: one(tx, True)))
    while count and await pool.transact(lambda tx: one(tx, False)):
        count += 1
    return count


async def after(pool: Pool, number: int, limit: int = 50) -> list[Anchor]:
    """Anchors after that number, in order."""
    return [Anchor(*row) for row in await pool.rows(AFTER, (number, limit))]
