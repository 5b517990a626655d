"""Notices that a database is a restored one: mail that was sent after its backup still waits in it, and must not go out twice by itself.

The table `house` says where it was last used. A dump that was restored is elsewhere: another cluster, another database, or at least
another table. A cluster that was recovered has a log of another timeline. And whatever was set back has fewer `beats` than are
remembered outside the database, by the witness (a file, `database.witness`) or by this process.
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

REASON = "Held since the database was restored: the operator lets mail out again when what went out before may go out twice."
DUMP = "It was restored from a dump."
RECOVERED = "It was recovered from a backup, and no witness tells that nothing is missing."
SET_BACK = "It has gone back behind what was seen of it."

LEAP = 1_000_000  # beyond what witnesses on other machines may have seen: once is enough to be told

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
    """Where a database is; `system` None: nobody has used it."""

    system: str | None
    database: int | None
    relation: int | None
    timeline: int | None

    @property
    def home(self) -> tuple[object, ...]:
        return self.system, self.database, self.relation


@attrs.frozen
class Seen:
    """How far a database had come."""

    system: str
    database: int
    beats: int


def judge(known: Place, here: Place, beats: int, seen: Seen | None) -> str | None:
    """Why this is a restored database; None: it is the one that it was."""
    if known.system is None:
        return None
    if known.home != here.home:
        return DUMP
    witnessed = seen is not None and (seen.system, seen.database) == (here.system, here.database)
    if seen is not None and witnessed and beats < seen.beats:
        return SET_BACK
    return RECOVERED if known.timeline != here.timeline and not witnessed else None


@attrs.define(eq=False)
class RestoreGuard:
    """Of one database. `look` is for the start and for every few seconds."""

    log = Logger()

    pool: Pool
    witness: Path | None
    region: str
    _seen: Seen | None = attrs.field(default=None, init=False)

    async def check(self, *, remember: bool = True) -> str | None:
        """Hold all mail when this is a restored database, and say why; `remember`: write down how far it has come."""
        seen = self._seen or self._read()

        async def look(tx: Transaction) -> tuple[str | None, Seen]:
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
            return why, Seen(here.system, here.database, beats + 1)

        why, now = await self.pool.transact(look)
        self._seen = now
        if why is not None:
            self.log.warn("this database is not the one that it was: {why} All mail is held until `mailsvc queue release`", why=why)
        if remember:
            self._write(now)
        return why

    def _read(self) -> Seen | None:
        try:
            given = None if self.witness is None else json.loads(self.witness.read_text())
            return Seen(str(given["system"]), int(given["database"]), int(given["beats"])) if isinstance(given, Mapping) else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.log.warn("the witness {path} cannot be read: {error}", path=str(self.witness), error=str(error))
            return None

    def _write(self, seen: Seen) -> None:
        """As a whole or not at all."""
        if self.witness is not None:
            unfinished = self.witness.with_name(f".{self.witness.name}.{os.getpid()}")
            unfinished.write_text(json.dumps(attrs.asdict(seen)) + "\n")
            unfinished.replace(self.witness)
