"""Running processes and their leases.

The ID of a process's row is the fencing number of all its leases. It sends a heartbeat every 10 s. A process that has been silent for
45 s is marked as ended by the others and loses its leases in the same transaction. A process that could not send a heartbeat for 30 s
stops using its leases well before that. This relies on the database's clock and the process's monotonic clock only, so that wrong wall
clocks do not matter.
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
from mailsvc.store.queue.claims_sql import REGION_NOW
from mailsvc.store.sql import Columns

HEARTBEAT = 10.0  # seconds between two heartbeats; runtime/polling has the loop
FRESH = 30.0
SILENT = 45.0
NEVER = 1e9
CHANNEL = "processes"
RETENTION = "7 days"  # for rows of ended processes

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
SAME_HOST = "SELECT id, pid FROM processes WHERE ended_at IS NULL AND host = %s AND id <> %s"
END = """
    UPDATE processes SET ended_at = clock_timestamp()
    WHERE ended_at IS NULL AND (id = ANY (%s::bigint[]) OR heartbeat_at < clock_timestamp() - make_interval(secs => %s))
"""
# Of all ended processes, not only those ended just now: a commit that was in progress then may have come later. Older
# releases stored destinations with a lease that do not fit into the index queue_ready: such mail waits under its domain.
FREE = f"""
    UPDATE queue q SET lease = NULL, region = {REGION_NOW},
        destination = CASE WHEN length(destination) > 2000 THEN rtrim(lower(regexp_replace(address, '^.*@', '')), '.') ELSE destination END
    FROM (
        SELECT email_id, recipient FROM queue WHERE lease IS NOT NULL AND lease IN (SELECT id FROM processes WHERE ended_at IS NOT NULL)
        ORDER BY email_id, recipient FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE q.email_id = found.email_id AND q.recipient = found.recipient
"""  # noqa: S608
SWEEP = f"""
    DELETE FROM processes WHERE ended_at < clock_timestamp() - interval '{RETENTION}'
    AND NOT EXISTS (SELECT FROM queue WHERE lease = processes.id)
"""  # noqa: S608

_RUNNING = Columns.of(
    id="id",
    host="host",
    pid="pid",
    region="region",
    roles="roles",
    version="coalesce(version, '')",
    keys="coalesce(seal_keys, '{}')",
    started_at="started_at",
    silent="extract(epoch FROM clock_timestamp() - heartbeat_at)::float8",
)
RUNNING = f"""
    SELECT {_RUNNING} FROM processes
    WHERE ended_at IS NULL AND heartbeat_at > clock_timestamp() - make_interval(secs => %s) ORDER BY id
"""

_own_ids: set[int] = set()  # of this process


@attrs.frozen
class Running:
    """A live process, as registered. Old releases record neither `version` nor `keys`. `silent`: seconds since its last heartbeat."""

    id: int
    host: str
    pid: int
    region: str
    roles: Sequence[str]
    version: str
    keys: Sequence[str]
    started_at: datetime
    silent: float = 0.0

    @property
    def machine(self) -> str:
        return self.host.split()[0]


async def running(pool: Pool) -> list[Running]:
    """Processes with a recent heartbeat."""
    return [Running(**_RUNNING.read(row)) for row in await pool.rows(RUNNING, (SILENT,))]


async def delivering(pool: Pool) -> list[str]:
    """Regions with a process that delivers mail."""
    return sorted({each.region for each in await running(pool) if "delivery" in each.roles})


@attrs.define(eq=False)
class ProcessRegistration:
    """This process's row, and the leases that go with it.

    `on_replaced(old, new)` is called when others had marked this process as ended: its leases are gone, and it continues under a new ID.
    `on_freed(count)` is called when leases of other processes were freed, so that there is mail to claim.
    """

    log = Logger()

    pool: Pool
    clock: Any
    on_replaced: Callable[[int, int], None] = lambda old, new: None
    on_freed: Callable[[int], None] = lambda count: None
    monotonic: Callable[[], float] = since_boot
    version: str | None = None
    keys: Sequence[str] = ()  # fingerprints of its encryption keys
    region: str = attrs.field(default="", init=False)
    roles: tuple[str, ...] = attrs.field(default=(), init=False)
    _id: int | None = attrs.field(default=None, init=False)
    _beaten_at: float = attrs.field(default=float("-inf"), init=False)
    _live: dict[str, tuple[int, int]] = attrs.field(factory=dict, init=False)

    async def start(self, region: str, roles: Iterable[str]) -> int:
        """Register this process and end dead ones. Returns the ID, which is stored in `lease`. Call `renew` regularly from then on."""
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
        """Whether the last heartbeat is recent enough that nobody can have taken the leases."""
        return self.monotonic() - self._beaten_at < FRESH

    async def late(self) -> str | None:
        """The same for /readyz."""
        return None if self.fresh else "the heartbeat could not be written"

    def holds(self, lease: int) -> bool:
        """Whether this lease may still be used."""
        return lease == self._id and self.fresh

    def live(self, role: str) -> int:
        """How many processes have this role, as of the last heartbeat or arrival; includes this one."""
        return max(self._live.get(role, (0, 0))[0], int(role in self.roles))

    def peers(self, role: str) -> int:
        """The same for this region only."""
        return max(self._live.get(role, (0, 0))[1], int(role in self.roles))

    async def renew(self) -> None:
        """What is due every HEARTBEAT seconds: send a heartbeat, end dead processes and count the live ones."""
        await self.beat()
        await self.take_over()
        await self.count_live()

    async def beat(self) -> None:
        """Send a heartbeat. If this process was marked as ended, register it again."""
        begun = self.monotonic()
        if await measure(self.clock, self._write_beat) is not None:
            self._beaten_at = begun  # when the heartbeat was sent, not when it was confirmed
            return
        old = self.id
        await self._begin()
        self.log.warn("other processes ended process {old} because it was silent; it continues as {new}", old=old, new=self.id)
        self.on_replaced(old, self.id)

    async def _write_beat(self) -> float | None:
        """The database's time of the heartbeat; None if others ended this process."""
        beaten = await self.pool.rows(BEAT_SQL, (self.id,))
        return float(beaten[0][0]) if beaten else None

    async def announce_keys(self, keys: Sequence[str]) -> None:
        """Record which encryption keys this process has, if they have changed."""
        if tuple(keys) != tuple(self.keys):
            await self.pool.run(KEYS, (list(keys), self.id))
            self.keys = tuple(keys)

    async def take_over(self) -> int:
        """End dead and silent processes and free their leases. Returns the number of leases.

        After a step of the database's clock all processes look silent, so none is ended until they could send another heartbeat.
        """
        calm = calm_for(self.clock) >= SILENT

        async def work(transaction: Transaction) -> tuple[int, int]:
            candidates = await transaction.rows(SAME_HOST, (_host(), self._id or 0))
            dead = [number for number, pid in candidates if _is_dead(number, pid)]
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
        """End this process and free its leases. Nothing may be in progress any more."""
        number, self._id, self._beaten_at = self.id, None, float("-inf")

        async def work(transaction: Transaction) -> None:
            await transaction.run("UPDATE processes SET ended_at = clock_timestamp() WHERE id = %s AND ended_at IS NULL", (number,))
            await transaction.run(FREE)

        await self.pool.transact(work)
        _own_ids.discard(number)

    def announce(self, notifications: Notifications) -> None:
        """Notify other processes of this one and recount when others arrive, so that shared limits are divided again at once."""
        notifications.listen(CHANNEL, self._recount)
        notifications.notify(CHANNEL)

    def _recount(self) -> None:
        if self._id is not None:
            counting = Deferred.fromCoroutine(self.count_live())
            counting.addErrback(
                lambda failure: self.log.info("counting processes failed until the next heartbeat: {error}", error=failure.value)
            )

    async def _begin(self) -> None:
        begun = self.monotonic()
        [(number,)] = await self.pool.rows(START, (_host(), os.getpid(), self.region, list(self.roles), self.version, list(self.keys)))
        _own_ids.add(number)
        self._id, self._beaten_at = number, begun

    async def count_live(self) -> None:
        """Count the live processes by role."""
        self._live = {role: (everywhere, here) for role, everywhere, here in await self.pool.rows(LIVE, (self.region, SILENT))}


def _host() -> str:
    """Identifies this machine, its boot and its process ID namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        numbers = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()} {boot}/{numbers}"


def _is_dead(number: int, pid: int) -> bool:
    """Whether a process of this host certainly no longer exists. Without /proc, only silence can tell."""
    if " " not in _host() or number in _own_ids:
        return False
    if pid == os.getpid():
        return True  # it had this process ID before
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
