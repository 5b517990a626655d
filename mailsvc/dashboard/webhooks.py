"""Webhooks: endpoints, what each was sent with every attempt, sending again, and a test."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import attrs
import orjson

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import Visit, area, not_found, page
from mailsvc.dashboard.safety import HOME
from mailsvc.events import payload
from mailsvc.net.urls import BadUrl, Target
from mailsvc.store.events.webhook_log import Message, WebhookLog
from mailsvc.store.events.webhooks import Webhook
from mailsvc.store.events.webhooks import Webhooks as Stored

WEBHOOKS = f"{HOME}/webhooks"
SECRET = 32  # octets
PAGE = 50
# What happens here; the other types that may be subscribed to are of services that this one is compatible with.
OFFERED = tuple(kind for kind in payload.TYPES if kind.partition(".")[0] in ("email", "domain", "suppression") and kind != "email.received")
_DONE = {
    "changed": "Settings saved.",
    "deleted": "Endpoint deleted.",
    "test": "Test event queued. This page updates automatically.",
    "again": "Event queued for resending. This page updates automatically.",
}


@attrs.define(eq=False)
class WebhookPages:
    """`read_url` refuses what no endpoint may be; `outgoing` is called when something is to be sent at once."""

    app = area()
    desk: PageContext
    stored: Stored
    log: WebhookLog
    read_url: Callable[[str], Target]
    most: int
    outgoing: Callable[[], None]

    @page(app, WEBHOOKS)
    async def list(self, visit: Visit) -> bytes:
        return await self._listed(visit)

    async def _listed(self, visit: Visit, status: int = 200, **values: object) -> bytes:
        found, _ = await self.stored.list(visit.account_id, 1000)
        shown: dict[str, object] = {"errors": {}, "url": "", "done": _DONE.get(visit.query("done"), "")}
        chosen = [kind for kind in OFFERED if visit.form.get(f"on:{kind}")] or [kind for kind in OFFERED if kind.startswith("email.")]
        return visit.render("webhooks/list.html", status, webhooks=found, offered=OFFERED, chosen=chosen, **shown | values)

    @page(app, WEBHOOKS, "POST")
    async def add(self, visit: Visit) -> bytes:
        url, events, errors = self._given(visit)
        if errors:
            return await self._listed(visit, 422, errors=errors, url=visit.field("url"))
        line = visit.line("webhook added", url)
        added = await self.stored.add(visit.account_id, url, events, secrets.token_bytes(SECRET), self.most, [line])
        if added is None:
            most = f"An account can have up to {self.most} endpoints. Delete one first."
            return await self._listed(visit, 422, errors={"url": most}, url=visit.field("url"))
        return visit.redirect(f"{WEBHOOKS}/{added.id}")

    @page(app, f"{WEBHOOKS}/<text>")
    async def one(self, visit: Visit, text: str) -> bytes:
        webhook, _ = await self._webhook(visit, text)
        return await self._shown(visit, webhook)

    async def _shown(self, visit: Visit, webhook: Webhook, status: int = 200, *, shown: str = "", **values: object) -> bytes:
        """`shown`: the secret; `values`: what was typed into its form, and what is wrong with it."""
        after = visit.uuid(visit.query("after")) if visit.query("after") else None
        messages, more = await self.log.list(visit.account_id, webhook.id, PAGE, after)
        typed: dict[str, object] = {"errors": {}, "url": webhook.url, "chosen": webhook.events}
        return visit.render(
            "webhooks/one.html",
            status,
            webhook=webhook,
            secret=shown,
            messages=messages,
            older=f"{WEBHOOKS}/{webhook.id}?after={messages[-1].event_id}" if more else None,
            first=after is None,
            offered=OFFERED,
            live=any(message.status in ("pending", "attempting") for message in messages),
            done=_DONE.get(visit.query("done"), ""),
            **typed | values,
        )

    @page(app, f"{WEBHOOKS}/<text>/secret", who="admin", fresh=True)
    async def secret(self, visit: Visit, text: str) -> bytes:
        """With the secret that messages are signed with: whoever has it can send events that look like ours."""
        webhook, secret = await self._webhook(visit, text)
        await visit.note("webhook secret shown", webhook.url)
        return await self._shown(visit, webhook, shown=f"whsec_{base64.b64encode(secret).decode()}")

    @page(app, f"{WEBHOOKS}/<text>/change", "POST")
    async def change(self, visit: Visit, text: str) -> bytes:
        webhook, _ = await self._webhook(visit, text)
        url, events, errors = self._given(visit)
        if errors:
            return await self._shown(visit, webhook, 422, errors=errors, url=visit.field("url"), chosen=events)
        status: Any = "enabled" if visit.field("enabled") == "on" else "disabled"
        await self.stored.change(visit.account_id, webhook.id, url, events, status, [visit.line("webhook changed", f"{url}, {status}")])
        self.outgoing()
        return visit.redirect(f"{WEBHOOKS}/{webhook.id}", done="changed")

    @page(app, f"{WEBHOOKS}/<text>/test", "POST")
    async def test(self, visit: Visit, text: str) -> bytes:
        webhook, _ = await self._webhook(visit, text)
        kind, now = webhook.events[0], self.desk.now()
        await self.log.test(visit.account_id, webhook.id, kind, payload.sample(kind, now), now, [visit.line("webhook tested", webhook.url)])
        self.outgoing()
        return visit.redirect(f"{WEBHOOKS}/{webhook.id}", done="test")

    @page(app, f"{WEBHOOKS}/<text>/delete", "POST")
    async def delete(self, visit: Visit, text: str) -> bytes:
        webhook, _ = await self._webhook(visit, text)
        await self.stored.remove(visit.account_id, webhook.id, [visit.line("webhook deleted", webhook.url)])
        self.outgoing()
        return visit.redirect(WEBHOOKS, done="deleted")

    # One message

    @page(app, f"{WEBHOOKS}/<text>/events/<event>")
    async def event(self, visit: Visit, text: str, event: str) -> bytes:
        webhook, message = await self._message(visit, text, event)
        attempts, _ = await self.log.attempts(visit.account_id, webhook.id, message.event_id, 100)
        told = message.payload if message.fact is None else payload.told(message.fact)
        return visit.render(
            "webhooks/event.html",
            webhook=webhook,
            message=message,
            attempts=attempts,
            told=orjson.dumps(told, option=orjson.OPT_INDENT_2).decode(),
            live=message.status in ("pending", "attempting"),
            done=_DONE.get(visit.query("done"), ""),
        )

    @page(app, f"{WEBHOOKS}/<text>/events/<event>/replay", "POST")
    async def replay(self, visit: Visit, text: str, event: str) -> bytes:
        webhook, message = await self._message(visit, text, event)
        line = visit.line("webhook event resent", f"{message.type} to {webhook.url}")
        await self.log.replay(visit.account_id, webhook.id, message.event_id, self.desk.now(), [line])
        self.outgoing()
        return visit.redirect(f"{WEBHOOKS}/{webhook.id}/events/{message.event_id}", done="again")

    def _given(self, visit: Visit) -> tuple[str, Sequence[str], dict[str, str]]:
        """The URL in its one spelling, the types that were chosen, and what is wrong with them."""
        errors: dict[str, str] = {}
        events = [kind for kind in OFFERED if visit.form.get(f"on:{kind}")]
        url = ""
        try:
            url = self.read_url(visit.field("url")).text
        except BadUrl as wrong:
            errors["url"] = f"The URL {wrong}."
        if not events:
            errors["events"] = "Choose at least one event."
        return url, events, errors

    async def _webhook(self, visit: Visit, text: str) -> tuple[Webhook, bytes]:
        found = await self.stored.get(visit.account_id, visit.uuid(text, "webhook"))
        if found is None:
            raise not_found("webhook")
        return found

    async def _message(self, visit: Visit, text: str, event: str) -> tuple[Webhook, Message]:
        webhook, _ = await self._webhook(visit, text)
        event_id: UUID = visit.uuid(event, "event")
        message = await self.log.get(visit.account_id, webhook.id, event_id)
        if message is None:
            raise not_found("event")
        return webhook, message
