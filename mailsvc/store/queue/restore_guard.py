"""The restore guard: notices that the database was restored from a backup.

Mail that was sent after the backup is still waiting in a restored database and must not be sent again automatically. The table `house`
records where the database was last used. A restored dump is elsewhere: in another cluster, database or at least table. A recovered
cluster, or a standby that took over, has a write-ahead log with another timeline; a standby has everything if commits waited for it
(`synchronous_standby_names`). And any database that was reset has fewer `beats` than were recorded outside it, in
the restore marker (the file `database.restore_marker`) or in this process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import attrs
from twisted.logger import Logger

from mailsvc.store.postgres.cells import cell_of
from mailsvc.store.postgres.connection import Connection
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue import holds

REASON = "On hold because the database was restored: mail that was already sent might be sent again until the operator releases it."
DUMP = "It was restored from a dump."
TAKEN_OVER = "Another server took over that commits had not waited for, so the last ones may be missing."
RECOVERED = "It was recovered from a backup, and no restore marker shows that nothing is missing."
SET_BACK = "It is older than the last recorded state."

LEAP = 1_000_000  # more beats than markers on other machines can have, so that a reset is reported once only

HERE = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
       'house'::regclass::oid::bigint,
       ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
       current_setting('synchronous_standby_names') <> ''
"""
# `database` is the node, `relation` the table's shard, which stays the same when the cell is moved.
HERE_IN_CELL = """
SELECT 'cell ' || current_setting('mailsvc.cell'),
       (SELECT system_identifier FROM pg_control_system()),
       (SELECT shardid FROM pg_dist_shard WHERE logicalrelid = to_regclass(format('%I.house', current_setting('mailsvc.cell')))),
       ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
       current_setting('synchronous_standby_names') <> ''
"""
NODES = """
SELECT result FROM run_command_on_all_nodes('SELECT system_identifier FROM pg_control_system()', give_warning_for_connection_errors => true)
"""
KNOWN = "SELECT system, database, relation, timeline, beats FROM house FOR UPDATE"
MOVE = "UPDATE house SET system = %s, database = %s, relation = %s, timeline = %s, beats = %s"


@attrs.frozen
class Place:
    """Where a database is. `system` None: it has not been used yet. `moves`: it is a cell, which moves between nodes of one cluster."""

    system: str | None
    database: int | None
    relation: int | None
    timeline: int | None
    moves: bool = False

    @property
    def home(self) -> tuple[object, ...]:
        return self.system, None if self.moves else self.database, self.relation


@attrs.frozen
class Marker:
    """How far a database had advanced. `synchronous`: its commits waited for a standby."""

    system: str
    database: int
    beats: int
    synchronous: bool = False


def judge(known: Place, here: Place, beats: int, seen: Marker | None) -> str | None:
    """Why this is a restored database; None if it is not."""
    if known.system is None:
        return None
    if known.home != here.home:
        return DUMP
    matches = seen is not None and seen.system == here.system and (here.moves or seen.database == here.database)
    if seen is not None and matches and beats < seen.beats:
        return SET_BACK
    if known.timeline == here.timeline or (here.moves and known.database != here.database):  # each node has a timeline of its own
        return None
    if seen is None or not matches:
        return RECOVERED
    return None if seen.synchronous else TAKEN_OVER


Advance = Callable[[Transaction], Awaitable[tuple[str | None, Marker, int | None]]]


@attrs.define(eq=False)
class RestoreGuard:
    """Guards one database. Call `check` at start and every few seconds, and give `admit` to the pool.

    `on_hold` is called when all mail was held.
    """

    log = Logger()

    pool: Pool
    file: Path | None
    region: str
    on_hold: Callable[[], None] = lambda: None
    _seen: Marker | None = attrs.field(default=None, init=False)
    _timeline: int | None = attrs.field(default=None, init=False)
    _noticed: str | None = attrs.field(default=None, init=False)  # by `admit`, since the last check

    @property
    def _in_cell(self) -> bool:
        return cell_of(self.pool.dsn) is not None

    @property
    def _here(self) -> str:
        return HERE_IN_CELL if self._in_cell else HERE

    async def admit(self, connection: Connection) -> None:
        """Judge a server that took over while this process was running, before any mail is claimed from it."""
        if self._timeline is not None:
            [(*_, timeline, _)] = (await connection.execute(self._here)).rows
            if timeline != self._timeline:
                self._noticed = await self._judge(lambda advance: self.pool.transact_on(connection, advance)) or self._noticed

    async def check(self, *, remember: bool = True) -> str | None:
        """Hold all mail if this is a restored database, and return why. `remember`: write the restore marker."""
        why = await self._judge(self.pool.transact)
        if remember and self._seen is not None:
            self._write(self._seen)
        noticed, self._noticed = self._noticed, None
        return why or noticed

    async def _judge(self, transact: Callable[[Advance], Awaitable[tuple[str | None, Marker, int | None]]]) -> str | None:
        seen = self._seen or self._read()

        async def advance(tx: Transaction) -> tuple[str | None, Marker, int | None]:
            [(*last, beats)] = await tx.rows(KNOWN)
            [(*place, synchronous)] = await tx.rows(self._here)
            known, here = (attrs.evolve(Place(*each), moves=self._in_cell) for each in (last, place))
            moved = self._in_cell and known.database not in (None, here.database)
            why = judge(known, here, beats, seen) if not moved or (str(known.database),) in await tx.rows(NODES) else DUMP
            if why is not None:
                await holds.hold_everything(tx, REASON, self.region)
            if why == SET_BACK and seen is not None:
                beats = seen.beats + LEAP
            await tx.run(MOVE, (*place, beats + 1))
            assert here.system is not None and here.database is not None
            return why, Marker(here.system, here.database, beats + 1, synchronous), here.timeline

        why, self._seen, self._timeline = await transact(advance)
        if why is not None:
            self.log.warn("this database was restored: {why} All mail is on hold until `mailsvc queue release`", why=why)
            self.on_hold()
        return why

    def _read(self) -> Marker | None:
        try:
            given = None if self.file is None else json.loads(self.file.read_text())
            if not isinstance(given, Mapping):
                return None
            return Marker(str(given["system"]), int(given["database"]), int(given["beats"]), bool(given.get("synchronous")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.log.warn("the restore marker {path} cannot be read: {error}", path=str(self.file), error=str(error))
            return None

    def _write(self, seen: Marker) -> None:
        """Replace the file atomically. If that fails, what was found about the database counts all the same."""
        if self.file is None:
            return
        temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(attrs.asdict(seen)) + "\n")
            temporary.replace(self.file)
        except OSError as error:
            self.log.error("the restore marker {path} cannot be written: {error}", path=str(self.file), error=error.strerror)
