"""`mailsvc account …`: what an account keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import click

from mailsvc import retention
from mailsvc.cli_work import run_with_memory
from mailsvc.memory import Memory
from mailsvc.onboarding import Refused, find_account
from mailsvc.settings import Settings
from mailsvc.store.accounts import Accounts
from mailsvc.store.retention import Retention

KINDS = tuple(field.name for field in attrs.fields(retention.Retention) if field.name != "tls")


def _an_option_for_each_kind(command: Callable[..., Any]) -> Callable[..., Any]:
    for kind in reversed(KINDS):
        command = click.option(f"--{kind}", type=click.IntRange(1, 3650), metavar="DAYS")(command)
    return command


@click.command("retention")
@click.argument("account")
@_an_option_for_each_kind
@click.option("--reset", is_flag=True, help="As the settings say, from now on.")
@click.pass_obj
def account_retention(settings: Settings, /, account: str, reset: bool, **given: int | None) -> None:
    """Keep things of an account for fewer days than the settings say; prints how many days of each are kept."""

    async def work(memory: Memory, reactor: Any) -> None:
        owner, stored = await find_account(Accounts(memory.pool, reactor), account), Retention(memory.pool)
        everybody = retention.days(settings.retention)
        wanted = {} if reset else await stored.wanted(owner.id)
        for kind, number in given.items():
            if number is not None and number > everybody[kind]:
                raise Refused(f"An account can only keep less than others: the setting retention.{kind} comes to {everybody[kind]} days.")
            wanted |= {} if number is None else {kind: number}
        await stored.want(owner.id, wanted)
        for kind, number in retention.days(settings.retention, wanted).items():
            click.echo(f"{kind:9} {number:4} days{'' if number == everybody[kind] else f' (others: {everybody[kind]})'}")

    run_with_memory(settings, work)
