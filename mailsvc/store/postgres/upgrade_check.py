"""What an upgrade would do to a database, told without doing it: migrations that are missing, what they lock, what waits, who runs."""

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
# Releases that did not tell have no such column.
RUNNING = """
SELECT split_part(host, ' ', 1), pid, coalesce(to_jsonb(p) ->> 'version', ''), array_to_string(roles, ', ') FROM processes p
WHERE ended_at IS NULL AND heartbeat_at > clock_timestamp() - make_interval(secs => %s) ORDER BY id
"""
_THERE = "SELECT to_regclass(%s) IS NOT NULL"

# Statements that keep others from a table that may be large: a short lock, or as long as an index is made.
_LOCKS = (
    ("alters", re.compile(r"\bALTER TABLE(?: IF EXISTS| ONLY)* (\w+)", re.I)),
    ("drops", re.compile(r"\bDROP TABLE(?: IF EXISTS)? (\w+)", re.I)),
    ("indexes", re.compile(r"\bCREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)(?:IF NOT EXISTS )?\w+ ON (\w+)", re.I)),
    ("rewrites rows of", re.compile(r"\b(?:UPDATE|DELETE FROM) (\w+)", re.I)),
)


@attrs.frozen
class Pending:
    """A migration that is missing. `locks`: what it does to tables that are there, with their size in octets."""

    name: str
    says: str
    locks: tuple[tuple[str, str, int], ...]


@attrs.frozen
class Runs:
    """A process that lives; `version` is empty in releases that did not tell."""

    machine: str
    pid: int
    version: str
    roles: str


@attrs.frozen
class Plan:
    """`newer`: migrations that this release does not know. `needs`: the one that it would have to know; None: it fits."""

    pending: tuple[Pending, ...]
    newer: tuple[str, ...]
    needs: str | None
    waiting: int
    running: tuple[Runs, ...]


async def plan(pool: Pool) -> Plan:
    """Reads, and changes nothing."""
    known = migrations()
    applied = {name for (name,) in await pool.rows(APPLIED)} if await _there(pool, "_yoyo_migration") else set()
    pending = [(name, text) for name, text in known.items() if name not in applied]
    tables = {table for _, text in pending for _, table in touched(text)}
    sizes: dict[str, int] = dict(await pool.rows(SIZES, (sorted(tables),)))
    needs = await pool.rows(NEEDS) if await _there(pool, "house") else []
    waiting = await pool.rows(WAITING) if await _there(pool, "queue") else [(0,)]
    running = await pool.rows(RUNNING, (SILENT,)) if await _there(pool, "processes") else []
    return Plan(
        tuple(Pending(name, says(text), tuple((what, t, sizes[t]) for what, t in touched(text) if t in sizes)) for name, text in pending),
        tuple(sorted(applied - set(known))),
        next((name for (name,) in needs if name is not None and name not in known), None),
        waiting[0][0],
        tuple(Runs(*row) for row in running),
    )


def migrations() -> Mapping[str, str]:
    """Those of this release, by name, in order."""
    folder = resources.files("mailsvc.store") / "migrations"
    found: Iterable[tuple[str, str]] = ((each.name, each.read_text("utf-8")) for each in folder.iterdir() if each.name.endswith(".sql"))
    return {name.removesuffix(".sql"): text for name, text in sorted(found)}


def says(text: str) -> str:
    """The first line of a migration, which tells what it is for."""
    return text.partition("\n")[0].removeprefix("--").strip()


def touched(text: str) -> Sequence[tuple[str, str]]:
    """What a migration does to which tables, each once, in its order."""
    bare = re.sub(r"--[^\n]*", "", text)
    found = sorted((match.start(), what, match[1]) for what, pattern in _LOCKS for match in pattern.finditer(bare))
    return list(dict.fromkeys((what, table) for _, what, table in found))


async def _there(pool: Pool, table: str) -> bool:
    return bool((await pool.rows(_THERE, (table,)))[0][0])
