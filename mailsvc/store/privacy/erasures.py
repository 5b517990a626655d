"""The record of an erasure: its progress, what it has erased, and the certificate that remains.

Progress is written in the transaction of the work, under a lock on the row, so an erasure that was killed continues where it was, and two
processes that work on the same one do nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.store.encryption.secrets import Encryption, EncryptionError
from mailsvc.store.ids import uuid7
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.adapters import json
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.privacy.keyed_hash import keyed_hashes
from mailsvc.store.sql import Columns

EVERYWHERE = UUID(int=0)  # instead of an account
LOCKS = 0x65726173  # first key of the advisory locks, ASCII "eras"; the second key is the address

log = Logger()

COLUMNS = Columns.named(
    "account_id", "id", "suppress", "origin", "requested_at", "finished_at", "progress", "counts"
)  # fmt: skip
_ADD = f"""
INSERT INTO erasures (account_id, id, hash, key, address, suppress, origin, requested_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (account_id, id) DO UPDATE SET origin = excluded.origin RETURNING {COLUMNS}
"""
# Two processes that begin to erase the same address share one erasure.
_ALONE = "SELECT pg_advisory_xact_lock(%s, hashtext(%s))"
_OPEN = f"""
SELECT {COLUMNS} FROM erasures
WHERE account_id = %s AND finished_at IS NULL AND hash = ANY (%s::bytea[]) AND suppress = %s ORDER BY id LIMIT 1
"""
_GET = f"SELECT {COLUMNS} FROM erasures WHERE account_id = %s AND id = %s"
_LIST = f"SELECT {COLUMNS} FROM erasures WHERE account_id = %s AND (%s::uuid IS NULL OR id < %s) ORDER BY id DESC LIMIT %s"
_SINCE = f"""
SELECT {COLUMNS} FROM erasures WHERE requested_at >= %s AND (account_id, id) > (%s, %s) ORDER BY account_id, id LIMIT %s
"""
_UNFINISHED = f"""
SELECT {COLUMNS}, address FROM erasures WHERE finished_at IS NULL AND id <> ALL (%s::uuid[]) ORDER BY requested_at, id LIMIT %s
"""
_LOCK = "SELECT progress, counts FROM erasures WHERE account_id = %s AND id = %s AND finished_at IS NULL FOR UPDATE"
_SAVE = "UPDATE erasures SET progress = %s, counts = %s WHERE account_id = %s AND id = %s"
_FINISH = "UPDATE erasures SET finished_at = %s, address = NULL, progress = '{}', counts = %s WHERE account_id = %s AND id = %s"
_FINISHED = "SELECT id FROM erasures WHERE id = ANY (%s::uuid[]) AND (finished_at IS NOT NULL OR (%s AND origin <> 'journal'))"
_DELETED = """
SELECT DISTINCT account_id FROM erasures e WHERE finished_at >= %s AND counts #> '{erased,accounts}' IS NOT NULL
AND NOT EXISTS (SELECT FROM accounts a WHERE a.id = e.account_id)
"""


def the_account(account_id: UUID) -> str:
    """Instead of an address: all data of an account."""
    return f"account:{account_id}"


def account_of(subject: str) -> UUID | None:
    """The account, if not an address is erased but an account."""
    kind, _, id_ = subject.partition(":")
    return UUID(id_) if kind == "account" and "@" not in id_ else None


@attrs.frozen
class Erasure:
    """`counts`: how many were erased, kept and are waiting, by place."""

    account_id: UUID
    id: UUID
    suppress: bool
    origin: str
    requested_at: datetime
    finished_at: datetime | None
    progress: Mapping[str, Any]
    counts: Mapping[str, Mapping[str, int]]

    @property
    def account(self) -> UUID | None:
        return None if self.account_id == EVERYWHERE else self.account_id


@attrs.define
class Progress:
    """Where an erasure is: the step, and the last key that it looked at. Steps change it within `Erasures.advance`."""

    step: int = 0
    after: dict[str, Any] | None = None
    counts: dict[str, Counter[str]] = attrs.field(factory=dict)

    def add(self, kind: str, place: str, count: int = 1) -> None:
        """`kind`: erased, kept, or waiting."""
        if count:
            self.counts.setdefault(kind, Counter())[place] += count

    def next_step(self) -> None:
        self.step, self.after = self.step + 1, None


class Finished(Exception):
    """Another process has finished the erasure."""


@attrs.define(eq=False)
class Erasures:
    pool: Pool
    clock: Any
    encryption: Encryption

    def new_id(self) -> UUID:
        return uuid7(utc(self.clock).timestamp())

    async def begin(
        self, account: UUID | None, id_: UUID, email: str, suppress: bool, origin: str, lines: Sequence[Line] = (),
        journal: Callable[[], Awaitable[None]] | None = None,
    ) -> Erasure:  # fmt: skip
        """Record it before anything is erased. One of the same ID that exists already is continued.

        With `journal`, so is one of the same address that is not finished; otherwise `journal` is called before this one is recorded.
        """
        now, account_id = utc(self.clock), account or EVERYWHERE
        hashes = keyed_hashes(self.encryption, email)
        number, hash_ = next(iter(hashes.items()))
        encrypted = self.encryption.encrypt(email.encode(), id_)

        async def begin(tx: Transaction) -> Erasure:
            if journal is not None:
                await tx.rows(_ALONE, (LOCKS, f"{account_id} {hash_.hex()}"))
                if rows := await tx.rows(_OPEN, (account_id, list(hashes.values()), suppress)):
                    return Erasure(**COLUMNS.read(rows[0]))
                await journal()
            [row] = await tx.rows(_ADD, (account_id, id_, hash_, number, encrypted, suppress, origin, now))
            await write(tx, lines, now.timestamp())
            return Erasure(**COLUMNS.read(row))

        return await self.pool.transact(begin)

    async def open(self, account: UUID | None, email: str, suppress: bool) -> Erasure | None:
        """An erasure of the address that is not finished."""
        hashes = list(keyed_hashes(self.encryption, email).values())
        rows = await self.pool.rows(_OPEN, (account or EVERYWHERE, hashes, suppress))
        return Erasure(**COLUMNS.read(rows[0])) if rows else None

    async def get(self, account_id: UUID, id_: UUID) -> Erasure | None:
        rows = await self.pool.rows(_GET, (account_id, id_))
        return Erasure(**COLUMNS.read(rows[0])) if rows else None

    async def list(self, account_id: UUID, limit: int, after: UUID | None = None) -> tuple[Sequence[Erasure], bool]:
        """Newest first, and whether there are more."""
        rows = await self.pool.rows(_LIST, (account_id, after, after, limit + 1))
        return [Erasure(**COLUMNS.read(row)) for row in rows[:limit]], len(rows) > limit

    async def since(self, at: datetime, size: int = 100) -> AsyncIterator[Erasure]:
        """Those that were requested since then, of all accounts, also of those that were deleted."""
        after = (EVERYWHERE, EVERYWHERE)
        while rows := await self.pool.rows(_SINCE, (at, *after, size)):
            for row in rows:
                yield (each := Erasure(**COLUMNS.read(row)))
            after = (each.account_id, each.id)

    async def unfinished(self, without: Collection[UUID] = (), size: int = 100) -> Sequence[tuple[Erasure, str | None]]:
        """The oldest ones that are not finished, with their addresses; None: it cannot be decrypted. `without`: not these."""
        rows = await self.pool.rows(_UNFINISHED, (list(without), size))
        found = [(Erasure(**COLUMNS.read(row)), bytes(encrypted)) for *row, encrypted in rows]
        return [(erasure, self._decrypted(erasure, encrypted)) for erasure, encrypted in found]

    def _decrypted(self, erasure: Erasure, encrypted: bytes) -> str | None:
        try:
            return self.encryption.decrypt(encrypted, erasure.id).decode()
        except EncryptionError as error:
            log.error("The erasure {id} cannot be continued: {reason}", id=str(erasure.id), reason=str(error))
            return None

    async def known(self, ids: Sequence[UUID], *, begun: bool) -> set[UUID]:
        """Which of these are finished, or have at least begun. What was begun to apply the journal has to be finished."""
        return {id_ for (id_,) in await self.pool.rows(_FINISHED, (list(ids), begun))}

    async def deleted(self, since: datetime) -> Sequence[UUID]:
        """Accounts that were deleted since then."""
        return [account_id for (account_id,) in await self.pool.rows(_DELETED, (since,))]

    async def advance(self, erasure: Erasure, at: Progress, work: Callable[[Transaction, Progress], Awaitable[None]]) -> Progress:
        """One transaction of a step. If another process is further, nothing is done. Returns where the erasure is now."""

        async def advance(tx: Transaction) -> Progress:
            now = await self._locked(tx, erasure)
            if (now.step, now.after) == (at.step, at.after):
                await work(tx, now)
                counts = {kind: dict(places) for kind, places in now.counts.items()}
                await tx.run(_SAVE, (json({"step": now.step, "after": now.after}), json(counts), erasure.account_id, erasure.id))
            return now

        return await self.pool.transact(advance)

    async def finish(self, erasure: Erasure, at: Progress) -> None:
        """The last step is done. What still waits keeps it open: it begins again from the first step."""

        async def finish(tx: Transaction) -> None:
            now = await self._locked(tx, erasure)
            counts = {kind: dict(places) for kind, places in now.counts.items()}
            if now.step != at.step:
                return
            if now.counts.get("waiting"):
                await tx.run(_SAVE, (json({}), json(counts), erasure.account_id, erasure.id))
            else:
                await tx.run(_FINISH, (utc(self.clock), json(counts), erasure.account_id, erasure.id))

        await self.pool.transact(finish)

    async def restart(self, erasure: Erasure) -> Progress:
        """Where it is. At its beginning, what stayed or waited in the last round is counted again."""

        async def restart(tx: Transaction) -> Progress:
            now = await self._locked(tx, erasure)
            if now.step == 0 and now.after is None:
                now.counts = {"erased": now.counts.get("erased", Counter())}
                await tx.run(_SAVE, (json({}), json({"erased": dict(now.counts["erased"])}), erasure.account_id, erasure.id))
            return now

        return await self.pool.transact(restart)

    async def _locked(self, tx: Transaction, erasure: Erasure) -> Progress:
        rows = await tx.rows(_LOCK, (erasure.account_id, erasure.id))
        if not rows:
            raise Finished
        progress, counts = rows[0]
        return Progress(
            progress.get("step", 0), progress.get("after"), {kind: Counter(places) for kind, places in counts.items()}
        )  # fmt: skip
