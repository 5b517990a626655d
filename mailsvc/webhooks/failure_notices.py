"""Notifies accounts by mail of failing endpoints: once they have failed for a while, and when they are disabled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import attrs
from twisted.logger import Logger

from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import every
from mailsvc.store.events.webhooks import Webhook, Webhooks
from mailsvc.store.in_turn import all_in_turn, in_turn
from mailsvc.system_mail import SystemMail

log = Logger()


@attrs.frozen
class FailureNotices:
    """`clock` returns Unix time; `warn_after`: seconds without a success."""

    webhooks: Webhooks
    mail: SystemMail
    clock: Callable[[], float]
    warn_after: float

    def start(self, reactor: Any, opened: Opened) -> None:
        often = min(60.0, self.warn_after)
        opened.add("webhook failure notices", every(reactor, often, "sending webhook failure notices", self.send_due))

    async def send_due(self) -> None:
        """Send each recipient one mail. An idempotency key prevents duplicates if this is interrupted and repeated."""
        before = datetime.fromtimestamp(self.clock(), UTC) - timedelta(seconds=self.warn_after)
        await in_turn([partial(self._send, *each) for each in await self.webhooks.to_notify(before)])

    async def _send(self, webhook: Webhook, recipients: Sequence[str]) -> None:
        log.info("webhook {id} of account {account} {state}", id=webhook.id, account=webhook.account_id, state=_state(webhook))
        if await all_in_turn([partial(self.mail.send, to, *compose(webhook), f"{_key(webhook)}/{to}") for to in recipients]):
            await self.webhooks.notified(webhook)


def compose(webhook: Webhook) -> tuple[str, str]:
    """Subject and text."""
    since = webhook.failing_since or webhook.created_at
    lines = [
        f"Your webhook endpoint {webhook.url} has not accepted any event since {_time(since)}.",
        f"The last attempt was at {_time(webhook.failed_at or since)} and resulted in {_response(webhook.failed_with)}.",
    ]
    if webhook.status == "disabled":
        subject = "Your webhook endpoint was disabled"
        lines += [
            f"The endpoint was disabled: {webhook.disabled_why}",
            "It no longer receives events. Once it is fixed, enable it and replay the failed events. The event log has all of them.",
        ]
    else:
        subject = "Your webhook endpoint is failing"
        lines += ["We retry each event for about a day. If the endpoint keeps failing, it will be disabled."]
    return subject, "\n\n".join([*lines, f"Webhook: {webhook.id}"]) + "\n"


def _state(webhook: Webhook) -> str:
    return "was disabled" if webhook.status == "disabled" else "is failing"


def _key(webhook: Webhook) -> str:
    since = webhook.failing_since.isoformat() if webhook.failing_since else ""
    return f"webhook/{webhook.id}/{webhook.status}/{since}"


def _response(status: int | None) -> str:
    return f"HTTP status {status}" if status else "no response"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
