"""Webhooks: the endpoints of an account, what was sent to them, and sending it again."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from uuid import UUID

import attrs

from mailsvc.events import payload
from mailsvc.http import parameters
from mailsvc.http.answer import audited, collection, created, ok, page
from mailsvc.http.operations import PAGING, operation
from mailsvc.http.problem import Problem, invalid, not_found
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources import webhook_fields as fields
from mailsvc.http.resources.webhook_fields import shown_message, shown_secret
from mailsvc.http.views import Listing
from mailsvc.net.urls import BadUrl, Target
from mailsvc.store.events.webhook_log import Message, WebhookLog
from mailsvc.store.events.webhooks import Status, Webhook
from mailsvc.store.events.webhooks import Webhooks as StoredWebhooks

SECRET = 32  # bytes
ALL = 1000  # endpoints in a list without a limit; an account has fewer

_MESSAGE = re.compile(r"msg_[0-9a-f]{32}\Z")
_ATTEMPT = re.compile(r"atmpt_[0-9a-f]{32}\Z")


@attrs.define(eq=False)
class Webhooks:
    """`read_url` refuses URLs that no endpoint can have. `on_outgoing` is called when something is due immediately."""

    app = collection()
    endpoints: StoredWebhooks
    log: WebhookLog
    reader: Reader
    read_url: Callable[[str], Target]
    most: int = 100
    on_outgoing: Callable[[], None] = lambda: None

    @app.route("/webhooks", methods=["POST"])
    @operation(
        "Create a webhook",
        "Sends the events of the given types to a URL, from now on. The response has the secret that signs them.",
        fields.WITH_SECRET,
        status=201,
        body=fields.CREATE,
    )
    async def add(self, request: Request) -> bytes:
        return await request.detached(self._add(request))

    async def _add(self, request: Request) -> bytes:
        given = await self.reader.record(request, fields.CREATE)
        url, events = self._url(given["endpoint"]), list(dict.fromkeys(given["events"]))
        status: Status = given["status"] or "enabled"
        secret = secrets.token_bytes(SECRET)
        line = audited(request, "webhook added", url if status == "enabled" else f"{url}, {status}")
        added = await self.endpoints.add(request.caller.account_id, url, events, secret, self.most, [line], status)
        if added is None:
            raise invalid(f"An account can have at most {self.most} webhooks.")
        return created(request, fields.WITH_SECRET.show(added, signing_secret=shown_secret(secret)))

    @app.route("/webhooks", methods=["GET"])
    @operation(
        "List webhooks",
        "The webhooks of the account, newest first; all of them without parameters.",
        Listing(fields.ROW),
        parameters=PAGING,
    )
    async def list(self, request: Request) -> bytes:
        wanted = parameters.page(request, default=None)
        found, more = await request.detached(
            self.endpoints.list(request.caller.account_id, wanted.limit or ALL, wanted.after, wanted.before)
        )
        return page(request, fields.ROW, found, more)

    @app.route("/webhooks/<id>", methods=["GET"])
    @operation("Retrieve a webhook", "A webhook with its secret and its health.", fields.WEBHOOK)
    async def get(self, request: Request, id: str) -> bytes:
        webhook, secret = await request.detached(self._one(request, id))
        return ok(request, fields.WEBHOOK.show(webhook, signing_secret=shown_secret(secret)))

    @app.route("/webhooks/<id>", methods=["PATCH"])
    @operation(
        "Update a webhook",
        "Changes a webhook and clears its failures. Fields that are not given stay as they are.",
        fields.CHANGED,
        body=fields.UPDATE,
    )
    async def change(self, request: Request, id: str) -> bytes:
        parameters.uuid(id, "id")
        return await request.detached(self._change(request, id))

    async def _change(self, request: Request, id: str) -> bytes:
        given = await self.reader.record(request, fields.UPDATE)
        url, status = given["endpoint"] and self._url(given["endpoint"]), given["status"]
        events = given["events"] and list(dict.fromkeys(given["events"]))
        webhook, _ = await self._one(request, id)
        line = audited(request, "webhook changed", ", ".join(filter(None, (url or webhook.url, status))))
        if not await self.endpoints.change(webhook.account_id, webhook.id, url, events, status, [line]):
            raise not_found("Webhook")
        self.on_outgoing()
        return ok(request, fields.CHANGED.show(webhook))

    @app.route("/webhooks/<id>", methods=["DELETE"])
    @operation("Delete a webhook", "Pending events are discarded.", fields.DELETED)
    async def remove(self, request: Request, id: str) -> bytes:
        return await request.detached(self._remove(request, id))

    async def _remove(self, request: Request, id: str) -> bytes:
        webhook, _ = await self._one(request, id)
        if not await self.endpoints.remove(webhook.account_id, webhook.id, [audited(request, "webhook deleted", webhook.url)]):
            raise not_found("Webhook")
        self.on_outgoing()
        return ok(request, fields.DELETED.show(webhook))

    @app.route("/webhooks/<id>/signing-secret/rotate", methods=["POST"])
    @operation(
        "Rotate the signing secret", "Returns a new secret. For 24 hours events are signed with the old one as well.", fields.WITH_SECRET
    )
    async def rotate(self, request: Request, id: str) -> bytes:
        return await request.detached(self._rotate(request, id))

    async def _rotate(self, request: Request, id: str) -> bytes:
        webhook, _ = await self._one(request, id)
        secret, line = secrets.token_bytes(SECRET), audited(request, "webhook secret rotated", webhook.url)
        if not await self.endpoints.rotate(webhook.account_id, webhook.id, secret, [line]):
            raise not_found("Webhook")
        return ok(request, fields.WITH_SECRET.show(webhook, signing_secret=shown_secret(secret)))

    @app.route("/webhooks/<id>/events", methods=["GET"])
    @operation(
        "List the events of a webhook",
        "The events for this endpoint, newest first, with the state of their delivery.",
        Listing(fields.MESSAGE_ROW),
        parameters=fields.MESSAGES,
    )
    async def events(self, request: Request, id: str) -> bytes:
        wanted = parameters.page(request, message_id, backwards=False)
        webhook, _ = await request.detached(self._one(request, id))
        found, more = await request.detached(
            self.log.list(webhook.account_id, webhook.id, wanted.limit or parameters.PAGE_DEFAULT, wanted.after)
        )
        return page(request, fields.MESSAGE_ROW, found, more)

    @app.route("/webhooks/<id>/events/<event>", methods=["GET"])
    @operation("Retrieve an event of a webhook", "An event for this endpoint with its payload.", fields.MESSAGE)
    async def event(self, request: Request, id: str, event: str) -> bytes:
        message = await request.detached(self._message(request, id, event))
        sent = message.payload if message.fact is None else payload.render(message.fact)
        return ok(request, {**fields.MESSAGE.show(message, payload=None), "payload": sent})

    @app.route("/webhooks/<id>/events/<event>/attempts", methods=["GET"])
    @operation(
        "List the attempts of a webhook event",
        "Each request that was made for the event, newest first.",
        Listing(fields.ATTEMPT_ROW),
        parameters=fields.ATTEMPTS,
    )
    async def attempts(self, request: Request, id: str, event: str) -> bytes:
        wanted = parameters.page(request, attempt_id, backwards=False)
        message = await request.detached(self._message(request, id, event))
        account_id, webhook_id = request.caller.account_id, parameters.uuid(id, "id")
        found, more = await request.detached(
            self.log.attempts(account_id, webhook_id, message.event_id, wanted.limit or parameters.PAGE_DEFAULT, wanted.after)
        )
        return page(request, fields.ATTEMPT_ROW, found, more)

    @app.route("/webhooks/<id>/events/<event>/replay", methods=["POST"])
    @operation("Replay a webhook event", "Sends an event again, with all attempts of a new one.", fields.REPLAYED)
    async def replay(self, request: Request, id: str, event: str) -> bytes:
        return await request.detached(self._replay(request, id, event))

    async def _replay(self, request: Request, id: str, event: str) -> bytes:
        webhook = await self._enabled(request, id)
        message = await self._message(request, id, event)
        line = audited(request, "webhook event resent", f"{message.type} to {webhook.url}")
        await self.log.replay(webhook.account_id, webhook.id, message.event_id, self.reader.now(), [line])
        self.on_outgoing()
        return ok(request, fields.REPLAYED.show(id=shown_message(message.event_id)))

    @app.route("/webhooks/<id>/replay", methods=["POST"])
    @operation(
        "Replay the webhook events of a period",
        "Sends the events of a period again: those that failed, or all.",
        fields.REPLAYED_RANGE,
        body=fields.REPLAY,
    )
    async def replay_range(self, request: Request, id: str) -> bytes:
        return await request.detached(self._replay_range(request, id))

    async def _replay_range(self, request: Request, text: str) -> bytes:
        given = await self.reader.record(request, fields.REPLAY)
        since, until, failed = given["since"], given["until"] or self.reader.now(), given["status"] != "all"
        if since >= until:
            raise invalid("The `since` field must be before `until`, which is by default now.")
        webhook = await self._enabled(request, text)
        line = audited(request, "webhook events resent", f"{since.isoformat()} to {until.isoformat()}, {webhook.url}")
        count = await self.log.replay_range(webhook.account_id, webhook.id, since, until, failed, self.reader.now(), [line])
        self.on_outgoing()
        return ok(request, fields.REPLAYED_RANGE.show(webhook, replayed=count))

    @app.route("/webhooks/<id>/test", methods=["POST"])
    @operation(
        "Send a test event",
        "Sends a made-up event to the endpoint. It appears in the events of the webhook only.",
        fields.TESTED,
        status=201,
        body=fields.TEST,
        body_required=False,
    )
    async def test(self, request: Request, id: str) -> bytes:
        return await request.detached(self._test(request, id))

    async def _test(self, request: Request, text: str) -> bytes:
        kind = (await self.reader.record(request, fields.TEST))["type"] if request.received else None
        webhook = await self._enabled(request, text)
        kind, now = kind or webhook.events[0], self.reader.now()
        line = audited(request, "webhook tested", webhook.url)
        event_id = await self.log.test(webhook.account_id, webhook.id, kind, payload.sample(kind, now), now, [line])
        self.on_outgoing()
        return created(request, fields.TESTED.show(id=shown_message(event_id), type=kind))

    async def _one(self, request: Request, text: str) -> tuple[Webhook, bytes]:
        found = await self.endpoints.get(request.caller.account_id, parameters.uuid(text, "id"))
        if found is None:
            raise not_found("Webhook")
        return found

    async def _enabled(self, request: Request, text: str) -> Webhook:
        """An endpoint that is sent something now: of a disabled one, all messages are discarded."""
        webhook, _ = await self._one(request, text)
        if webhook.status == "disabled":
            raise invalid("The webhook is disabled, so nothing is sent to it. Set its `status` to `enabled` first.")
        return webhook

    async def _message(self, request: Request, text: str, event: str) -> Message:
        webhook, _ = await self._one(request, text)
        message = await self.log.get(webhook.account_id, webhook.id, message_id(event, "event id"))
        if message is None:
            raise not_found("Webhook event")
        return message

    def _url(self, url: str) -> str:
        """The URL in its canonical form."""
        try:
            return self.read_url(url).text
        except BadUrl as error:
            raise invalid(f"The `endpoint` field {error}.") from None


def message_id(text: str, name: str) -> UUID:
    if not _MESSAGE.match(text):
        raise Problem(422, "invalid_parameter", f"The `{name}` must be the ID of a webhook event, which begins with msg_.")
    return UUID(text[4:])


def attempt_id(text: str, name: str) -> UUID:
    if not _ATTEMPT.match(text):
        raise Problem(422, "invalid_parameter", f"The `{name}` must be the ID of an attempt, which begins with atmpt_.")
    return UUID(text[6:])
