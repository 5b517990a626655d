"""`mailsvc upgrade`: bring the database to this release, or say what that would do."""

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
@click.option("--check", is_flag=True, help="Only say what would happen; exit status 1 when this release does not fit the database.")
@click.pass_obj
def upgrade(settings: Settings, check: bool) -> None:
    """Apply the migrations of this release that are missing. Old and new processes may go on running."""

    async def tell(database: Database, reactor: Any) -> None:
        plan = await upgrade_check.plan(database.pool)
        for line in _told(plan):
            click.echo(line)
        if plan.needs is not None:
            raise SystemExit(1)

    async def done(database: Database, reactor: Any) -> None:
        click.echo(f"The database has the schema of {__version__}.")

    run_with_database(settings, tell, migrating=False) if check else run_with_database(settings, done)


def _told(plan: Plan) -> list[str]:
    lines = [f"This is mailsvc {__version__}; {len(plan.pending)} migrations are missing."]
    for each in plan.pending:
        lines.append(f"{each.name}: {each.summary}")
        lines += [f"    {what} {table} ({_size(octets)})" for what, table, octets in each.locks]
    if plan.newer:
        lines.append(f"A newer release has been here, with {', '.join(plan.newer)}.")
        lines.append(f"This one is too old: it lacks {plan.needs}." if plan.needs else "It only added something: this one may run.")
    lines.append(f"{plan.waiting} recipients wait; they go on waiting, and are delivered afterwards.")
    for process in plan.running:
        lines.append(f"Process {process.pid} on {process.machine} runs {process.version or 'an older release'} ({process.roles}).")
    return lines


def _size(octets: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if octets >= size:
            return f"{octets / size:.1f} {unit}"
    return f"{octets} octets"
