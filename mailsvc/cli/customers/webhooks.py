"""`mailsvc webhook …`: list an account's endpoints, and send events again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import click

from mailsvc.accounts.onboarding import Refused, find_account
from mailsvc.cli.output import ACCOUNT, AS_JSON, moment, print_json, result, the_only
from mailsvc.cli.runner import run_with_database
from mailsvc.clock import utc
from mailsvc.runtime.database import Database
from mailsvc.settings.schema import Settings
from mailsvc.store.events.webhook_log import WebhookLog
from mailsvc.store.events.webhooks import Webhook, Webhooks
from mailsvc.store.people.accounts import Account, Accounts
from mailsvc.store.people.audit import by_operator

_MOST = 1000  # endpoints of an account
_TIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])
_MESSAGE = "msg_"  # the beginning of the ID of an event


@click.group()
def webhook() -> None:
    """List webhooks, and send events again."""


@webhook.command("list")
@ACCOUNT
@AS_JSON
@click.pass_obj
def webhook_list(settings: Settings, account: str, as_json: bool) -> None:
    """List an account's webhooks: ID, status, URL, and since when they fail."""

    async def work(database: Database, reactor: Any) -> None:
        owner = await find_account(Accounts(database.pool, reactor), account)
        found = await _endpoints(database, reactor, owner)
        if as_json:
            print_json([_json(each) for each in found])
            return
        for each in found:
            click.echo(_line(each))

    run_with_database(settings, work)


@webhook.command("replay")
@click.argument("webhook")
@ACCOUNT
@click.option("--event", help="Send this event again: its ID, which begins with msg_.")
@click.option("--since", type=_TIME, help="Send the events since this day or time again (UTC), as YYYY-MM-DD or YYYY-MM-DDTHH:MM.")
@click.option("--until", type=_TIME, help="With --since: those before this time. Default: now.")
@click.option("--all", "everything", is_flag=True, help="With --since: all events, not only those that failed.")
@AS_JSON
@click.pass_obj
def webhook_replay(
    settings: Settings,
    webhook: str,
    account: str,
    event: str | None,
    since: datetime | None,
    until: datetime | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Send an event again, or those of a period that failed. WEBHOOK is the ID or the URL of an endpoint."""
    if (event is None) == (since is None):
        raise click.UsageError("Give exactly one of --event and --since.")
    if event is not None and (until is not None or everything):
        raise click.UsageError("--until and --all need --since.")
    event_id = None if event is None else _event_id(event)

    async def work(database: Database, reactor: Any) -> None:
        owner, now = await find_account(Accounts(database.pool, reactor), account), utc(reactor)
        endpoint, log = _named(await _endpoints(database, reactor, owner), webhook, owner), WebhookLog(database.pool)
        if endpoint.status == "disabled":
            raise Refused(f"{endpoint.url} is disabled, so nothing is sent to it. It has to be enabled first.")
        if event_id is not None:
            count = await _one(log, endpoint, event_id, now)
        else:
            assert since is not None
            first, last = since.replace(tzinfo=UTC), now if until is None else until.replace(tzinfo=UTC)
            line = by_operator(owner.id, "webhook events resent", f"{first.isoformat()} to {last.isoformat()}, {endpoint.url}")
            count = await log.replay_range(owner.id, endpoint.id, first, last, not everything, now, [line])
        sentence = f"{count} event{' is' if count == 1 else 's are'} sent to {endpoint.url} again."
        result(as_json, sentence, id=endpoint.id, endpoint=endpoint.url, replayed=count)

    run_with_database(settings, work)


async def _one(log: WebhookLog, endpoint: Webhook, event_id: UUID, now: datetime) -> int:
    message = await log.get(endpoint.account_id, endpoint.id, event_id)
    if message is None:
        raise Refused(f"There is no event msg_{event_id.hex} for {endpoint.url}.")
    line = by_operator(endpoint.account_id, "webhook event resent", f"{message.type} to {endpoint.url}")
    return int(await log.replay(endpoint.account_id, endpoint.id, event_id, now, [line]))


def _event_id(text: str) -> UUID:
    try:
        if text.startswith(_MESSAGE):
            return UUID(text.removeprefix(_MESSAGE))
    except ValueError:
        pass  # as if it began otherwise
    raise click.BadParameter("--event needs the ID of a webhook event, which begins with msg_.")


async def _endpoints(database: Database, reactor: Any, owner: Account) -> Sequence[Webhook]:
    return (await Webhooks(database.pool, reactor, database.encryption).list(owner.id, _MOST))[0]


def _named(endpoints: Sequence[Webhook], text: str, owner: Account) -> Webhook:
    found = [each for each in endpoints if text in (str(each.id), each.url)]
    none = f"The account {owner.name} has no webhook {text!r}. `mailsvc webhook list` shows its webhooks."
    several = f"{len(found)} webhooks of the account {owner.name} have the URL {text}. Use the ID:"
    return the_only(found, none, several, [_line(each) for each in found])


def _line(each: Webhook) -> str:
    failing = "" if each.failing_since is None else f"  failing since {moment(each.failing_since)}"
    why = "" if each.disabled_why is None else f"  {each.disabled_why}"
    return f"{each.id}  {each.status:8}  {each.url}{failing}{why}"


def _json(each: Webhook) -> dict[str, object]:
    return {
        "id": each.id,
        "status": each.status,
        "endpoint": each.url,
        "events": each.events,
        "created_at": each.created_at,
        "disabled_reason": each.disabled_why,
        "failing_since": each.failing_since,
    }
