"""The restore guard: notices that the database was restored from a backup.

Mail that was sent after the backup is still waiting in a restored database and must not be sent again automatically. The table `house`
records where the database was last used. A restored dump is elsewhere: in another cluster, database or at least table. A recovered
cluster has a write-ahead log with another timeline. And any database that was reset has fewer `beats` than were recorded outside it, in
the restore marker (the file `database.restore_marker`) or in this process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import attrs
from twisted.logger import Logger

from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue import holds

REASON = "On hold because the database was restored: mail that was already sent might be sent again until the operator releases it."
DUMP = "It was restored from a dump."
RECOVERED = "It was recovered from a backup, and no restore marker shows that nothing is missing."
SET_BACK = "It is older than the last recorded state."

LEAP = 1_000_000  # more beats than markers on other machines can have, so that a reset is reported once only

HERE = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
       'house'::regclass::oid::bigint,
       ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
"""
KNOWN = "SELECT system, database, relation, timeline, beats FROM house FOR UPDATE"
MOVE = "UPDATE house SET system = %s, database = %s, relation = %s, timeline = %s, beats = %s"


@attrs.frozen
class Place:
    """Where a database is. `system` None: it has not been used yet."""

    system: str | None
    database: int | None
    relation: int | None
    timeline: int | None

    @property
    def home(self) -> tuple[object, ...]:
        return self.system, self.database, self.relation


@attrs.frozen
class Marker:
    """How far a database had advanced."""

    system: str
    database: int
    beats: int


def judge(known: Place, here: Place, beats: int, seen: Marker | None) -> str | None:
    """Why this is a restored database; None if it is not."""
    if known.system is None:
        return None
    if known.home != here.home:
        return DUMP
    matches = seen is not None and (seen.system, seen.database) == (here.system, here.database)
    if seen is not None and matches and beats < seen.beats:
        return SET_BACK
    return RECOVERED if known.timeline != here.timeline and not matches else None


@attrs.define(eq=False)
class RestoreGuard:
    """Guards one database. Call `check` at start and every few seconds."""

    log = Logger()

    pool: Pool
    file: Path | None
    region: str
    _seen: Marker | None = attrs.field(default=None, init=False)

    async def check(self, *, remember: bool = True) -> str | None:
        """Hold all mail if this is a restored database, and return why. `remember`: write the restore marker."""
        seen = self._seen or self._read()

        async def advance(tx: Transaction) -> tuple[str | None, Marker]:
            [(*last, beats)] = await tx.rows(KNOWN)
            [place] = await tx.rows(HERE)
            known, here = Place(*last), Place(*place)
            why = judge(known, here, beats, seen)
            if why is not None:
                await holds.hold_everything(tx, REASON, self.region)
            if why == SET_BACK and seen is not None:
                beats = seen.beats + LEAP
            await tx.run(MOVE, (*attrs.astuple(here), beats + 1))
            assert here.system is not None and here.database is not None
            return why, Marker(here.system, here.database, beats + 1)

        why, now = await self.pool.transact(advance)
        self._seen = now
        if why is not None:
            self.log.warn("this database was restored: {why} All mail is on hold until `mailsvc queue release`", why=why)
        if remember:
            self._write(now)
        return why

    def _read(self) -> Marker | None:
        try:
            given = None if self.file is None else json.loads(self.file.read_text())
            return Marker(str(given["system"]), int(given["database"]), int(given["beats"])) if isinstance(given, Mapping) else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.log.warn("the restore marker {path} cannot be read: {error}", path=str(self.file), error=str(error))
            return None

    def _write(self, seen: Marker) -> None:
        """Replace the file atomically."""
        if self.file is not None:
            temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}")
            temporary.write_text(json.dumps(attrs.asdict(seen)) + "\n")
            temporary.replace(self.file)
