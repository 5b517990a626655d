"""Webhooks: a customer's endpoints, what they were sent, and sending it again."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import attrs

from mailsvc.events import payload
from mailsvc.http import parameters
from mailsvc.http.answer import audited, collection, made, ok, page
from mailsvc.http.describe import PAGING, acknowledged, const, listed, told
from mailsvc.http.problem import Problem, invalid, missing, not_found
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources import event_schema as schema
from mailsvc.http.resources import send_fields
from mailsvc.http.resources.email_views import time, time_or_none
from mailsvc.http.resources.send_fields import Rules
from mailsvc.net.urls import BadUrl, Target
from mailsvc.store.events.webhook_log import Attempt, Message
from mailsvc.store.events.webhooks import Status, Webhook
from mailsvc.store.people.audit import Line

SECRET = 32  # octets
EVERYTHING = 1000  # endpoints in a list without a limit; an account has fewer

_MESSAGE = re.compile(r"msg_[0-9a-f]{32}\Z")
_ATTEMPT = re.compile(r"atmpt_[0-9a-f]{32}\Z")


class Endpoints(Protocol):
    """store/events/webhooks"""

    async def add(
        self, account_id: UUID, url: str, events: Sequence[str], secret: bytes, most: int, lines: Sequence[Line] = ()
    ) -> Webhook | None: ...
    async def get(self, account_id: UUID, webhook_id: UUID) -> tuple[Webhook, bytes] | None: ...
    async def change(
        self, account_id: UUID, webhook_id: UUID, url: str | None = None, events: Sequence[str] | None = None,
        status: Status | None = None, lines: Sequence[Line] = (),
    ) -> bool: ...  # fmt: skip
    async def remove(self, account_id: UUID, webhook_id: UUID, lines: Sequence[Line] = ()) -> bool: ...
    async def rotate(self, account_id: UUID, webhook_id: UUID, secret: bytes, lines: Sequence[Line] = ()) -> bool: ...
    async def list(
        self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None
    ) -> tuple[Sequence[Webhook], bool]: ...


class Log(Protocol):
    """store/events/webhook_log"""

    async def get(self, account_id: UUID, webhook_id: UUID, event_id: UUID) -> Message | None: ...
    async def attempts(
        self, account_id: UUID, webhook_id: UUID, event_id: UUID, limit: int, after: UUID | None = None
    ) -> tuple[Sequence[Attempt], bool]: ...
    async def replay(self, account_id: UUID, webhook_id: UUID, event_id: UUID, now: datetime, lines: Sequence[Line] = ()) -> bool: ...
    async def replay_range(
        self, account_id: UUID, webhook_id: UUID, since: datetime, until: datetime, failed: bool, now: datetime, lines: Sequence[Line] = ()
    ) -> int: ...
    async def test(
        self, account_id: UUID, webhook_id: UUID, kind: str, payload: dict[str, object], now: datetime, lines: Sequence[Line] = ()
    ) -> UUID: ...
    async def list(self, account_id: UUID, webhook_id: UUID, limit: int, after: UUID | None = None) -> tuple[Sequence[Message], bool]: ...


@attrs.define(eq=False)
class Webhooks:
    """`read_url` refuses what no endpoint may be; `outgoing` is called when something is to be sent at once."""

    app = collection()
    endpoints: Endpoints
    log: Log
    reader: Reader
    read_url: Callable[[str], Target]
    most: int = 100
    outgoing: Callable[[], None] = lambda: None

    @app.route("/webhooks", methods=["POST"])
    @told("Be told of events.", schema.WITH_SECRET, status=201, body=schema.NEW_WEBHOOK)
    async def add(self, request: Request) -> bytes:
        return await request.detached(self._add(request))

    async def _add(self, request: Request) -> bytes:
        url, events, _ = await self.reader.read(request, self._changes)
        if url is None or events is None:
            raise missing("endpoint" if url is None else "events")
        secret = secrets.token_bytes(SECRET)
        added = await self.endpoints.add(
            request.caller.account_id, url, events, secret, self.most, [audited(request, "webhook added", url)]
        )
        if added is None:
            raise invalid(f"An account may have at most {self.most} webhooks.")
        return made(request, {"object": "webhook", "id": str(added.id), "signing_secret": shown(secret)})

    @app.route("/webhooks", methods=["GET"])
    @told("The webhooks of the account.", listed(schema.WEBHOOK_ROW), parameters=PAGING, about="All of them when no parameter is given.")
    async def list(self, request: Request) -> bytes:
        asked = parameters.page(request, default=None)
        limit = asked.limit or EVERYTHING
        found, more = await request.detached(self.endpoints.list(request.caller.account_id, limit, asked.after, asked.before))
        return page(request, [_listed(webhook) for webhook in found], more)

    @app.route("/webhooks/<id>", methods=["GET"])
    @told("A webhook with its secret.", schema.WEBHOOK)
    async def get(self, request: Request, id: str) -> bytes:
        webhook, secret = await request.detached(self._one(request, id))
        health = {
            "disabled_reason": webhook.disabled_why,
            "failing_since": time_or_none(webhook.failing_since),
            "last_failure": None if webhook.failed_at is None else {"at": time(webhook.failed_at), "status": webhook.failed_with},
        }
        return ok(request, {"object": "webhook", **_listed(webhook), "signing_secret": shown(secret), **health})

    @app.route("/webhooks/<id>", methods=["PATCH"])
    @told("Change a webhook.", acknowledged("webhook"), body=schema.CHANGE_WEBHOOK)
    async def change(self, request: Request, id: str) -> bytes:
        parameters.uuid(id, "id")
        return await request.detached(self._change(request, id))

    async def _change(self, request: Request, id: str) -> bytes:
        url, events, status = await self.reader.read(request, self._changes)
        webhook, _ = await self._one(request, id)
        line = audited(request, "webhook changed", ", ".join(filter(None, (url or webhook.url, status))))
        if not await self.endpoints.change(webhook.account_id, webhook.id, url, events, status, [line]):
            raise not_found("Webhook")
        self.outgoing()
        return ok(request, {"object": "webhook", "id": str(webhook.id)})

    @app.route("/webhooks/<id>", methods=["DELETE"])
    @told("Delete a webhook.", acknowledged("webhook", deleted=const(True)))
    async def remove(self, request: Request, id: str) -> bytes:
        return await request.detached(self._remove(request, id))

    async def _remove(self, request: Request, id: str) -> bytes:
        webhook, _ = await self._one(request, id)
        if not await self.endpoints.remove(webhook.account_id, webhook.id, [audited(request, "webhook deleted", webhook.url)]):
            raise not_found("Webhook")
        self.outgoing()
        return ok(request, {"object": "webhook", "id": str(webhook.id), "deleted": True})

    @app.route("/webhooks/<id>/signing-secret/rotate", methods=["POST"])
    @told("A new secret; for 24 hours both sign.", schema.WITH_SECRET)
    async def rotate(self, request: Request, id: str) -> bytes:
        return await request.detached(self._rotate(request, id))

    async def _rotate(self, request: Request, id: str) -> bytes:
        webhook, _ = await self._one(request, id)
        secret, line = secrets.token_bytes(SECRET), audited(request, "webhook secret rotated", webhook.url)
        if not await self.endpoints.rotate(webhook.account_id, webhook.id, secret, [line]):
            raise not_found("Webhook")
        return ok(request, {"object": "webhook", "id": str(webhook.id), "signing_secret": shown(secret)})

    @app.route("/webhooks/<id>/events", methods=["GET"])
    @told("What it was to be told.", listed(schema.MESSAGE_ROW), parameters=schema.MESSAGES)
    async def events(self, request: Request, id: str) -> bytes:
        asked = parameters.page(request, message_id)
        if asked.before is not None:
            raise invalid("This list has no `before` parameter.")
        webhook, _ = await request.detached(self._one(request, id))
        found, more = await request.detached(
            self.log.list(webhook.account_id, webhook.id, asked.limit or parameters.PAGE_DEFAULT, asked.after)
        )
        return page(request, [_message(message) for message in found], more)

    @app.route("/webhooks/<id>/events/<event>", methods=["GET"])
    @told("One of these, with its payload.", schema.MESSAGE)
    async def event(self, request: Request, id: str, event: str) -> bytes:
        message = await request.detached(self._message(request, id, event))
        next_at = {"next_attempt_at": time_or_none(message.next_at)}
        told = message.payload if message.fact is None else payload.render(message.fact)
        return ok(request, {"object": "webhook_event", **_message(message), **next_at, "payload": told})

    @app.route("/webhooks/<id>/events/<event>/attempts", methods=["GET"])
    @told("Each try of telling it.", listed(schema.ATTEMPT_ROW), parameters=schema.ATTEMPTS)
    async def attempts(self, request: Request, id: str, event: str) -> bytes:
        asked = parameters.page(request, attempt_id)
        message = await request.detached(self._message(request, id, event))
        account_id, webhook_id = request.caller.account_id, parameters.uuid(id, "id")
        found, more = await request.detached(
            self.log.attempts(account_id, webhook_id, message.event_id, asked.limit or parameters.PAGE_DEFAULT, asked.after)
        )
        return page(request, [_attempt(attempt) for attempt in found], more)

    @app.route("/webhooks/<id>/events/<event>/replay", methods=["POST"])
    @told("Tell it again.", schema.REPLAYED)
    async def replay(self, request: Request, id: str, event: str) -> bytes:
        return await request.detached(self._replay(request, id, event))

    async def _replay(self, request: Request, id: str, event: str) -> bytes:
        webhook, _ = await self._one(request, id)
        message = await self._message(request, id, event)
        line = audited(request, "webhook event sent again", f"{message.type} to {webhook.url}")
        await self.log.replay(webhook.account_id, webhook.id, message.event_id, self.reader.now(), [line])
        self.outgoing()
        return ok(request, {"object": "webhook_event", "id": shown_message(message.event_id)})

    @app.route("/webhooks/<id>/replay", methods=["POST"])
    @told("Tell again what was told in a time.", schema.REPLAYED_RANGE, body=schema.REPLAY)
    async def replay_range(self, request: Request, id: str) -> bytes:
        return await request.detached(self._replay_range(request, id))

    async def _replay_range(self, request: Request, text: str) -> bytes:
        since, until, failed = await self.reader.read(request, _range)
        webhook, _ = await self._one(request, text)
        line = audited(request, "webhook events sent again", f"{since.isoformat()} to {until.isoformat()}, {webhook.url}")
        count = await self.log.replay_range(webhook.account_id, webhook.id, since, until, failed, self.reader.now(), [line])
        self.outgoing()
        return ok(request, {"object": "webhook_replay", "id": str(webhook.id), "replayed": count})

    @app.route("/webhooks/<id>/test", methods=["POST"])
    @told("Send a sample event.", schema.TESTED, status=201, body=schema.TEST, body_required=False)
    async def test(self, request: Request, id: str) -> bytes:
        return await request.detached(self._test(request, id))

    async def _test(self, request: Request, text: str) -> bytes:
        kind = await self.reader.read(request, _kind) if request.received else None
        webhook, _ = await self._one(request, text)
        kind, now = kind or webhook.events[0], self.reader.now()
        line = audited(request, "webhook tested", webhook.url)
        event_id = await self.log.test(webhook.account_id, webhook.id, kind, payload.sample(kind, now), now, [line])
        self.outgoing()
        return made(request, {"object": "webhook_event", "id": shown_message(event_id), "type": kind})

    async def _one(self, request: Request, text: str) -> tuple[Webhook, bytes]:
        found = await self.endpoints.get(request.caller.account_id, parameters.uuid(text, "id"))
        if found is None:
            raise not_found("Webhook")
        return found

    async def _message(self, request: Request, text: str, event: str) -> Message:
        webhook, _ = await self._one(request, text)
        message = await self.log.get(webhook.account_id, webhook.id, message_id(event, "event id"))
        if message is None:
            raise not_found("Webhook event")
        return message

    def _changes(self, value: Any, rules: Rules) -> tuple[str | None, Sequence[str] | None, Status | None]:
        """What a request sets: the endpoint's URL in its one spelling, its event types, its status."""
        fields = _object(value)
        return self._url(fields), _events(fields), _status(fields)

    def _url(self, fields: send_fields.Object) -> str | None:
        url = send_fields.string(fields, "endpoint")
        if not url:
            return None
        try:
            return self.read_url(url).text
        except BadUrl as error:
            raise invalid(f"The `endpoint` {error}.") from None


