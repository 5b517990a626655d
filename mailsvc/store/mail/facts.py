"""Reads everything about one email of any account, for operators, who have an ID but no account. Not for use in loops.

What the facts mean in sentences: insights/explanation. Emails of one account: store/mail/emails.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.ids import uuid7_floor
from mailsvc.store.mail.emails import AttemptView, Emails, EmailView, RecipientView
from mailsvc.store.mail.history import EventView, History
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.sql import Columns, statement

FOUND_MAX = 10  # emails with the same Message-ID that are listed

# One look into the primary key for each account, in the partition of the email's day.
BY_ID = """
SELECT e.account_id, e.email_id FROM accounts a
CROSS JOIN LATERAL (SELECT account_id, email_id FROM emails WHERE account_id = a.id AND email_id = %s OFFSET 0) e
"""
# Without an index: reads the emails since then.
BY_MESSAGE_ID = "SELECT account_id, email_id FROM emails WHERE email_id >= %s AND message_id = %s ORDER BY email_id DESC LIMIT %s"

SENDER = """
SELECT a.number, a.name, k.name, k.hint, d.name
FROM accounts a
LEFT JOIN api_keys k ON k.account_id = a.id AND k.id = %s
LEFT JOIN domains d ON d.account_id = a.id AND d.id = %s
WHERE a.id = %s
"""
WAITING = statement("mailsvc.store.mail", "waiting")
WEBHOOKS = statement("mailsvc.store.mail", "webhooks_of_email")

_WAITING = Columns.named(
    "recipient", "region", "destination", "due_at", "expires_at", "source", "account_reason", "account_until", "held", "held_until",
    "failures", "slow", "slow_until", "per_minute",
)  # fmt: skip
_WEBHOOK = Columns.named(
    "url", "type", "status", "tries", "next_at", "attempts", "response_status", "response", "attempted_at", "enabled", "disabled_why",
    "failing_since",
)  # fmt: skip


@attrs.frozen
class Sender:
    """Who sent an email. `key`: the API key's name and first characters; None: no key, or one that no longer exists."""

    number: int
    account: str
    key: str | None
    domain: str | None


@attrs.frozen
class WaitingRecipient:
    """What a recipient in the queue waits for: its own time, and the pauses, holds and slowdowns in force now."""

    recipient: int
    region: str
    destination: str
    due_at: datetime
    expires_at: datetime
    source: str | None = None
    account_reason: str | None = None
    account_until: datetime | None = None
    held: str | None = None
    held_until: datetime | None = None
    failures: int | None = None
    slow: str | None = None
    slow_until: datetime | None = None
    per_minute: float | None = None


@attrs.frozen
class WebhookState:
    """One event of the email on its way to one endpoint. `response_status`: of the latest attempt; 0: no response, `response` says why."""

    url: str
    type: str
    status: str | None
    tries: int | None
    next_at: datetime | None
    attempts: int
    response_status: int | None
    response: str | None
    attempted_at: datetime | None
    enabled: bool
    disabled_why: str | None
    failing_since: datetime | None


@attrs.frozen
class Facts:
    """Everything about one email at the moment `now`."""

    now: datetime
    email: EmailView
    sender: Sender
    recipients: Sequence[RecipientView]
    events: Sequence[EventView] = ()
    attempts: Sequence[AttemptView] = ()
    waiting: Sequence[WaitingRecipient] = ()
    webhooks: Sequence[WebhookState] = ()


class EmailFacts:
    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool, self._clock = pool, clock
        self._emails, self._history = Emails(pool, clock), History(pool)

    async def find(self, email_id: UUID) -> tuple[UUID, UUID] | None:
        """The account and the ID of an email."""
        rows = await self._pool.rows(BY_ID, (email_id,))
        return rows[0] if rows else None

    async def find_message(self, message_id: str, days: int) -> list[tuple[UUID, UUID]]:
        """Accounts and IDs of the emails with this Message-ID that were accepted in the last days, newest first."""
        since = uuid7_floor(utc(self._clock) - timedelta(days=days))
        return list(await self._pool.rows(BY_MESSAGE_ID, (since, message_id, FOUND_MAX)))

    async def read(self, account_id: UUID, email_id: UUID) -> Facts | None:
        """The facts about an email; None if it was deleted."""
        now = utc(self._clock)
        email = await self._emails.get(account_id, email_id)
        if email is None:
            return None
        [(number, name, key, hint, domain)] = await self._pool.rows(SENDER, (email.key_id, email.domain_id, account_id))
        events = await self._history.events(account_id, email_id)
        named = {"account_id": account_id, "email_id": email_id, "now": now, "events": [event.event_id for event in events]}
        return Facts(
            now=now,
            email=email,
            sender=Sender(number, name, None if key is None else f"{key} ({hint}…)", domain),
            recipients=await self._emails.recipients(account_id, email_id),
            events=events,
            attempts=await self._emails.attempts(account_id, email_id),
            waiting=[WaitingRecipient(**_WAITING.read(row)) for row in await self._pool.rows(WAITING, named)],
            webhooks=[WebhookState(**_WEBHOOK.read(row)) for row in await self._pool.rows(WEBHOOKS, named)],
        )
