"""`mailsvc import`: the command, and what it prints. The formats of other services: importing/formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from mailsvc.accounts.onboarding import Customers, Refused
from mailsvc.cli.importing import reading
from mailsvc.cli.importing.formats import FORMATS
from mailsvc.cli.importing.records import Export, Wrong
from mailsvc.cli.importing.writing import Count, Destination
from mailsvc.cli.output import ACCOUNT, AS_JSON, ExistingFile, note, print_json
from mailsvc.cli.runner import run_with_database
from mailsvc.clock import unix
from mailsvc.runtime.database import Database
from mailsvc.settings.schema import Settings
from mailsvc.store.audience.contacts import Contacts
from mailsvc.store.audience.imports import Imports
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.audience.segments import Segments
from mailsvc.store.audience.values import Full, Limits
from mailsvc.store.events.suppressions import Suppressions
from mailsvc.store.people.accounts import Account
from mailsvc.store.people.audit import by_operator, write

SHOWN = 20  # wrong rows


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=ExistingFile())
@ACCOUNT
@click.option("--from", "service", required=True, type=click.Choice(list(FORMATS)), help="The service that the files are from.")
@click.option("--dry-run", is_flag=True, help="Only say what would be imported.")
@click.option("--update", is_flag=True, help="Overwrite the names of contacts that the account has already.")
@click.option("--region", help="The region that domains send from. Default: the account's home region, otherwise the setting region.")
@AS_JSON
@click.pass_obj
def import_(
    settings: Settings, files: Sequence[Path], account: str, service: str, dry_run: bool, update: bool, region: str | None, as_json: bool
) -> None:
    """Import suppressions, contacts, segments and domains from files of another service: JSON as its API answers, or CSV."""

    async def work(database: Database, reactor: Any) -> None:
        export = _read(files, service)
        customers = Customers.of(database, reactor, settings)
        owner = await customers.account(account)
        where = await customers.region_for(owner.id, region)
        target = _destination(settings, database, reactor, owner, where, customers)
        counts = await target.counts(export)
        if not dry_run:
            what = ", ".join(f"{each.given} {each.kind}" for each in counts if each.given)
            line = by_operator(owner.id, "data of another service imported", f"{what or 'nothing'} from {service}")
            await database.pool.transact(lambda tx: write(tx, [line], unix(reactor)))
            for refused in await _stored(target, export, service, update):
                note(refused)
        _report(counts, export.wrong, dry_run, as_json)

    run_with_database(settings, work)


def _destination(settings: Settings, database: Database, reactor: Any, owner: Account, region: str, customers: Customers) -> Destination:
    pool, most = database.pool, settings.audience
    keys, limits = AudienceKeys(pool, database.encryption), Limits(most.name, most.value)
    suppressions, contacts = Suppressions(pool, reactor, database.hashes), Contacts(pool, reactor, keys, limits)
    segments, imports = Segments(pool, reactor, most.segments), Imports(pool, reactor, most.import_errors, most.imports)
    return Destination(owner, region, pool, reactor, customers, suppressions, contacts, segments, imports)


async def _stored(target: Destination, export: Export, service: str, update: bool) -> Sequence[str]:
    try:
        return await target.store(export, service, update)
    except Full as full:
        raise Refused(f"An account can have at most {full.most} {full.kind}. What was imported so far stays.") from None


def _read(files: Sequence[Path], service: str) -> Export:
    export = Export()
    for path in files:
        if path.stat().st_size > reading.LONGEST:
            raise Refused(f"{path} is larger than {reading.LONGEST >> 20} MB. Split it.")
        try:
            reading.read(export, service, path.name, path.read_bytes())
        except reading.NotRead as wrong:
            raise Refused(str(wrong)) from None
    return export


def _report(counts: Sequence[Count], wrong: Sequence[Wrong], dry_run: bool, as_json: bool) -> None:
    if as_json:
        numbers: dict[str, object] = {each.kind: {"given": each.given, "new": each.new} for each in counts}
        print_json({"dry_run": dry_run, **numbers, "wrong": [attrs.asdict(each) for each in wrong]})
        return
    for each in counts:
        click.echo(f"{each.kind:12}  {each.given} in the files, {each.new} new, {each.given - each.new} there already")
    if wrong:
        note(f"{len(wrong)} row{' is' if len(wrong) == 1 else 's are'} wrong and left out:")
        for one in wrong[:SHOWN]:
            note(str(one))
        if len(wrong) > SHOWN:
            note(f"… and {len(wrong) - SHOWN} more. --json lists all of them.")
    if dry_run:
        note("Nothing was changed: --dry-run.")
