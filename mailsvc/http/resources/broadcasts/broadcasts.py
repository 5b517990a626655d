"""The broadcasts of an account: create, change, review, send, cancel, read them, and see who got them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import attrs
import orjson

from mailsvc import policy
from mailsvc.broadcasts.copying import duplicate
from mailsvc.broadcasts.fanout import CHANNEL
from mailsvc.broadcasts.previews import Texts, merged, values_of
from mailsvc.broadcasts.review import domain_of, lacks
from mailsvc.domains import names
from mailsvc.http import parameters
from mailsvc.http.answer import audited, collection, created, ok, page
from mailsvc.http.operations import PAGING, operation
from mailsvc.http.problem import Problem, invalid, missing, not_found, refused, unavailable
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources.audience.fields import contact_ref
from mailsvc.http.resources.broadcasts import fields
from mailsvc.http.resources.broadcasts.context import BroadcastContext
from mailsvc.http.resources.metrics import summed
from mailsvc.http.views import Listing
from mailsvc.mail import merge
from mailsvc.store.broadcasts.broadcasts import Broadcasts as StoredBroadcasts
from mailsvc.store.broadcasts.broadcasts import Refused
from mailsvc.store.broadcasts.recipients import COUNTED, Kind
from mailsvc.store.broadcasts.values import Broadcast, Content
from mailsvc.store.paging import Page

RETRY = 30  # seconds after which a segment that was not counted can be counted
CHUNK = 500  # broadcasts of a long list that are read and written at a time
SAMPLE_LINK = "https://example.com/unsubscribe"  # in previews
_KEPT = ("name", "segment_id", "audience_id", "from", "subject")  # every broadcast has them


@attrs.define(eq=False)
class Broadcasts:
    app = collection()
    context: BroadcastContext
    reader: Reader

    @app.route("/broadcasts", methods=["POST"])
    @operation(
        "Create a broadcast", "Creates a draft, or sends it at once with `send`.", fields.CREATED, status=201, body=fields.CREATE,
        errors=[403, 404],
    )  # fmt: skip
    async def create(self, request: Request) -> bytes:
        return await request.detached(self._create(request))

    async def _create(self, request: Request) -> bytes:
        given = await self.reader.record(request, fields.CREATE)
        changes = _changes(given, set(given))
        if changes["segment_id"] is None:
            raise missing("segment_id")
        if given["scheduled_at"] is not None and not given["send"]:
            raise invalid("The `scheduled_at` field can only be given together with `send`.")
        changes["name"] = changes["name"] or changes["subject"] or "Untitled"
        content = Content(**{name: value for name, value in changes.items() if value is not None})
        if given["send"]:
            await self._check(request, content.sender, content.subject, content.html, content.text)
        line = audited(request, "broadcast sent" if given["send"] else "broadcast created")
        caller = request.caller
        added = await self.context.stored.add(
            caller.account_id, content, [line], key_id=caller.key_id, send=bool(given["send"]), at=given["scheduled_at"]
        )
        if not isinstance(added, UUID):
            raise _refused(added, "")
        self.context.notify(CHANNEL)
        return created(request, fields.CREATED.show(id=added))

    @app.route("/broadcasts", methods=["GET"])
    @operation(
        "List broadcasts", "The broadcasts of the account, newest first; all of them without parameters.", Listing(fields.ROW),
        parameters=PAGING,
    )  # fmt: skip
    async def list(self, request: Request) -> bytes:
        account_id, wanted = request.caller.account_id, parameters.page(request, default=None)
        first = wanted if wanted.limit is not None else Page(CHUNK)
        found, more = await request.detached(self.context.stored.list(account_id, first))
        if wanted.limit is not None or not more:
            return page(request, fields.ROW, found, more)
        request.setResponseCode(200)
        await request.stream(_everything(self.context.stored, account_id))
        return b""

    @app.route("/broadcasts/<id>", methods=["GET"])
    @operation("Retrieve a broadcast", "A broadcast with its content, its progress and its counts.", fields.BROADCAST)
    async def get(self, request: Request, id: str) -> bytes:
        return await request.detached(self._get(request, id))

    async def _get(self, request: Request, id: str) -> bytes:
        found = await self._own(request, id)
        html, text = await self.context.stored.bodies(found.account_id, found.id)
        sums = summed(await self.context.stored.counts(found.account_id, found.id))
        counts = {name: number for name, number in sums.items() if number and not name.startswith("bounced_")}
        return ok(request, fields.BROADCAST.show(found, html=html, text=text, counts=counts))

    @app.route("/broadcasts/<id>", methods=["PATCH"])
    @operation(
        "Update a broadcast", "Changes a draft or a scheduled broadcast. Of others, only the name can be changed.", fields.CHANGED,
        body=fields.UPDATE, errors=[403],
    )  # fmt: skip
    async def update(self, request: Request, id: str) -> bytes:
        return await request.detached(self._update(request, id))

    async def _update(self, request: Request, id: str) -> bytes:
        broadcast_id = parameters.uuid(id, "id")
        changes = await self.reader.read(
            request, lambda value, rules: _changes(fields.UPDATE.read(value, "", rules), _present(value))
        )  # fmt: skip
        for name, field in (("sender", "from"), ("subject", "subject"), ("segment_id", "segment_id"), ("name", "name")):
            if name in changes and changes[name] is None:
                raise invalid(f"The `{field}` field must not be empty.")
        changes |= {name: "" for name in ("preview_text",) if name in changes and changes[name] is None}
        changes |= {name: () for name in ("reply_to",) if name in changes and changes[name] is None}
        await self._check_scheduled(request, broadcast_id, changes)
        line = audited(request, "broadcast changed", id)
        done = await self.context.stored.update(request.caller.account_id, broadcast_id, changes, [line])
        if done is not None:
            raise _refused(done, "Only the name of a broadcast can be changed after it was sent")
        return ok(request, fields.CHANGED.show(id=broadcast_id))

    @app.route("/broadcasts/<id>", methods=["DELETE"])
    @operation("Delete a broadcast", "Deletes a draft or a scheduled broadcast.", fields.DELETED, errors=[403])
    async def delete(self, request: Request, id: str) -> bytes:
        changed = partial(self.context.stored.remove, lines=[audited(request, "broadcast deleted", id)])
        return await request.detached(
            self._moved(request, id, changed, "Only draft or scheduled broadcasts can be deleted", fields.DELETED.show)
        )  # fmt: skip

    @app.route("/broadcasts/<id>/send", methods=["POST"])
    @operation(
        "Send a broadcast", "Sends a draft, now or at `scheduled_at`. Who gets it is decided when sending starts.", fields.CHANGED,
        body=fields.SEND, body_required=False, errors=[403],
    )  # fmt: skip
    async def send(self, request: Request, id: str) -> bytes:
        return await request.detached(self._send(request, id))

    async def _send(self, request: Request, id: str) -> bytes:
        found = await self._own(request, id)
        at: datetime | None = (await self.reader.record(request, fields.SEND))["scheduled_at"] if request.received else None
        refusal = "Only draft broadcasts can be sent"
        if found.status != "draft":
            raise _refused("status", refusal)
        html, text = await self.context.stored.bodies(found.account_id, found.id)
        await self._check(request, found.sender, found.subject, html, text)
        lines = [audited(request, "broadcast sent", id)]
        done = await self.context.stored.send(found.account_id, found.id, request.caller.key_id, at, lines)
        if done is not None:
            raise _refused(done, refusal)
        self.context.notify(CHANNEL)
        return ok(request, fields.CHANGED.show(id=found.id))

    @app.route("/broadcasts/<id>/cancel", methods=["POST"])
    @operation(
        "Cancel a broadcast", "Makes a scheduled broadcast a draft again. Of one that is being sent, the rest is not sent.",
        fields.CHANGED, errors=[403],
    )  # fmt: skip
    async def cancel(self, request: Request, id: str) -> bytes:
        changed = partial(self.context.stored.cancel, lines=[audited(request, "broadcast canceled", id)])
        return await request.detached(self._moved(request, id, changed, "Only queued or scheduled broadcasts can be canceled"))

    @app.route("/broadcasts/<id>/continue", methods=["POST"])
    @operation(
        "Continue a broadcast",
        "Continues a broadcast that was paused; `progress.reason` says why.",
        fields.CHANGED, errors=[403],
    )  # fmt: skip
    async def continue_(self, request: Request, id: str) -> bytes:
        changed = partial(self.context.stored.continue_, lines=[audited(request, "broadcast continued", id)])
        return await request.detached(self._moved(request, id, changed, "Only paused broadcasts can be continued"))

    @app.route("/broadcasts/<id>/duplicate", methods=["POST"])
    @operation("Duplicate a broadcast", "Creates a draft with the same content.", fields.CREATED, status=201)
    async def duplicate(self, request: Request, id: str) -> bytes:
        return await request.detached(self._duplicate(request, id))

    async def _duplicate(self, request: Request, id: str) -> bytes:
        broadcast_id, lines = parameters.uuid(id, "id"), [audited(request, "broadcast created")]
        copied = await duplicate(self.context.stored, self.context.in_thread, request.caller.account_id, broadcast_id, lines)
        if copied is None:
            raise not_found("Broadcast")
        return created(request, fields.CREATED.show(id=copied))

    @app.route("/broadcasts/<id>/recipients", methods=["GET"])
    @operation(
        "List the recipients of a broadcast",
        "The recipients whose emails were delivered, bounced and so on. A page can have fewer rows than `limit`, or none, "
        "although there are more: while `has_more` is true, continue with the `after` or `before` of the response.",
        fields.RECIPIENTS,
        parameters=[fields.KIND, fields.EMAIL, fields.BOUNCE, *fields.CURSORS],
    )  # fmt: skip
    async def recipients(self, request: Request, id: str) -> bytes:
        return await request.detached(self._recipients(request, id))

    async def _recipients(self, request: Request, id: str) -> bytes:
        kind: Kind | None = parameters.choice(request, "type", *fields.KINDS)  # type: ignore[assignment]
        if kind is None:
            raise Problem(422, "missing_required_field", "Missing `type` parameter.")
        bounce = parameters.choice(request, "bounce_type", *fields.BOUNCES)
        if bounce is not None and kind != "bounced":
            raise invalid("The `bounce_type` parameter can only be given together with `type=bounced`.")
        wanted = parameters.page(request, fields.cursor)
        found, email = await self._own(request, id), names.searched(parameters.one(request, "email")[:254].replace("\0", ""))
        rows, edge = await self.context.recipients.list(found.account_id, found.id, kind, wanted, bounce, email)
        following = {} if edge is None else {"before" if wanted.before else "after": fields.cursor_of(edge)}
        data = [fields.RECIPIENT.show(row, id=fields.cursor_of(row.contact_id)) for row in rows]
        if kind == "bounced":
            data = [{"bounce_type": None, **row} for row in data]
        assert kind not in COUNTED or all("count" in row for row in data)
        return ok(request, {"object": "list", "has_more": edge is not None, "data": data, **following})

    @app.route("/broadcasts/<id>/preview", methods=["GET"])
    @operation(
        "Preview a broadcast", "What one contact would get. The unsubscribe link is a sample.", fields.PREVIEW_VIEW,
        parameters=[fields.CONTACT],
    )  # fmt: skip
    async def preview(self, request: Request, id: str) -> bytes:
        return await request.detached(self._preview(request, id))

    async def _preview(self, request: Request, id: str) -> bytes:
        found = await self._own(request, id)
        ref = parameters.one(request, "contact")
        if not ref:
            raise Problem(422, "missing_required_field", "Missing `contact` parameter.")
        contact = await self.context.contacts.get(found.account_id, contact_ref(ref))
        if contact is None:
            raise not_found("Contact")
        html, text = await self.context.stored.bodies(found.account_id, found.id)
        values = await values_of(self.context.sending, found.account_id, contact, SAMPLE_LINK)

        async def reserve(size: int) -> None:
            if not await request.turn(size):
                raise unavailable()

        shown = await merged(Texts(found.subject, found.preview_text, html, text), values, self.context.in_thread, reserve)
        return ok(request, fields.PREVIEW_VIEW.show(contact_id=contact.id, **attrs.asdict(shown)))

    @app.route("/broadcasts/<id>/review", methods=["GET"])
    @operation(
        "Review a broadcast", "What is missing before it can be sent, and which values contacts don't have.", fields.REVIEW
    )  # fmt: skip
    async def review(self, request: Request, id: str) -> bytes:
        return await request.detached(self._review(request, id))

    async def _review(self, request: Request, id: str) -> bytes:
        found = await self._own(request, id)
        html, text = await self.context.stored.bodies(found.account_id, found.id)
        properties = await self.context.sending.properties(found.account_id)
        parts = (html or "", text or "", found.subject, found.preview_text)
        fallbacks = {key: each.fallback for key, each in properties.items()}
        names, used, unsubscribable = await self.context.in_thread(lambda: _placeholders(parts, fallbacks))
        problems = []
        try:
            await self._check(request, found.sender, found.subject, html, text)
        except Problem as problem:
            problems.append(problem.message)
        problems += [f"The placeholder `{name}` is neither a field nor a property of contacts." for name in names[:20]]
        if not unsubscribable:  # Google's rules and Yahoo's rules require a visible link
            problems.append("The content has no unsubscribe link. Insert `{{{RESEND_UNSUBSCRIBE_URL}}}`.")
        numbers = {key: properties[key].number if key in properties else "" for key in sorted(used)}
        total, lacking = 0, []
        if found.segment_id is None:
            problems.append("No segment is chosen.")
        elif not await self.context.sending.has_segment(found.account_id, found.segment_id):
            problems.append("The segment was deleted.")
        else:
            total, counts = await self._counted(found.account_id, found.segment_id, numbers)
            lacking = [{"key": key, "contacts": number} for key, number in counts.items() if number]
            problems += [] if total else ["The segment has no contacts."]
        if found.topic_id is not None and await self.context.sending.default(found.account_id, found.topic_id) is None:
            problems.append("The topic was deleted.")
        return ok(request, {**fields.REVIEW.show(contacts=total, problems=problems, missing=()), "missing": lacking})

    async def _counted(self, account_id: UUID, segment_id: UUID, numbers: Mapping[str, str]) -> tuple[int, Mapping[str, int]]:
        """Accounts take turns, so that none of them keeps the others from the database."""
        turns = self.context.counting
        if not await turns.take(account_id, 1):
            raise unavailable(RETRY)
        try:
            return await self.context.recipients.missing(account_id, segment_id, numbers)
        finally:
            turns.give(1)

    # Helpers

    async def _own(self, request: Request, id: str) -> Broadcast:
        found = await self.context.stored.get(request.caller.account_id, parameters.uuid(id, "id"))
        if found is None:
            raise not_found("Broadcast")
        return found

    async def _moved(
        self, request: Request, id: str, change: Callable[..., Awaitable[Refused | None]], refusal: str,
        show: Callable[..., dict[str, Any]] = fields.CHANGED.show,
    ) -> bytes:  # fmt: skip
        """The response to a change of state."""
        broadcast_id = parameters.uuid(id, "id")
        done = await change(request.caller.account_id, broadcast_id)
        if done is not None:
            raise _refused(done, refusal)
        self.context.notify(CHANNEL)
        return ok(request, show(id=broadcast_id))

    async def _check_content(self, request: Request, sender: str, subject: str, html: str | None, text: str | None) -> None:
        name, lacking = domain_of(sender), lacks(sender, subject, html, text)
        if name is None:  # a draft from the dashboard can be without one
            raise missing("from")
        domain = await self.context.domains.find(request.caller.account_id, name)
        wrong = policy.domain_refusal(name, domain, request.caller.domain_id)
        if wrong is not None:
            raise refused(wrong)
        if lacking == "subject":
            raise missing("subject")
        if lacking == "content":
            raise Problem(422, "validation_error", "The broadcast has no content: set the `html` or the `text` field.")

    async def _check_scheduled(self, request: Request, broadcast_id: UUID, changes: Mapping[str, Any]) -> None:
        """Raise a Problem if a scheduled broadcast could not be sent with these changes. The rest is checked again when it starts."""
        found = await self.context.stored.get(request.caller.account_id, broadcast_id)
        if found is None or found.status != "scheduled" or not {"sender", "subject", "html", "text"} & changes.keys():
            return
        html, text = await self.context.stored.bodies(found.account_id, found.id)
        content = {"sender": found.sender, "subject": found.subject, "html": html, "text": text, **changes}
        await self._check_content(request, *(content[name] for name in ("sender", "subject", "html", "text")))

    async def _check(self, request: Request, sender: str, subject: str, html: str | None, text: str | None) -> None:
        """Raise a Problem if a broadcast cannot be sent."""
        await self._check_content(request, sender, subject, html, text)
        if not self.context.base_url:
            raise invalid("Broadcasts cannot be sent before the operator has configured `base_url`, which unsubscribe links need.", 403)
        most = self.context.most_contacts(request.caller.plan)
        if most is not None and await self.context.figures.exceeds(request.caller.account_id, most):
            raise invalid("You have reached your contacts quota. Please upgrade your plan to send more emails.", 403)


@attrs.define(eq=False)
class PreferencePageApi:
    """How the page looks on which recipients unsubscribe; and how fast the account sends broadcasts."""

    app = collection()
    context: BroadcastContext
    reader: Reader

    @app.route("/preference-page", methods=["GET"])
    @operation("Retrieve the preference page", "How the page looks that unsubscribe links open.", fields.SETTINGS)
    async def get(self, request: Request) -> bytes:
        found = await request.detached(self.context.settings.get(request.caller.account_id))
        return ok(request, fields.SETTINGS.show(found))

    @app.route("/preference-page", methods=["PATCH"])
    @operation("Update the preference page", "Changes the given fields; null sets the default.", fields.SETTINGS, body=fields.PAGE)
    async def update(self, request: Request) -> bytes:
        return await request.detached(self._update(request))

    async def _update(self, request: Request) -> bytes:
        given = await self.reader.read(request, fields.PAGE.present)
        account_id = request.caller.account_id
        settings = fields.settings_of(await self.context.settings.get(account_id), given)
        await self.context.settings.put(account_id, settings, [audited(request, "preference page changed", ", ".join(given))])
        return ok(request, fields.SETTINGS.show(settings))


async def _everything(stored: StoredBroadcasts, account_id: UUID) -> AsyncGenerator[bytes, None]:
    """A list of up to `listed` broadcasts in pieces, so that other requests are answered in between."""
    yield b'{"object":"list","data":['
    left, after, more, separator = stored.listed, None, True, b""
    while more and left:
        found, more = await stored.list(account_id, Page(min(CHUNK, left), after))
        if found:
            yield separator + b",".join([orjson.dumps(fields.ROW.show(each)) for each in found])
            left, after, separator = left - len(found), found[-1].id, b","
    yield b'],"has_more":%s}' % (b"true" if more else b"false")


def _changes(given: Mapping[str, Any], present: set[str]) -> dict[str, Any]:
    """The fields of Content that a request has."""
    same = ("name", "topic_id", "subject", "preview_text", "html", "text", "hourly_rate")
    found = {name: given[name] for name in same if name in present}
    if {"segment_id", "audience_id"} & present:
        segment, former = given["segment_id"], given["audience_id"]
        if segment and former and segment != former:  # which of them is meant?
            raise invalid("The `audience_id` field is the former name of `segment_id` and has another value. Leave it out.")
        found["segment_id"] = segment or former
    if "from" in present:
        found["sender"] = None if given["from"] is None else given["from"].display
    if "reply_to" in present:
        found["reply_to"] = None if given["reply_to"] is None else tuple(each.display for each in given["reply_to"])
    return found


def _present(value: Mapping[str, Any]) -> set[str]:
    """The fields that a request changes. Null changes none of those that every broadcast has."""
    return {name for name in fields.UPDATE.fields if name in value and not (value[name] is None and name in _KEPT)}


def _placeholders(parts: Sequence[str], fallbacks: Mapping[str, str | None]) -> tuple[list[str], frozenset[str], bool]:
    """Unknown names, fields and properties without a fallback, and whether the content (the first two parts) has an unsubscribe link."""
    templates = [merge.parse(each) for each in parts]
    return merge.unknown(templates, fallbacks), merge.without_fallback(templates, fallbacks), merge.has_unsubscribe_link(templates[:2])


def _refused(why: Refused, status: str) -> Problem:
    match why:
        case "not_found":
            return not_found("Broadcast")
        case "segment":
            return not_found("Audience")
        case "topic":
            return not_found("Topic")
        case "status":
            return invalid(status, 403)
