"""A running process and its claim to its leases.

Its row's id is the fencing number of all leases that it takes. It says every 10 s that it lives; whoever is silent for
45 s is marked as ended by the others, and loses its leases in the same transaction. A process that could not say so for
30 s stops by itself to act on its leases, well before others do. All of this goes by the database's clock and by
the process's monotonic one, so that wrong wall clocks do not matter.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.clock import calm_for, measure
from mailsvc.clock import monotonic as since_boot
from mailsvc.store.postgres.notifications import Notifications
from mailsvc.store.postgres.pool import Pool, Transaction

HEARTBEAT = 10.0  # seconds between two heartbeats; runtime/polling has the loop
FRESH = 30.0
SILENT = 45.0
NEVER = 1e9
CHANNEL = "processes"
KEPT = "7 days"  # how long a row is kept after its process ended

START = "INSERT INTO processes (host, pid, region, roles, version, seal_keys) VALUES (%s, %s, %s, %s, %s, %s) RETURNING id"
KEYS = "UPDATE processes SET seal_keys = %s WHERE id = %s"
BEAT_SQL = """
    UPDATE processes SET heartbeat_at = clock_timestamp() WHERE id = %s AND ended_at IS NULL
    RETURNING extract(epoch FROM heartbeat_at)::float8
"""
LIVE = """
    SELECT role, count(*), count(*) FILTER (WHERE region = %s) FROM processes, unnest(roles) AS role
    WHERE ended_at IS NULL AND heartbeat_at > clock_timestamp() - make_interval(secs => %s) GROUP BY role
"""
NEIGHBOURS = "SELECT id, pid FROM processes WHERE ended_at IS NULL AND host = %s AND id <> %s"
END = """
    UPDATE processes SET ended_at = clock_timestamp()
    WHERE ended_at IS NULL AND (id = ANY (%s::bigint[]) OR heartbeat_at < clock_timestamp() - make_interval(secs => %s))
