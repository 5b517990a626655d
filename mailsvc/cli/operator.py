"""`mailsvc operator …`: who can sign in to the operator's console. Access to content of accounts: cli/access."""

from __future__ import annotations

from typing import Any

import click

from mailsvc.accounts.onboarding import Refused, address
from mailsvc.cli.output import AS_JSON, moment, print_json, result
from mailsvc.cli.runner import run_with_database
from mailsvc.dashboard.signin.second_factor import new_secret
from mailsvc.runtime.database import Database
from mailsvc.settings.schema import Settings
from mailsvc.store.console.operators import Operators
from mailsvc.store.people.audit import INSTALLATION, by_operator


@click.group()
def operator() -> None:
    """Manage who can sign in to the operator's console."""


@operator.command("add")
@click.argument("email")
@AS_JSON
@click.pass_obj
def operator_add(settings: Settings, email: str, as_json: bool) -> None:
    """Add an operator, or let one set up their sign-in again. Prints a link that works once, within a day.

    The link leads to the choice of a password and an authenticator app. A former password, app and sessions end at once.
    """

    async def work(database: Database, reactor: Any) -> None:
        wanted = address(email).lower()
        line = by_operator(INSTALLATION, "operator added", wanted)
        secret = await Operators(database.pool, reactor, database.encryption).add(wanted, new_secret(), [line])
        link = f"{settings.console.url}/console/set-up?link={secret}"
        result(as_json, link, email=wanted, link=link)

    run_with_database(settings, work)


@operator.command("list")
@AS_JSON
@click.pass_obj
def operator_list(settings: Settings, as_json: bool) -> None:
    """List the operators: whether they have set up their sign-in, last sign-in and email address."""

    async def work(database: Database, reactor: Any) -> None:
        found = await Operators(database.pool, reactor, database.encryption).list()
        if as_json:
            facts = [{"email": each.email, "set_up": each.password is not None, "signed_in_at": each.signed_in_at} for each in found]
            print_json(facts)
            return
        for each in found:
            click.echo(f"{'set up' if each.password else 'invited':7}  {moment(each.signed_in_at, 'never'):16}  {each.email}")

    run_with_database(settings, work)


@operator.command("remove")
@click.argument("email")
@AS_JSON
@click.pass_obj
def operator_remove(settings: Settings, email: str, as_json: bool) -> None:
    """Remove an operator. Their sessions end at once."""

    async def work(database: Database, reactor: Any) -> None:
        wanted = address(email).lower()
        line = by_operator(INSTALLATION, "operator removed", wanted)
        if not await Operators(database.pool, reactor, database.encryption).remove(wanted, [line]):
            raise Refused(f"{wanted} is not an operator. `mailsvc operator list` shows them.")
        result(as_json, f"{wanted} is no longer an operator.", email=wanted, removed=True)

    run_with_database(settings, work)
