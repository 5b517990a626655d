"""`mailsvc explain ID`: what happened to one email, in plain sentences. Needs the database, not a running daemon.

The sentences: insights/explanation. The facts: store/mail/facts.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs
import click

from mailsvc.accounts.onboarding import Refused, tracking_host
from mailsvc.cli.runner import run_with_database
from mailsvc.domains import tracking
from mailsvc.insights.explanation import explain as story_of
from mailsvc.runtime.database import Database
from mailsvc.settings.schema import Settings
from mailsvc.store.domains.domains import Domains
from mailsvc.store.mail.facts import EmailFacts
from mailsvc.store.people.audit import Audit, by_operator
from mailsvc.store.people.operator_access import OperatorAccesses


@click.command("explain")
@click.argument("id")
@click.option("--days", type=click.IntRange(1, 3650), default=7, show_default=True, help="How many days to search for a Message-ID.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def explain(settings: Settings, id: str, days: int, as_json: bool) -> None:
    """Explain what happened to an email and what happens next. ID is the email's ID, its Message-ID, or a recipient's ID: EMAIL/NUMBER.

    The subject is only shown during an access to the account's content: `mailsvc account access`.
    """

    async def work(database: Database, reactor: Any) -> None:
        facts_of = EmailFacts(database.pool, reactor)
        account_id, email_id, number = await _find(facts_of, id.strip(), days)
        facts = await facts_of.read(account_id, email_id)
        if facts is None:
            raise Refused(f"The email {email_id} has been deleted.")
        if number is not None and number > len(facts.recipients):
            raise Refused(f"The email {email_id} has no recipient {number}.")
        await Audit(database.pool, reactor).write(by_operator(account_id, "email explained", str(email_id)))
        domain = await Domains(database.pool, reactor, database.encryption).get(facts.email.domain_id)
        not_tracked = None if domain is None else tracking.inactive(domain, tracking_host(settings))
        subject = await OperatorAccesses(database.pool, reactor).is_open(account_id)
        story = story_of(facts, None if number is None else number - 1, not_tracked, subject=subject)
        click.echo(json.dumps(attrs.asdict(story), indent=2, default=datetime.isoformat) if as_json else story.text())

    run_with_database(settings, work, migrating=False)


async def _find(facts: EmailFacts, text: str, days: int) -> tuple[UUID, UUID, int | None]:
    """The account, the email and the number of the recipient, from 1. Raises Refused."""
    if "@" in text:
        found = await facts.find_message(text if text.startswith("<") else f"<{text}>", days)
        if not found:
            raise Refused(f"No email of the last {days} days has the Message-ID {text}. --days searches more days.")
        if len(found) > 1:
            ids = ", ".join(str(email_id) for _, email_id in found)
            raise Refused(f"More than one email has the Message-ID {text}. Choose one by its ID: {ids}.")
        return (*found[0], None)
    name, slash, number = text.partition("/")
    try:
        email_id, recipient = UUID(name), int(number) if slash else None
    except ValueError:
        recipient = 0
    if recipient is not None and recipient < 1:
        raise Refused(f"{text!r} is neither an email's ID, nor EMAIL/NUMBER, nor a Message-ID.")
    one = await facts.find(email_id)
    if one is None:
        raise Refused(f"There is no email with the ID {email_id}.")
    return (*one, recipient)