def shown(secret: bytes) -> str:
    return f"whsec_{base64.b64encode(secret).decode()}"


def shown_message(event_id: UUID) -> str:
    return f"msg_{event_id.hex}"


def message_id(text: str, name: str) -> UUID:
    if not _MESSAGE.match(text):
        raise Problem(422, "invalid_parameter", f"The `{name}` must be the id of a webhook event, which begins with msg_.")
    return UUID(text[4:])


def attempt_id(text: str, name: str) -> UUID:
    if not _ATTEMPT.match(text):
        raise Problem(422, "invalid_parameter", f"The `{name}` must be the id of an attempt, which begins with atmpt_.")
    return UUID(text[6:])


def _object(value: Any) -> send_fields.Object:
    if not isinstance(value, dict):
        raise invalid("The request body must be a JSON object.")
    return value


def _events(fields: send_fields.Object) -> Sequence[str] | None:
    events = send_fields.strings(fields, "events")
    if fields.get("events") is not None and not events:
        raise invalid("The `events` field must have at least one type.")
    for kind in events:
        _known(kind, "events")
    return list(dict.fromkeys(events)) or None


def _known(kind: str, field: str) -> str:
    if kind not in payload.TYPES:
        raise invalid(f"The `{field}` field has {kind[:60]!r}, which is no type of event. Known: {', '.join(payload.TYPES)}.")
    return kind


