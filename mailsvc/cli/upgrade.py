"""`mailsvc upgrade`: show what migrating the database to this release does and how long that takes, then do it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mailsvc import __version__
from mailsvc.cli.runner import start, with_database
from mailsvc.clock import monotonic
from mailsvc.runtime.database import Database
from mailsvc.settings import loading
from mailsvc.settings.schema import Settings
from mailsvc.store.postgres import upgrade_check
from mailsvc.store.postgres.upgrade_check import Pending, Plan, Step
from mailsvc.units import size

LONG = 1.0  # seconds from which on a lock is worth a number


@click.command()
@click.option("--check", is_flag=True, help="Only show what would happen. Exits with 1 if this release is too old for the database.")
@click.pass_context
def upgrade(context: click.Context, check: bool) -> None:
    """Apply missing migrations, after showing what they lock and for how long. Old and new processes can keep running."""
    settings: Settings = context.obj
    config: Path = context.find_root().params["config"]

    async def show(database: Database, reactor: Any) -> None:
        plan = await upgrade_check.plan(database.pool)
        for line in (*_lines(plan), *_renamed(config)):
            click.echo(line)
        if plan.needs is not None:
            raise SystemExit(1)

    async def done(database: Database, reactor: Any) -> None:
        """Opening the database has migrated it."""

    async def work(reactor: Any) -> None:
        await with_database(reactor, settings, show, migrating=False)
        if not check:
            began = monotonic()
            await with_database(reactor, settings, done)
            click.echo(f"The database has the schema of {__version__}. That took {monotonic() - began:.1f} seconds.")

    start(settings, work)


def _lines(plan: Plan) -> Iterator[str]:
    yield f"mailsvc {__version__}: {len(plan.pending)} migration{'' if len(plan.pending) == 1 else 's'} to apply."
    for each in plan.pending:
        yield f"{each.name}: {each.summary}"
        yield from (f"    {step.does} {step.table} ({size(step.size)}): blocks {step.blocks} {_duration(step)}" for step in each.steps)
    if plan.pending:
        yield _total(plan.pending)
    if plan.newer:
        yield f"The database was migrated by a newer release: {', '.join(plan.newer)}."
        yield (
            f"This release is too old for it: it lacks {plan.needs}." if plan.needs else "Its changes are compatible: this release can run."
        )
    yield f"{plan.waiting} recipients are queued; they stay queued and are delivered afterwards."
    for process in plan.running:
        yield f"Process {process.pid} on {process.machine} runs {process.version or 'an older release'} ({process.roles})."


def _renamed(config: Path) -> Iterator[str]:
    for old, new in loading.former_names(config):
        yield f"The setting {old} is now called {new}. The former name works in this release only."


def _total(pending: tuple[Pending, ...]) -> str:
    seconds = sum(step.seconds for each in pending for step in each.steps)
    took = "less than a minute" if seconds < 60 else f"about {_time(seconds)}"
    return f"This takes {took}, estimated from the sizes of the tables. A lock that is not free within 5 seconds is tried again, 3 times."


def _duration(step: Step) -> str:
    return f"for about {_time(step.seconds)}" if step.seconds >= LONG else "for a moment"


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"
