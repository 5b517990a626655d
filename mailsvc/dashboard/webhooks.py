"""Webhooks: endpoints, the messages sent to each with their attempts, resending, test events."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import orjson

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageError, PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.zones import BadTime, entered
from mailsvc.events import payload
from mailsvc.net.urls import BadUrl, Target
from mailsvc.store.events.webhook_log import Message, WebhookLog
from mailsvc.store.events.webhooks import Webhook
from mailsvc.store.events.webhooks import Webhooks as Stored
from mailsvc.store.ids import uuid7_floor
from mailsvc.store.mail.search import ENGAGED

WEBHOOKS = f"{HOME}/webhooks"
SECRET = 32  # bytes
PAGE = 50
OFFERED = payload.SENT  # the API accepts more types, for compatibility with other services
# Events about tracking are chosen deliberately: there are many, and they are about what people do.
PRESELECTED = [kind for kind in OFFERED if kind.startswith("email.") and kind not in ENGAGED]
_DONE = {
    "changed": "Settings saved.",
    "enabled": "Endpoint enabled.",
    "deleted": "Endpoint deleted.",
    "test": "Test event queued. This page updates automatically.",
    "again": "Event queued for resending. This page updates automatically.",
    "replayed": "Failed events queued for resending. This page updates automatically.",
    "none": "No event failed in this time.",
}


REPLAYED = {"1": "the last hour", "24": "the last 24 hours", "72": "the last 3 days", "168": "the last 7 days"}  # hours
PERIOD = timedelta(days=1)  # of the figures
MISSED = timedelta(days=3)  # how far back at most an endpoint that is enabled again is sent what it missed


@attrs.define(eq=False)
class WebhookPages:
    """`read_url` raises BadUrl for URLs that no endpoint may have. `wake_sender` is called when messages are due now.

    `days_kept` returns for how many days an account's messages are kept.
    """

    app = section_app()
    context: PageContext
    stored: Stored
    log: WebhookLog
    read_url: Callable[[str], Target]
    most: int
    wake_sender: Callable[[], None]
    days_kept: Callable[[UUID], Awaitable[int]]

    @page(app, WEBHOOKS, access="see_setup")
    async def list(self, request: PageRequest) -> bytes:
        return await self._listed(request)

    async def _listed(self, request: PageRequest, status: int = 200, **values: object) -> bytes:
        found, _ = await self.stored.list(request.account_id, 1000)
        shown: dict[str, object] = {"errors": {}, "url": "", "done": _DONE.get(request.query("done"), "")}
        chosen = [kind for kind in OFFERED if request.form.get(f"on:{kind}")] if request.form else PRESELECTED
        return request.render("webhooks/list.html", status, webhooks=found, offered=OFFERED, chosen=chosen, **shown | values)

    @page(app, WEBHOOKS, "POST", access="change_setup")
    async def add(self, request: PageRequest) -> bytes:
        url, events, errors = self._given(request)
        if errors:
            return await self._listed(request, 422, errors=errors, url=request.field("url"))
        entry = request.audit_entry("webhook added", url)
        added = await self.stored.add(request.account_id, url, events, secrets.token_bytes(SECRET), self.most, [entry])
        if added is None:
            most = f"An account can have up to {self.most} endpoints. Delete one first."
            return await self._listed(request, 422, errors={"url": most}, url=request.field("url"))
        return request.redirect(f"{WEBHOOKS}/{added.id}")

    @page(app, f"{WEBHOOKS}/<text>", access="see_setup")
    async def one(self, request: PageRequest, text: str) -> bytes:
        webhook, _ = await self._webhook(request, text)
        return await self._shown(request, webhook)

    async def _shown(self, request: PageRequest, webhook: Webhook, status: int = 200, *, shown: str = "", **values: object) -> bytes:
        """`shown`: the signing secret. `values`: the submitted form and its errors."""
        after = request.uuid(request.query("after")) if request.query("after") else None
        messages, more = await self.log.list(request.account_id, webhook.id, PAGE, after)
        now = self.context.now()
        typed: dict[str, object] = {"errors": {}, "url": webhook.url, "chosen": webhook.events, "enabled": webhook.status == "enabled"}
        return request.render(
            "webhooks/one.html",
            status,
            webhook=webhook,
            secret=shown,
            messages=messages,
            older=f"{WEBHOOKS}/{webhook.id}?after={messages[-1].event_id}" if more else None,
            first=after is None,
            offered=OFFERED,
            replayed=REPLAYED,
            days_missed=(await self._missed(request)).days if webhook.status == "disabled" else 0,
            figures=await self.log.figures(request.account_id, webhook.id, now - PERIOD, now - MISSED),
            live=any(message.status in ("pending", "attempting") for message in messages),
            done=_DONE.get(request.query("done"), ""),
            **typed | values,
        )

    @page(app, f"{WEBHOOKS}/<text>/secret", access="administer", reauthenticate=True)
    async def secret(self, request: PageRequest, text: str) -> bytes:
        """Show the signing secret. Whoever has it can forge events."""
        webhook, secret = await self._webhook(request, text)
        await request.write_audit_entry("webhook secret shown", webhook.url)
        return await self._shown(request, webhook, shown=f"whsec_{base64.b64encode(secret).decode()}")

    @page(app, f"{WEBHOOKS}/<text>/change", "POST", access="change_setup")
    async def change(self, request: PageRequest, text: str) -> bytes:
        webhook, _ = await self._webhook(request, text)
        url, events, errors = self._given(request, kept=[kind for kind in webhook.events if kind not in OFFERED])
        enabled = request.field("enabled") == "on"
        if errors:
            typed = request.field("url")
            return await self._shown(request, webhook, 422, errors=errors, url=typed, chosen=events, enabled=enabled)
        status: Any = "enabled" if enabled else "disabled"
        await self.stored.change(
            request.account_id, webhook.id, url, events, status, [request.audit_entry("webhook changed", f"{url}, {status}")]
        )
        self.wake_sender()
        return request.redirect(f"{WEBHOOKS}/{webhook.id}", done="changed")

    @page(app, f"{WEBHOOKS}/<text>/test", "POST", access="change_setup")
    async def test(self, request: PageRequest, text: str) -> bytes:
        webhook = _enabled((await self._webhook(request, text))[0])
        kind, now = webhook.events[0], self.context.now()
        await self.log.test(
            request.account_id, webhook.id, kind, payload.sample(kind, now), now, [request.audit_entry("webhook tested", webhook.url)]
        )
        self.wake_sender()
        return request.redirect(f"{WEBHOOKS}/{webhook.id}", done="test")

    @page(app, f"{WEBHOOKS}/<text>/enable", "POST", access="change_setup")
    async def enable(self, request: PageRequest, text: str) -> bytes:
        """Enable an endpoint, and send it what failed and what happened while it was disabled."""
        webhook, _ = await self._webhook(request, text)
        now = self.context.now()
        after = max(await self.log.last(webhook), uuid7_floor(now - await self._missed(request)))
        await self.log.enable(webhook, after, now, [request.audit_entry("webhook enabled", f"{webhook.url}, with a replay")])
        await self.log.replay_range(request.account_id, webhook.id, webhook.failing_since or now - MISSED, now, True, now)
        self.wake_sender()
        return request.redirect(f"{WEBHOOKS}/{webhook.id}", done="enabled")

    async def _missed(self, request: PageRequest) -> timedelta:
        """How far back an endpoint that is enabled again is sent what it missed: only what is kept shows what was sent before."""
        return min(MISSED, timedelta(days=await self.days_kept(request.account_id)))

    @page(app, f"{WEBHOOKS}/<text>/replay", "POST", access="change_setup")
    async def replay_failed(self, request: PageRequest, text: str) -> bytes:
        webhook = _enabled((await self._webhook(request, text))[0])
        now = self.context.now()
        since, period = _since(request, now)
        entry = request.audit_entry("webhook events resent", f"failed {period} to {webhook.url}")
        count = await self.log.replay_range(request.account_id, webhook.id, since, now, True, now, [entry])
        self.wake_sender()
        return request.redirect(f"{WEBHOOKS}/{webhook.id}", done="replayed" if count else "none")

    @page(app, f"{WEBHOOKS}/<text>/delete", "POST", access="change_setup")
    async def delete(self, request: PageRequest, text: str) -> bytes:
        webhook, _ = await self._webhook(request, text)
        await self.stored.remove(request.account_id, webhook.id, [request.audit_entry("webhook deleted", webhook.url)])
        self.wake_sender()
        return request.redirect(WEBHOOKS, done="deleted")

    # One message

    @page(app, f"{WEBHOOKS}/<text>/events/<event>", access="see_setup")
    async def event(self, request: PageRequest, text: str, event: str) -> bytes:
        webhook, message = await self._message(request, text, event)
        attempts, _ = await self.log.attempts(request.account_id, webhook.id, message.event_id, 100)
        body = message.payload if message.fact is None else payload.render(message.fact)
        return request.render(
            "webhooks/event.html",
            webhook=webhook,
            message=message,
            attempts=attempts,
            payload=None if body is None else orjson.dumps(body, option=orjson.OPT_INDENT_2).decode(),
            live=message.status in ("pending", "attempting"),
            done=_DONE.get(request.query("done"), ""),
        )

    @page(app, f"{WEBHOOKS}/<text>/events/<event>/replay", "POST", access="change_setup")
    async def replay(self, request: PageRequest, text: str, event: str) -> bytes:
        webhook, message = await self._message(request, text, event)
        _enabled(webhook)
        entry = request.audit_entry("webhook event resent", f"{message.type} to {webhook.url}")
        await self.log.replay(request.account_id, webhook.id, message.event_id, self.context.now(), [entry])
        self.wake_sender()
        return request.redirect(f"{WEBHOOKS}/{webhook.id}/events/{message.event_id}", done="again")

    def _given(self, request: PageRequest, kept: Sequence[str] = ()) -> tuple[str, Sequence[str], dict[str, str]]:
        """The normalized URL, the selected event types, and the errors by field. `kept`: event types that the form does not show."""
        errors: dict[str, str] = {}
        events = [*(kind for kind in OFFERED if request.form.get(f"on:{kind}")), *kept]
        url = ""
        try:
            url = self.read_url(request.field("url")).text
        except BadUrl as wrong:
            errors["url"] = f"The URL {wrong}."
        if not events:
            errors["events"] = "Choose at least one event."
        return url, events, errors

    async def _webhook(self, request: PageRequest, text: str) -> tuple[Webhook, bytes]:
        found = await self.stored.get(request.account_id, request.uuid(text, "webhook"))
        if found is None:
            raise not_found("webhook")
        return found

    async def _message(self, request: PageRequest, text: str, event: str) -> tuple[Webhook, Message]:
        webhook, _ = await self._webhook(request, text)
        event_id: UUID = request.uuid(event, "event")
        message = await self.log.get(request.account_id, webhook.id, event_id)
        if message is None:
            raise not_found("event")
        return webhook, message


def _enabled(webhook: Webhook) -> Webhook:
    """Refuses to send something to a disabled endpoint: its messages are discarded. The pages do not offer it."""
    if webhook.status == "disabled":
        raise PageError(409, "Endpoint disabled", "Nothing is sent to a disabled endpoint. Enable it first.")
    return webhook


def _since(request: PageRequest, now: datetime) -> tuple[datetime, str]:
    """From when on failed events are sent again: the time that was typed, or else the period that was chosen. Also in words."""
    hours, typed = request.field("hours"), request.field("since")
    if not typed:
        if hours not in REPLAYED:
            raise PageError(422, "Unknown period", "Choose from the list how far back events are sent again.")
        return now - timedelta(hours=int(hours)), f"in {REPLAYED[hours]}"
    try:
        since = entered(typed, request.zone)
    except BadTime as wrong:
        raise PageError(422, "Invalid time", str(wrong)) from None
    if since > now:
        raise PageError(422, "Invalid time", "“Since” must be in the past.")
    return since, f"since {since.isoformat(timespec='minutes')}"