"""
# Every ended process, not only those of this turn: a commit of one that was under way then may have come after.
FREE = """
    UPDATE queue SET lease = NULL
    FROM (
        SELECT email_id, recipient FROM queue WHERE lease IS NOT NULL AND lease IN (SELECT id FROM processes WHERE ended_at IS NOT NULL)
        ORDER BY email_id, recipient FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE queue.email_id = found.email_id AND queue.recipient = found.recipient
"""
SWEEP = f"""
    DELETE FROM processes WHERE ended_at < clock_timestamp() - interval '{KEPT}'
    AND NOT EXISTS (SELECT FROM queue WHERE lease = processes.id)
"""  # noqa: S608

RUNNING = """
    SELECT id, host, pid, region, roles, coalesce(version, ''), coalesce(seal_keys, '{}'), started_at FROM processes
    WHERE ended_at IS NULL AND heartbeat_at > clock_timestamp() - make_interval(secs => %s) ORDER BY id
"""

_ours: set[int] = set()  # ids of this very process


@attrs.frozen
class Running:
    """A process that lives, as it told of itself. `version` is empty and `keys` are none in releases that did not tell."""

    id: int
    host: str
    pid: int
    region: str
    roles: Sequence[str]
    version: str
    keys: Sequence[str]
    started_at: datetime

    @property
    def machine(self) -> str:
        return self.host.split()[0]


async def running(pool: Pool) -> list[Running]:
    """Those whose heartbeat was heard lately."""
    return [Running(*row) for row in await pool.rows(RUNNING, (SILENT,))]


@attrs.define(eq=False)
class ProcessRegistration:
    """
    `on_replaced(old, new)`: others had marked us as ended, so all leases are gone; the new id begins with none.
    `on_freed(count)`: leases of others became free, so there is something to claim.
    """

    log = Logger()

    pool: Pool
    clock: Any
    on_replaced: Callable[[int, int], None] = lambda old, new: None
    on_freed: Callable[[int], None] = lambda count: None
    monotonic: Callable[[], float] = since_boot
    version: str | None = None
    keys: Sequence[str] = ()  # fingerprints of what it encrypts and opens with
    region: str = attrs.field(default="", init=False)
    roles: tuple[str, ...] = attrs.field(default=(), init=False)
    _id: int | None = attrs.field(default=None, init=False)
    _beaten_at: float = attrs.field(default=float("-inf"), init=False)
    _live: dict[str, tuple[int, int]] = attrs.field(factory=dict, init=False)

    async def start(self, region: str, roles: Iterable[str]) -> int:
        """Make the row, end those that are dead, and go on beating. The id is what `lease` holds."""
        self.region, self.roles = region, tuple(roles)
        await self._begin()
        await self.take_over()
        await self.count_live()
        return self.id

    @property
    def id(self) -> int:
        if self._id is None:
            raise RuntimeError("The process has not been registered.")
        return self._id

    @property
    def fresh(self) -> bool:
        """Whether our own last beat is young enough that nobody can have taken our leases."""
        return self.monotonic() - self._beaten_at < FRESH

    def holds(self, lease: int) -> bool:
        """Whether what was leased under this number may still be acted on."""
        return lease == self._id and self.fresh

    def live(self, role: str) -> int:
        """How many processes have this role now, as of the last beat or arrival; at least ourselves, if we have it."""
        return max(self._live.get(role, (0, 0))[0], int(role in self.roles))

    def peers(self, role: str) -> int:
        """The same, of this region alone."""
        return max(self._live.get(role, (0, 0))[1], int(role in self.roles))

    async def renew(self) -> None:
        """What is due every HEARTBEAT seconds: send a heartbeat, end dead processes and count the live ones."""
        await self.beat()
        await self.take_over()
        await self.count_live()

    async def beat(self) -> None:
        """Say that we live. Who was marked as ended begins anew."""
        begun = self.monotonic()
        if await measure(self.clock, self._write_beat) is not None:
            self._beaten_at = begun  # when the beat left, not when its answer came
            return
        old = self.id
        await self._begin()
        self.log.warn("others ended process {old}, which was silent; it goes on as {new}", old=old, new=self.id)
        self.on_replaced(old, self.id)

    async def _write_beat(self) -> float | None:
        """The database's time of the heartbeat; None if others ended this process."""
        beaten = await self.pool.rows(BEAT_SQL, (self.id,))
        return float(beaten[0][0]) if beaten else None

    async def announce_keys(self, keys: Sequence[str]) -> None:
        """Tell others which keys this process has, when they are others than before."""
        if tuple(keys) != tuple(self.keys):
            await self.pool.run(KEYS, (list(keys), self.id))
            self.keys = tuple(keys)

    async def take_over(self) -> int:
        """End the processes that are dead or silent and free their leases; how many.

        After a step of the database's clock everyone looks silent, until they have had the time for another heartbeat.
        """
        calm = calm_for(self.clock) >= SILENT

        async def work(transaction: Transaction) -> tuple[int, int]:
            neighbours = await transaction.rows(NEIGHBOURS, (_host(), self._id or 0))
            dead = [number for number, pid in neighbours if _is_dead(number, pid)]
            ended = await transaction.run(END, (dead, SILENT if calm else NEVER))
            freed = await transaction.run(FREE)
            if calm:
                await transaction.run(SWEEP)
            return ended, freed

        ended, freed = await self.pool.transact(work)
        if freed:
            self.log.info("freed {freed} leases of processes that ended", freed=freed, ended=ended)
            self.on_freed(freed)
        return freed

    async def end(self) -> None:
        """Give all leases back; nothing of ours is under way any more."""
        number, self._id, self._beaten_at = self.id, None, float("-inf")

        async def work(transaction: Transaction) -> None:
            await transaction.run("UPDATE processes SET ended_at = clock_timestamp() WHERE id = %s AND ended_at IS NULL", (number,))
            await transaction.run(FREE)

        await self.pool.transact(work)
        _ours.discard(number)

    def announce(self, notifications: Notifications) -> None:
        """Tell the others that we are here, and hear of those who come: who shares something divides it anew at once."""
        notifications.listen(CHANNEL, self._recount)
        notifications.notify(CHANNEL)

    def _recount(self) -> None:
        if self._id is not None:
            counting = Deferred.fromCoroutine(self.count_live())
            counting.addErrback(lambda failure: self.log.info("processes are counted at the next beat: {error}", error=failure.value))

    async def _begin(self) -> None:
        begun = self.monotonic()
        [(number,)] = await self.pool.rows(START, (_host(), os.getpid(), self.region, list(self.roles), self.version, list(self.keys)))
        _ours.add(number)
        self._id, self._beaten_at = number, begun

    async def count_live(self) -> None:
        """See who lives now."""
        self._live = {role: (everywhere, here) for role, everywhere, here in await self.pool.rows(LIVE, (self.region, SILENT))}


def _host() -> str:
    """This machine since it was booted and, within it, who sees the same process numbers as we do."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        numbers = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()} {boot}/{numbers}"


def _is_dead(number: int, pid: int) -> bool:
    """Whether a process of `_host` surely is no more. Without /proc, only its silence tells."""
    if " " not in _host() or number in _ours:
        return False
    if pid == os.getpid():
        return True  # it had our number before us
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
