"""`mailsvc upgrade`: migrate the database to this release, or show what that would do."""

from __future__ import annotations

from typing import Any

import click

from mailsvc import __version__
from mailsvc.cli.runner import run_with_database
from mailsvc.runtime.database import Database
from mailsvc.settings.schema import Settings
from mailsvc.store.postgres import upgrade_check
from mailsvc.store.postgres.upgrade_check import Plan


@click.command()
@click.option("--check", is_flag=True, help="Only show what would happen. Exits with 1 if this release is too old for the database.")
@click.pass_obj
def upgrade(settings: Settings, check: bool) -> None:
    """Apply missing migrations. Old and new processes can keep running."""

    async def show(database: Database, reactor: Any) -> None:
        plan = await upgrade_check.plan(database.pool)
        for line in _lines(plan):
            click.echo(line)
        if plan.needs is not None:
            raise SystemExit(1)

    async def done(database: Database, reactor: Any) -> None:
        click.echo(f"The database has the schema of {__version__}.")

    run_with_database(settings, show, migrating=False) if check else run_with_database(settings, done)


def _lines(plan: Plan) -> list[str]:
    lines = [f"mailsvc {__version__}: {len(plan.pending)} migrations to apply."]
    for each in plan.pending:
        lines.append(f"{each.name}: {each.summary}")
        lines += [f"    {what} {table} ({_size(bytes_)})" for what, table, bytes_ in each.locks]
    if plan.newer:
        lines.append(f"The database was migrated by a newer release: {', '.join(plan.newer)}.")
        lines.append(
            f"This release is too old for it: it lacks {plan.needs}." if plan.needs else "Its changes are compatible: this release can run."
        )
    lines.append(f"{plan.waiting} recipients are queued; they stay queued and are delivered afterwards.")
    for process in plan.running:
        lines.append(f"Process {process.pid} on {process.machine} runs {process.version or 'an older release'} ({process.roles}).")
    return lines


def _size(bytes_: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if bytes_ >= size:
            return f"{bytes_ / size:.1f} {unit}"
    return f"{bytes_} bytes"
