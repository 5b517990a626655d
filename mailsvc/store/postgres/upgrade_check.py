"""A report of what an upgrade would do to a database: missing migrations, what they block and how long, the queue, running processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

import attrs

from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.processes import SILENT

APPLIED = "SELECT migration_id FROM _yoyo_migration"
NEEDS = "SELECT needs FROM house"
# Of a partitioned table, all partitions. Without indexes, because none of the steps reads them.
SIZES = """
SELECT name, (SELECT coalesce(sum(pg_table_size(relid)), 0)::bigint FROM pg_partition_tree(to_regclass(name)))
FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NOT NULL
"""
WAITING = "SELECT count(*) FROM queue"
# Old releases have no column `version`.
RUNNING = """
SELECT split_part(host, ' ', 1), pid, coalesce(to_jsonb(p) ->> 'version', ''), array_to_string(roles, ', ') FROM processes p
WHERE ended_at IS NULL AND heartbeat_at > clock_timestamp() - make_interval(secs => %s) ORDER BY id
"""
_THERE = "SELECT to_regclass(%s) IS NOT NULL"

# Statements that lock a table that may be large, what others cannot do meanwhile, and how many bytes of the table they read in a second
# (None: the size does not matter). The speeds are a tenth to a half of what two shared cores did with a cached table.
_MB = 1 << 20
_LOCKS = (
    ("alters", "reads and writes", None, re.compile(r"\bALTER TABLE(?: IF EXISTS| ONLY)* (\w+)", re.I)),
    (
        "checks all rows of",
        "reads and writes",
        200 * _MB,
        re.compile(r"\bALTER TABLE(?: IF EXISTS| ONLY)* (\w+)(?=[^;]*\b(?:ADD CONSTRAINT|SET NOT NULL))", re.I),
    ),
    ("drops", "reads and writes", None, re.compile(r"\bDROP TABLE(?: IF EXISTS)? (\w+)", re.I)),
    ("indexes", "writes", 50 * _MB, re.compile(r"\bCREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)(?:IF NOT EXISTS )?\w+ ON (\w+)", re.I)),
    ("rewrites rows of", "changes of these rows", 10 * _MB, re.compile(r"\b(?:UPDATE|DELETE FROM) (\w+)", re.I)),
)


@attrs.frozen
class Step:
    """What a migration does to an existing table of `size` bytes, what it blocks meanwhile, and an estimate of how long that takes."""

    does: str
    table: str
    size: int
    blocks: str
    seconds: float


@attrs.frozen
class Pending:
    """A missing migration."""

    name: str
    summary: str
    steps: tuple[Step, ...]


@attrs.frozen
class LiveProcess:
    """A running process. `version` is empty for old releases, which did not record it."""

    machine: str
    pid: int
    version: str
    roles: str


@attrs.frozen
class Plan:
    """`applied`: whether any migration is; otherwise, the database is new. `newer`: migrations unknown to this release. `needs`: one of
    them that makes this release incompatible; None: compatible.
    """

    applied: bool
    pending: tuple[Pending, ...]
    newer: tuple[str, ...]
    needs: str | None
    waiting: int
    running: tuple[LiveProcess, ...]


async def plan(pool: Pool) -> Plan:
    """Read only."""
    known = migrations()
    applied = {name for (name,) in await pool.rows(APPLIED)} if await _exists(pool, "_yoyo_migration") else set()
    pending = [(name, text) for name, text in known.items() if name not in applied]
    tables = {table for _, text in pending for _, table in touched(text)}
    sizes: dict[str, int] = dict(await pool.rows(SIZES, (sorted(tables),)))
    needs = await pool.rows(NEEDS) if await _exists(pool, "house") else []
    waiting = await pool.rows(WAITING) if await _exists(pool, "queue") else [(0,)]
    running = await pool.rows(RUNNING, (SILENT,)) if await _exists(pool, "processes") else []
    return Plan(
        bool(applied),
        tuple(
            Pending(name, summary(text), tuple(_step(what, t, sizes[t]) for what, t in touched(text) if t in sizes))
            for name, text in pending
        ),
        tuple(sorted(applied - set(known))),
        next((name for (name,) in needs if name is not None and name not in known), None),
        waiting[0][0],
        tuple(LiveProcess(*row) for row in running),
    )


def migrations() -> Mapping[str, str]:
    """The migrations of this release by name, in order."""
    folder = resources.files("mailsvc.store") / "migrations"
    found: Iterable[tuple[str, str]] = ((each.name, each.read_text("utf-8")) for each in folder.iterdir() if each.name.endswith(".sql"))
    return {name.removesuffix(".sql"): text for name, text in sorted(found)}


def summary(text: str) -> str:
    """The first line of a migration, which says what it is for."""
    return text.partition("\n")[0].removeprefix("--").strip()


def touched(text: str) -> Sequence[tuple[str, str]]:
    """What a migration does to which tables, without duplicates, in order."""
    bare = re.sub(r"--[^\n]*", "", text)
    found = sorted((match.start(), what, match[1]) for what, _, _, pattern in _LOCKS for match in pattern.finditer(bare))
    return list(dict.fromkeys((what, table) for _, what, table in found))


def _step(what: str, table: str, size: int) -> Step:
    [(blocks, speed)] = [(blocks, speed) for does, blocks, speed, _ in _LOCKS if does == what]
    return Step(what, table, size, blocks, 0.0 if speed is None else size / speed)


async def _exists(pool: Pool, table: str) -> bool:
    return bool((await pool.rows(_THERE, (table,)))[0][0])