def _status(fields: send_fields.Object) -> Status | None:
    match send_fields.string(fields, "status"):
        case None | "":
            return None
        case "enabled":
            return "enabled"
        case "disabled":
            return "disabled"
    raise invalid("The `status` field must be `enabled` or `disabled`.")


def _range(value: Any, rules: Rules) -> tuple[datetime, datetime, bool]:
    fields = _object(value)
    since, until, status = (send_fields.string(fields, name) for name in ("since", "until", "status"))
    if not since:
        raise missing("since")
    if status not in (None, "", "failed", "all"):
        raise invalid("The `status` field must be `failed` or `all`.")
    return _moment(since, "since"), _moment(until, "until") if until else rules.now, status != "all"


def _moment(text: str, field: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise invalid(f"The `{field}` field must be a time in ISO 8601 with its offset, such as 2026-01-02T03:04:05Z.")
    return found


def _kind(value: Any, rules: Rules) -> str | None:
    kind = send_fields.string(_object(value), "type")
    return _known(kind, "type") if kind else None


def _listed(webhook: Webhook) -> dict[str, object]:
    return {
        "id": str(webhook.id),
        "created_at": time(webhook.created_at),
        "status": webhook.status,
        "endpoint": webhook.url,
        "events": webhook.events,
    }


def _message(message: Message) -> dict[str, object]:
    return {
        "id": shown_message(message.event_id),
        "type": message.type,
        "created_at": time(message.created_at),
        "status": message.status,
    }


def _attempt(attempt: Attempt) -> dict[str, object]:
    return {
        "id": f"atmpt_{attempt.attempt_id.hex}",
        "http_status_code": attempt.status,
        "response": attempt.response,
        "sent_at": time(attempt.started_at),
        "duration_ms": round(attempt.seconds * 1000),
        "next_attempt_at": time_or_none(attempt.next_at),
    }
