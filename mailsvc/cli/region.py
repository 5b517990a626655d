"""`mailsvc account region`: the home region of an account, and pinning it there. Moving a domain: cli/domain."""

from __future__ import annotations

import click

from mailsvc.accounts.onboarding import Refused, find_account
from mailsvc.cli.runner import run_with_database
from mailsvc.runtime.database import Database
from mailsvc.settings import regions
from mailsvc.settings.schema import Settings
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.audit import by_operator
from mailsvc.store.people.residence import RegionRefused, Residence, Residences


@click.command("region")
@click.argument("account")
@click.argument("region", required=False)
@click.option("--pin/--unpin", "pinned", default=None, help="Whether all domains of the account have to be in this region.")
@click.pass_obj
def account_region(settings: Settings, /, account: str, region: str | None, pinned: bool | None) -> None:
    """Set the home region of an account, where its new domains send from, or show it."""
    known = regions.all_regions(settings)
    if region is not None and region not in known:
        raise click.BadParameter(f"There is no region {region}. The regions are: {', '.join(known)}.")

    async def work(database: Database, reactor: object) -> None:
        owner = await find_account(Accounts(database.pool, reactor), account)
        stored = Residences(database.pool, reactor)
        before = await stored.of(owner.id)
        wanted = Residence(region or before.region, before.pinned if pinned is None else pinned)
        if wanted.pinned and wanted.region is None:
            raise Refused("Name the region to pin the account to.")
        if wanted != before:
            line = by_operator(owner.id, "home region changed", _sentence(wanted))
            try:
                await stored.set(owner.id, wanted, [line])
            except RegionRefused as why:
                raise Refused(f"The account {why} Move them with `mailsvc domain region`, or delete them.") from None
        click.echo(f"{owner.name}: {_sentence(wanted)}")

    run_with_database(settings, work)


def _sentence(residence: Residence) -> str:
    if residence.region is None:
        return "no home region"
    return f"{residence.region}{', pinned' if residence.pinned else ''}"
