"""`mailsvc email cancel`: cancel an email, which shows none of its content; and how the commands find an email by its ID."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import click

from mailsvc.accounts.onboarding import Refused
from mailsvc.cli.output import AS_JSON, result
from mailsvc.cli.runner import run_with_database
from mailsvc.clock import utc
from mailsvc.runtime.database import Database
from mailsvc.settings.schema import Settings
from mailsvc.store.mail.emails import Emails
from mailsvc.store.mail.facts import EmailFacts
from mailsvc.store.people.audit import by_operator


def email_id_in(text: str) -> UUID:
    """The email's ID that was typed. Raises click.BadParameter."""
    try:
        return UUID(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not the ID of an email.") from None


async def account_of(database: Database, reactor: Any, email_id: UUID) -> UUID:
    """The account that sent the email. Raises Refused if there is no such email."""
    found = await EmailFacts(database.pool, reactor).find(email_id)
    if found is None:
        raise Refused(f"There is no email with the ID {email_id}.")
    return found[0]


@click.command("cancel")
@click.argument("id")
@AS_JSON
@click.pass_obj
def email_cancel(settings: Settings, id: str, as_json: bool) -> None:
    """Cancel an email: recipients that are scheduled, queued or deferred do not receive it. ID is the email's ID."""
    email_id = email_id_in(id)

    async def work(database: Database, reactor: Any) -> None:
        account_id = await account_of(database, reactor, email_id)
        line = by_operator(account_id, "email canceled", str(email_id))
        if await Emails(database.pool, reactor).cancel(account_id, email_id, utc(reactor), [line]) != "canceled":
            raise Refused(f"The email {email_id} cannot be canceled: none of its recipients is waiting. `mailsvc explain` has the details.")
        result(as_json, f"The email {email_id} is canceled.", id=email_id, canceled=True)

    run_with_database(settings, work)
