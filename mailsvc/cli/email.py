"""`mailsvc email show`: the message of an email, with its headers and body. What happened to an email: explain."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

import click

from mailsvc.accounts.onboarding import Refused
from mailsvc.cli.access import read_content
from mailsvc.cli.customers.emails import account_of, email_cancel, email_id_in
from mailsvc.cli.runner import run_with_database
from mailsvc.runtime.database import Database, in_thread
from mailsvc.settings.schema import Settings
from mailsvc.store.encryption.body_key_files import BodyKeyError
from mailsvc.store.mail.messages import Piece, is_composed, stored_pieces, whole
from mailsvc.store.people.audit import by_operator
from mailsvc.store.postgres.pool import Transaction

# On a terminal, control characters are not obeyed.
_CONTROLS = (*range(9), *range(11, 32), *range(127, 160))
_SHOWN = str.maketrans({chr(number): "" if chr(number) == "\r" else "\N{REPLACEMENT CHARACTER}" for number in _CONTROLS})


@click.group()
def email() -> None:
    """Manage emails."""


@email.command("show")
@click.argument("id")
@click.pass_obj
def email_show(settings: Settings, id: str) -> None:
    """Print an email as it is sent, headers and body. Needs an open access to the account's content: `mailsvc account access`."""
    email_id = email_id_in(id)

    async def work(database: Database, reactor: Any) -> None:
        account_id = await account_of(database, reactor, email_id)
        gone = Refused(f"The content of the email {email_id} is no longer stored.")

        async def read(tx: Transaction) -> Sequence[Piece]:
            pieces = await stored_pieces(tx, account_id, email_id)
            if not pieces and not await is_composed(tx, account_id, email_id):
                raise gone
            return pieces

        pieces = await read_content(database, reactor, by_operator(account_id, "email read", str(email_id)), read)
        try:
            content = await whole(pieces, account_id, email_id, database.bodies) if pieces else None
        except BodyKeyError as error:
            raise Refused(str(error)) from None
        content = content or await _composed(database, reactor, account_id, email_id)
        if content is None:
            raise gone
        if sys.stdout.isatty():
            click.echo(content.decode("utf-8", "replace").translate(_SHOWN))
        else:
            click.echo(content, nl=False)

    run_with_database(settings, work)


async def _composed(database: Database, reactor: Any, account_id: UUID, email_id: UUID) -> bytes | None:
    """The message of a broadcast's email."""
    from mailsvc.broadcasts.assembly import Personalization  # imported late, since other commands do not need it

    personal = Personalization.of(database.pool, reactor, database.encryption, partial(in_thread, reactor))
    return await personal.composer.message(account_id, email_id)


email.add_command(email_cancel)
