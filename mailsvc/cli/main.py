"""The `mailsvc` command, for operators. Results go to standard output, messages to standard error.

Exit status: 0 success, 1 failure (with a message), 2 wrong usage, 141 if standard output was closed (`| head`). The commands about what
customers have: customers/.
"""

from __future__ import annotations

from pathlib import Path

import click

from mailsvc import __version__
from mailsvc.accounts.onboarding import Customers, address
from mailsvc.cli.access import account_access
from mailsvc.cli.account import (
    account_networks,
    account_plan,
    account_plans,
    account_release,
    account_retention,
    account_review,
    account_sso,
    account_trust,
)
from mailsvc.cli.account_data import (
    account_close,
    account_encrypt,
    account_export,
    account_import,
    account_minimize,
    account_reopen,
)
from mailsvc.cli.audit import audit
from mailsvc.cli.cell import cell
from mailsvc.cli.completion import completion
from mailsvc.cli.customers.accounts import account_list, account_rename, account_resume, account_show, account_suspend
from mailsvc.cli.customers.emails import email_cancel
from mailsvc.cli.customers.keys import key
from mailsvc.cli.customers.members import member
from mailsvc.cli.customers.webhooks import webhook
from mailsvc.cli.doctor import doctor
from mailsvc.cli.domain import domain
from mailsvc.cli.email import email
from mailsvc.cli.evidence import evidence
from mailsvc.cli.explain import explain
from mailsvc.cli.importing.command import import_
from mailsvc.cli.operator import operator
from mailsvc.cli.output import AS_JSON, result
from mailsvc.cli.privacy import privacy
from mailsvc.cli.queue import queue
from mailsvc.cli.region import account_region
from mailsvc.cli.runner import run
from mailsvc.cli.secrets import secrets
from mailsvc.cli.setup.command import setup
from mailsvc.cli.sources import sources
from mailsvc.cli.upgrade import upgrade
from mailsvc.settings import loading
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings
from mailsvc.store.people.audit import by_operator

_RUNS = "mailsvc.cli.runs"  # the key in the context's meta: whether a command runs, and not only its help or an error about usage is shown


class _Commands(click.Group):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        words = iter(rest)
        found = command
        while isinstance(found, click.Group):
            found = found.get_command(ctx, next(words, ""))
        ctx.meta[_RUNS] = found is not None and "--help" not in rest
        return name, command, rest


@click.group(cls=_Commands)
@click.option("--config", type=click.Path(path_type=Path), envvar="MAILSVC_CONFIG", default=Path("etc/mailsvc.toml"), show_default=True)
@click.version_option(__version__)
@click.pass_context
def main(context: click.Context, config: Path) -> None:
    """Manage a mailsvc installation. To start the daemon itself: twistd mailsvc --config FILE"""
    if context.invoked_subcommand in ("completion", "setup"):
        return  # needs no settings, or writes them
    try:
        context.obj = loading.load(config)
    except SettingsError as error:
        if context.meta[_RUNS]:
            raise click.ClickException(str(error)) from None


@main.group()
def account() -> None:
    """Manage accounts."""


@account.command("create")
@click.argument("name")
@click.option("--notify", help="Where to send notifications, for example about failing webhooks.")
@click.option("--trusted", is_flag=True, help="No daily limit as a new account, and its mail is never held automatically.")
@AS_JSON
@click.pass_obj
def account_create(settings: Settings, name: str, notify: str | None, trusted: bool, as_json: bool) -> None:
    """Create an account. Prints its ID. Unless it is trusted, the setting abuse.ramp limits it at first.

    The first account of an installation is the operator's own, and trusted.
    """

    async def work(customers: Customers) -> None:
        to, ramp = None if notify is None else address(notify), next(iter(settings.abuse.ramp), None)
        first = not await customers.accounts.list()
        new = await customers.accounts.create(
            name, notify=to, ramp=ramp, trusted=trusted or first, line=lambda id_: by_operator(id_, "account created", name)
        )
        result(as_json, str(new.id), id=new.id, number=new.number, name=new.name, trusted=new.trusted_at is not None)

    run(settings, work)


@account.command("notify")
@click.argument("account")
@click.argument("email")
@click.pass_obj
def account_notify(settings: Settings, account: str, email: str) -> None:
    """Change where notifications are sent, for example about failing webhooks."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        await customers.accounts.notify(owner.id, address(email), [by_operator(owner.id, "address for notifications changed", email)])
        click.echo(f"Notifications for {owner.name} go to {email}.")

    run(settings, work)


for command in (
    account_review, account_networks, account_sso, account_retention, account_plan, account_plans, account_release, account_trust,
    account_export, account_import, account_close, account_reopen, account_minimize, account_encrypt, account_access,
    account_region,
):  # fmt: skip
    account.add_command(command)
for command in (account_list, account_show, account_rename, account_suspend, account_resume):
    account.add_command(command)
email.add_command(email_cancel)
main.add_command(key)
main.add_command(member)
main.add_command(webhook)
main.add_command(cell)
main.add_command(completion)
main.add_command(audit)
main.add_command(domain)
main.add_command(email)
main.add_command(evidence)
main.add_command(explain)
main.add_command(import_)
main.add_command(operator)
main.add_command(privacy)
main.add_command(queue)
main.add_command(secrets)
main.add_command(sources)
main.add_command(doctor)
main.add_command(setup)
main.add_command(upgrade)
