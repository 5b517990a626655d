"""A report of what an upgrade would do to a database: missing migrations and their locks, the queue, and running processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

import attrs

from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.processes import SILENT

APPLIED = "SELECT migration_id FROM _yoyo_migration"
NEEDS = "SELECT needs FROM house"
SIZES = "SELECT name, pg_total_relation_size(to_regclass(name)) FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NOT NULL"
WAITING = "SELECT count(*) FROM queue"
# Old releases have no column `version`.
RUNNING = """
SELECT split_part(host, ' ', 1), pid, coalesce(to_jsonb(p) ->> 'version', ''), array_to_string(roles, ', ') FROM processes p
WHERE ended_at IS NULL AND heartbeat_at > clock_timestamp() - make_interval(secs => %s) ORDER BY id
"""
_THERE = "SELECT to_regclass(%s) IS NOT NULL"

# Statements that lock a table that may be large, either briefly or until an index is built.
_LOCKS = (
    ("alters", re.compile(r"\bALTER TABLE(?: IF EXISTS| ONLY)* (\w+)", re.I)),
    ("drops", re.compile(r"\bDROP TABLE(?: IF EXISTS)? (\w+)", re.I)),
    ("indexes", re.compile(r"\bCREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)(?:IF NOT EXISTS )?\w+ ON (\w+)", re.I)),
    ("rewrites rows of", re.compile(r"\b(?:UPDATE|DELETE FROM) (\w+)", re.I)),
)


@attrs.frozen
class Pending:
    """A missing migration. `locks`: what it does to existing tables, and their size in bytes."""

    name: str
    summary: str
    locks: tuple[tuple[str, str, int], ...]


@attrs.frozen
class LiveProcess:
    """A running process. `version` is empty for old releases, which did not record it."""

    machine: str
    pid: int
    version: str
    roles: str


@attrs.frozen
class Plan:
    """`newer`: migrations unknown to this release. `needs`: one of them that makes this release incompatible; None: compatible."""

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
        tuple(
            Pending(name, summary(text), tuple((what, t, sizes[t]) for what, t in touched(text) if t in sizes)) for name, text in pending
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
    found = sorted((match.start(), what, match[1]) for what, pattern in _LOCKS for match in pattern.finditer(bare))
    return list(dict.fromkeys((what, table) for _, what, table in found))


async def _exists(pool: Pool, table: str) -> bool:
    return bool((await pool.rows(_THERE, (table,)))[0][0])
