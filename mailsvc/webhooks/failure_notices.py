"""Tells accounts by mail of endpoints that fail, at the first sign and when they are disabled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import attrs
from twisted.logger import Logger

from mailsvc.store.events.webhooks import Webhook

log = Logger()


class Webhooks(Protocol):
    """store/events/webhooks"""

    async def untold(self, failing_before: datetime, limit: int = 100) -> Sequence[tuple[Webhook, Sequence[str]]]: ...
    async def told(self, webhook: Webhook) -> None: ...


class Mail(Protocol):
    """system_mail.SystemMail"""

    async def send(self, to: str | None, subject: str, text: str, key: str) -> bool: ...


@attrs.frozen
class Notices:
    """`clock` tells unix seconds; `warn_after`: seconds of nothing but failures."""

    webhooks: Webhooks
    mail: Mail
    clock: Callable[[], float]
    warn_after: float

    async def tell(self) -> None:
        """Whoever is to be told now, each by a mail of their own. A mail goes once, however often this is interrupted."""
        before = datetime.fromtimestamp(self.clock(), UTC) - timedelta(seconds=self.warn_after)
        for webhook, everybody in await self.webhooks.untold(before):
            log.info("webhook {id} of account {account} {state}", id=webhook.id, account=webhook.account_id, state=_state(webhook))
            if all([await self.mail.send(to, *written(webhook), f"{_key(webhook)}/{to}") for to in everybody]):
                await self.webhooks.told(webhook)


def written(webhook: Webhook) -> tuple[str, str]:
    """Subject and text."""
    since = webhook.failing_since or webhook.created_at
    lines = [
        f"Your webhook endpoint {webhook.url} has taken no event since {_time(since)}.",
        f"The last attempt was at {_time(webhook.failed_at or since)} and got {_answer(webhook.failed_with)}.",
    ]
    if webhook.status == "disabled":
        subject = "Your webhook endpoint was disabled"
        lines += [
            f"It was therefore disabled: {webhook.disabled_why}",
            "No more events are sent to it. When it is well again, enable it and replay what failed; the event log has everything.",
        ]
    else:
        subject = "Your webhook endpoint fails"
        lines += ["Every event is tried again for about a day. An endpoint that goes on failing is disabled in the end."]
    return subject, "\n\n".join([*lines, f"Webhook: {webhook.id}"]) + "\n"


def _state(webhook: Webhook) -> str:
    return "was disabled" if webhook.status == "disabled" else "fails"


def _key(webhook: Webhook) -> str:
    since = webhook.failing_since.isoformat() if webhook.failing_since else ""
    return f"webhook/{webhook.id}/{webhook.status}/{since}"


def _answer(status: int | None) -> str:
    return f"the HTTP status {status}" if status else "no answer"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
