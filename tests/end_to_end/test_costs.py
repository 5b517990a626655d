"""What an email costs, counted and not timed: statements, commits, turns of the reactor, entries of indexes read, memory that it keeps.

The bounds leave room for a busy machine, where less is shared: two to four times what was counted on one, more for entries.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import psycopg2
import pytest_twisted
from twisted.internet.threads import deferToThread

from mailsvc.runtime.lifecycle import Opened
from mailsvc.settings import loading
from mailsvc.tap import Daemon
from tests.bench import load
from tests.end_to_end import rig
from tests.end_to_end.sink import Sink

EMAILS = 400
INDEXES = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'queue'"
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


@attrs.define
class Counts:
    """By email."""

    statements: float = 0.0
    commits: float = 0.0
    turns: float = 0.0
    entries: float = 0.0
    kept: float = 0.0  # allocations that are still there when it is over


@contextmanager
def counted(daemon: Daemon, dsn: str) -> Iterator[Counts]:
    """What happens meanwhile, once it is over."""
    counts, turn, turns = Counts(), daemon.reactor.runUntilCurrent, 0

    def one_more() -> None:
        nonlocal turns
        turns += 1
        turn()

    gc.collect()
    before = daemon.pool.statements, query(dsn, COMMITS), query(dsn, INDEXES)
    blocks = sys.getallocatedblocks()
    daemon.reactor.runUntilCurrent = one_more
    try:
        yield counts
    finally:
        del daemon.reactor.runUntilCurrent
    gc.collect()
    counts.kept = (sys.getallocatedblocks() - blocks) / EMAILS
    counts.turns = turns / EMAILS
    counts.statements = (daemon.pool.statements - before[0]) / EMAILS
    counts.commits = (query(dsn, COMMITS) - before[1]) / EMAILS
    counts.entries = (query(dsn, INDEXES) - before[2]) / EMAILS


def query(dsn: str, sql: str) -> int:
    link = psycopg2.connect(dsn)
    link.autocommit = True
    try:
        with link.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
            cursor.execute(sql)
            return int(cursor.fetchone()[0] or 0)
    finally:
        link.close()


@pytest_twisted.ensureDeferred
async def test_an_email_costs_little(tmp_path: Path, database: str) -> None:
    from twisted.internet import reactor

    sink = Sink(rig.free_port())
    sink.start()
    outside = rig.Daemon(tmp_path, database, {"delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}}})
    outside.write()
    opened = Opened()
    daemon = Daemon(reactor, loading.load(outside.config), opened)
    try:
        await daemon.start()
        link = psycopg2.connect(database)
        with link, link.cursor() as cursor:
            cursor.execute("ANALYZE queue")  # what is known of it, when the emails come, is that it is empty
        link.close()
        for name, per_call, connections, most in (
            ("single", 1, 32, Counts(statements=1.2, commits=1.6, turns=6.0, entries=12.0, kept=70.0)),
            ("batch", 100, 4, Counts(statements=1.0, commits=1.0, turns=6.0, entries=12.0, kept=30.0)),
        ):
            sink.received.clear()
            with counted(daemon, database) as counts:
                await deferToThread(send, outside, sink, per_call, connections)
            for field in attrs.fields(Counts):
                assert getattr(counts, field.name) <= getattr(most, field.name), (name, counts)
    finally:
        await opened.close()
        await deferToThread(sink.stop)


def send(outside: rig.Daemon, sink: Sink, per_call: int, connections: int) -> None:
    """Everything, until it has arrived."""
    facts: Any = outside.facts
    load.run(
        outside.port,
        str(facts["api_key"]),
        f"costs@{facts['domain']}",
        emails=EMAILS,
        per_call=per_call,
        connections=connections,
        size=4096,
        first=0,
    )
    sink.wait_until(lambda mails: len(mails) == EMAILS, 60)
