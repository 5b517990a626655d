"""The `mailsvc` command, for operators. Results go to standard output, messages to standard error.

Exit status: 0 success, 1 failure (with a message), 2 wrong usage, 141 if standard output was closed (`| head`). The commands about what
customers have: customers/.
"""

from __future__ import annotations

from pathlib import Path

import click

from mailsvc import __version__
from mailsvc.cli.lazy import LazyGroup
from mailsvc.settings import loading
from mailsvc.settings.reader import SettingsError

_RUNS = "mailsvc.cli.runs"  # the key in the context's meta: whether a command runs, and not only its help or an error about usage is shown
COMMANDS = {
    "account": "main:account",
    "audit": "audit:audit",
    "cell": "cell:cell",
    "completion": "completion:completion",
    "doctor": "doctor:doctor",
    "domain": "domain:domain",
    "email": "email:email",
    "evidence": "evidence:evidence",
    "explain": "explain:explain",
    "import": "importing.command:import_",
    "key": "customers.keys:key",
    "member": "customers.members:member",
    "operator": "operator:operator",
    "privacy": "privacy:privacy",
    "queue": "queue:queue",
    "secrets": "secrets:secrets",
    "setup": "setup.command:setup",
    "sources": "sources:sources",
    "upgrade": "upgrade:upgrade",
    "webhook": "customers.webhooks:webhook",
}
ACCOUNT = {
    "access": "access:account_access",
    "close": "account_data:account_close",
    "create": "customers.accounts:account_create",
    "encrypt": "account_data:account_encrypt",
    "export": "account_data:account_export",
    "import": "account_data:account_import",
    "list": "customers.accounts:account_list",
    "minimize": "account_data:account_minimize",
    "networks": "account:account_networks",
    "notify": "customers.accounts:account_notify",
    "plan": "account:account_plan",
    "plans": "account:account_plans",
    "region": "region:account_region",
    "release": "account:account_release",
    "rename": "customers.accounts:account_rename",
    "reopen": "account_data:account_reopen",
    "resume": "customers.accounts:account_resume",
    "retention": "account:account_retention",
    "review": "account:account_review",
    "show": "customers.accounts:account_show",
    "sso": "account:account_sso",
    "suspend": "customers.accounts:account_suspend",
    "trust": "account:account_trust",
}


class _Commands(LazyGroup):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        words = iter(rest)
        found = command
        while isinstance(found, click.Group):
            found = found.get_command(ctx, next(words, ""))
        ctx.meta[_RUNS] = found is not None and "--help" not in rest
        return name, command, rest


@click.group(cls=_Commands, places=COMMANDS)
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


@click.group(cls=LazyGroup, places=ACCOUNT)
def account() -> None:
    """Manage accounts."""
