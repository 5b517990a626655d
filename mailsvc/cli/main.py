"""The `mailsvc` command, for operators. Results go to standard output, messages to standard error.

Exit status: 0 success, 1 failure (with a message), 2 wrong usage.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

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
from mailsvc.cli.doctor import doctor
from mailsvc.cli.domain import domain
from mailsvc.cli.email import email
from mailsvc.cli.evidence import evidence
from mailsvc.cli.explain import explain
from mailsvc.cli.privacy import privacy
from mailsvc.cli.queue import queue
from mailsvc.cli.runner import run
from mailsvc.cli.secrets import secrets
from mailsvc.cli.sources import sources
from mailsvc.cli.upgrade import upgrade
from mailsvc.clock import utc
from mailsvc.settings import loading
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings
from mailsvc.store.people.api_keys import described
from mailsvc.store.people.audit import by_operator


@click.group()
@click.option("--config", type=click.Path(path_type=Path), envvar="MAILSVC_CONFIG", default=Path("etc/mailsvc.toml"), show_default=True)
@click.version_option(__version__)
@click.pass_context
def main(context: click.Context, config: Path) -> None:
    """Manage a mailsvc installation. To start the daemon itself: twistd mailsvc --config FILE"""
    try:
        context.obj = loading.load(config)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None


@main.group()
def account() -> None:
    """Manage accounts."""


@account.command("create")
@click.argument("name")
@click.option("--notify", help="Where to send notifications, for example about failing webhooks.")
@click.option("--trusted", is_flag=True, help="No daily limit as a new account, and its mail is never held automatically.")
@click.pass_obj
def account_create(settings: Settings, name: str, notify: str | None, trusted: bool) -> None:
    """Create an account. Prints its ID. Unless it is trusted, the setting abuse.ramp limits it at first.

    The first account of an installation is the operator's own, and trusted.
    """

    async def work(customers: Customers) -> None:
        to, ramp = None if notify is None else address(notify), next(iter(settings.abuse.ramp), None)
        first = not await customers.accounts.list()
        new = await customers.accounts.create(
            name, notify=to, ramp=ramp, trusted=trusted or first, line=lambda id_: by_operator(id_, "account created", name)
        )
        click.echo(new.id)

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


@main.group()
def key() -> None:
    """Manage API keys."""


@key.command("create")
@click.option("--account", required=True, help="ID, number or name of the account.")
@click.option("--permission", type=click.Choice(["full_access", "sending_access"]), default="full_access", show_default=True)
@click.option("--domain", help="The only domain that the key can send from.")
@click.option("--name", default="by the operator", show_default=True)
@click.option("--days", type=click.IntRange(1, 3650), help="Days after which the key stops working. Default: never.")
@click.pass_obj
def key_create(settings: Settings, account: str, permission: Any, domain: str | None, name: str, days: int | None) -> None:
    """Create an API key and print it. It cannot be shown again."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        only = await customers.domain(owner, domain) if domain is not None else None
        until = None if days is None else utc(customers.reactor) + timedelta(days=days)
        line = by_operator(owner.id, "key created", described(name, permission, only, until))
        _, token = await customers.keys.create(owner.id, name, permission, only.id if only is not None else None, [line], expires_at=until)
        click.echo(token)

    run(settings, work)


@key.command("list")
@click.option("--account", required=True, help="ID, number or name of the account.")
@click.pass_obj
def key_list(settings: Settings, account: str) -> None:
    """List an account's API keys: ID, first characters, permission, name, and when they expire."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        for each in (await customers.keys.list(owner.id))[0]:
            until = "" if each.expires_at is None else f"  until {each.expires_at:%Y-%m-%d %H:%M}"
            click.echo(f"{each.id}  {each.hint}…  {each.permission:14}  {each.name}{until}")

    run(settings, work)


@main.group()
def member() -> None:
    """Manage an account's members."""


@member.command("add")
@click.argument("email")
@click.option("--account", required=True, help="ID, number or name of the account.")
@click.option("--role", type=click.Choice(["admin", "member"]), default="admin", show_default=True)
@click.pass_obj
def member_add(settings: Settings, email: str, account: str, role: Any) -> None:
    """Add a member, or create a new link for one. Prints a link that signs them in once, within a day."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        assert customers.people is not None
        secret = await customers.people.admit(owner.id, address(email).lower(), role, timedelta(days=1))
        click.echo(f"{settings.base_url}/dashboard/sign-in/link?link={secret}")

    run(settings, work)


@member.command("reset")
@click.argument("email")
@click.pass_obj
def member_reset(settings: Settings, email: str) -> None:
    """Remove all second factors of a user who lost them. Confirm their identity first. Prints a link that signs them in once."""

    async def work(customers: Customers) -> None:
        assert customers.people is not None
        secret = await customers.people.reset(address(email).lower(), timedelta(hours=1))
        click.echo(f"{settings.base_url}/dashboard/sign-in/link?link={secret}")

    run(settings, work)


for command in (
    account_review, account_networks, account_sso, account_retention, account_plan, account_plans, account_release, account_trust,
    account_export, account_import, account_close, account_reopen, account_minimize, account_encrypt, account_access,
):  # fmt: skip
    account.add_command(command)
main.add_command(audit)
main.add_command(domain)
main.add_command(email)
main.add_command(evidence)
main.add_command(explain)
main.add_command(privacy)
main.add_command(queue)
main.add_command(secrets)
main.add_command(sources)
main.add_command(doctor)
main.add_command(upgrade)
