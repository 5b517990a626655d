"""Emails: send one or a batch, read them back, reschedule, cancel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred

from mailsvc.http import parameters
from mailsvc.http.answer import collection, ok, page
from mailsvc.http.fields import Rules
from mailsvc.http.operations import PAGING, not_served, operation
from mailsvc.http.problem import DELETED, Problem, invalid, no_endpoint, not_found, over_quota, refused, unavailable
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources import email_views as views
from mailsvc.http.resources import send_fields
from mailsvc.http.resources.attachment_links import Link, Links
from mailsvc.http.resources.contents import COPIES, GONE, IN_THREAD, Contents
from mailsvc.http.views import Listing
from mailsvc.incoming import attachments_of
from mailsvc.intake import Admission, Admitted, Busy, Incoming, Intake, Key, OtherRequest, Rejected
from mailsvc.policy import Refusal
from mailsvc.runtime.failures import forget
from mailsvc.settings.plans import WORDS, Exhausted
from mailsvc.store.mail.emails import Emails as StoredEmails
from mailsvc.store.people.quota import Period


@attrs.frozen
class _Asked:
    """A request to send: its valid emails and what is wrong with the others, by place, and the idempotency key."""

    emails: Mapping[int, Incoming]
    problems: Mapping[int, Problem]
    key: Key | None

    def has_links(self) -> bool:
        return any(isinstance(each, Link) for email in self.emails.values() for each in attachments_of(email))


@attrs.define(eq=False)
class Emails:
    app = collection("batch", "sending", "receiving")
    intake: Intake
    stored: StoredEmails
    contents: Contents
    reader: Reader
    links: Links
    used: Callable[[UUID], Mapping[Period, int]] = lambda account_id: {}  # how much of its plan an account has used, if known here

    # Sending continues if the client hangs up. Both return the Deferred, because awaiting it would cost another coroutine.

    @app.route("/emails", methods=["POST"])
    @app.route("/email", methods=["POST"])
    @app.route("/emails/sending", methods=["POST"])
    @app.route("/email/sending", methods=["POST"])
    @operation(
        "Send an email",
        "Responds after the email is stored. Delivery happens later: read the email back or use webhooks to follow it.",
        views.SENT,
        body=send_fields.EMAIL,
        parameters=[views.IDEMPOTENCY_KEY],
        errors=[409, 413],
        key="sending",
    )
    def send(self, request: Request) -> Deferred[bytes]:
        return request.detached(self._send(request))

    @app.route("/emails/batch", methods=["POST"])
    @operation(
        "Send a batch of emails",
        "Sends several emails with one request. With `x-batch-validation: permissive`, `errors` names the emails that were refused.",
        views.SENT_BATCH,
        body=send_fields.BATCH,
        parameters=[views.IDEMPOTENCY_KEY, views.VALIDATION],
        errors=[409, 413],
        key="sending",
    )
    def send_batch(self, request: Request) -> Deferred[bytes]:
        return request.detached(self._send_batch(request))

    async def _send(self, request: Request) -> bytes:
        key = parameters.idempotency_key(request)
        client, trace = request.address(), _trace(request)

        def make(value: Any, rules: Rules) -> _Asked:
            return _read([value], _key("POST /emails", key, value), rules, client, trace)

        result = (await self._results(request, await self.reader.read(request, make), permissive=False))[0]
        if isinstance(result, Problem):
            raise result
        request.email_id = str(result)
        return ok(request, {"id": request.email_id})

    async def _send_batch(self, request: Request) -> bytes:
        key, permissive = parameters.idempotency_key(request), parameters.permissive(request)
        client, trace = request.address(), _trace(request)

        def make(value: Any, rules: Rules) -> _Asked:
            send_fields.BATCH.count(value, "", rules)
            return _read(value, _key("POST /emails/batch", key, value), rules, client, trace)

        results = await self._results(request, await self.reader.read(request, make), permissive=permissive)
        problems = {place: result for place, result in results.items() if isinstance(result, Problem)}
        if problems and not permissive:
            place = min(problems)
            raise problems[place].at(place)
        ids = [{"id": str(result)} for result in results.values() if not isinstance(result, Problem)]
        request.email_id = " ".join(each["id"] for each in ids)
        if not permissive:
            return ok(request, {"data": ids})
        errors = [{"index": place, "message": problems[place].message} for place in sorted(problems)]
        return ok(request, {"data": ids, "errors": errors})

    async def _results(self, request: Request, asked: _Asked, *, permissive: bool) -> dict[int, UUID | Problem]:
        """The ID or the problem of each email, by place. Valid emails that were not stored because others were refused are left out.

        A request that was accepted is not judged again when it is repeated: a time may have passed, a linked file may be gone.
        """
        if asked.has_links() and (permissive or not asked.problems):
            known = await self._known(request, asked)
            if known is not None:
                return known
            asked = await self._follow(request, asked)
        if asked.problems:
            known = await self._known(request, asked)
            if known is not None:
                return known
            if not permissive or not asked.emails:
                return {**asked.problems}
        return self._by_place(request, asked, await self._submit(request, asked, permissive=permissive))

    async def _known(self, request: Request, asked: _Asked) -> dict[int, UUID | Problem] | None:
        """The results of an earlier request with the same idempotency key."""
        earlier = None if asked.key is None else await self.intake.recall(request.caller, asked.key)
        return None if earlier is None else self._by_place(request, asked, earlier)

    async def _follow(self, request: Request, asked: _Asked) -> _Asked:
        """The request with the files that its attachments link to, or the problem of each email with one that could not be fetched."""
        if not request.leave_turn():  # others can work while this request waits for other servers
            raise unavailable()
        followed = await self.links.follow(list(asked.emails.values()), request.reserve)
        if request.reserved >= IN_THREAD and not await request.turn(COPIES * request.reserved):
            raise unavailable()
        emails, problems = {}, dict(asked.problems)
        for n, (place, email) in enumerate(asked.emails.items()):
            found = followed.get(n, email)
            if isinstance(found, Problem):
                problems[place] = found
            else:
                emails[place] = found
        return _Asked(emails, problems, asked.key)

    async def _submit(self, request: Request, asked: _Asked, *, permissive: bool) -> Admission:
        key = asked.key
        if key is not None and asked.problems:
            key = attrs.evolve(key, invalid={place: Refusal("content", None, each.message) for place, each in asked.problems.items()})
        return await self.intake.submit(request.caller, list(asked.emails.values()), key, permissive=permissive)

    def _by_place(self, request: Request, asked: _Asked, admission: Admission) -> dict[int, UUID | Problem]:
        for period, used in self.used(request.caller.account_id).items():
            request.setHeader(f"x-resend-{WORDS[period]}-quota", str(used))
        places = [*asked.emails, *asked.problems]  # those of submitted emails first
        match admission:
            case Admitted(results):
                if len(results) == len(places):  # every place; the previous release stored no results for invalid emails
                    places.sort()
                found = {place: _result(result) for place, result in zip(places, results, strict=False)}
                return {**found, **{place: each for place, each in asked.problems.items() if place not in found}}
            case Rejected(refusals):
                return {**asked.problems, **{places[n]: refused(refusal) for n, refusal in refusals.items()}}
            case Busy():
                raise Problem(409, "concurrent_idempotent_requests", "A request with the same idempotency key is still in progress.")
            case Exhausted():
                raise over_quota(admission, self.reader.now())
            case OtherRequest():
                raise Problem(409, "invalid_idempotent_request", "The idempotency key was used for a different request.")

    @app.route("/emails/receiving")
    @app.route("/emails/receiving/<path:rest>")
    @not_served
    async def received(self, request: Request, rest: str = "") -> bytes:
        raise no_endpoint()

    @app.route("/emails", methods=["GET"])
    @operation(
        "List emails", "The emails of the account, newest first, without their content.", Listing(views.EMAIL_ROW), parameters=PAGING
    )
    async def list(self, request: Request) -> bytes:
        wanted = parameters.page(request)
        found, has_more = await request.detached(
            self.stored.list(request.caller.account_id, wanted.limit or parameters.PAGE_DEFAULT, wanted.after, wanted.before)
        )
        return page(request, views.EMAIL_ROW, found, has_more)

    @app.route("/emails/<id>", methods=["GET"])
    @operation("Retrieve an email", "The content of an email and the state of each of its recipients.", views.EMAIL)
    async def get(self, request: Request, id: str) -> bytes:
        return await request.detached(self._get(request, parameters.uuid(id, "id")))

    async def _get(self, request: Request, email_id: UUID) -> bytes:
        account_id = request.caller.account_id
        email = await self.stored.get(account_id, email_id)
        if email is None:
            raise not_found("Email")
        recipients = await self.stored.recipients(account_id, email_id)
        parsed = await self.contents.of(request, email)
        note = DELETED if parsed is GONE else None
        return ok(request, views.EMAIL.show(email, html=parsed.html, text=parsed.text, recipients=recipients, note=note))

    @app.route("/emails/<id>", methods=["PATCH"])
    @operation("Reschedule an email", "Changes when a scheduled email will be sent.", views.CHANGED, body=send_fields.RESCHEDULE)
    async def reschedule(self, request: Request, id: str) -> bytes:
        return await request.detached(self._reschedule(request, parameters.uuid(id, "id")))

    async def _reschedule(self, request: Request, email_id: UUID) -> bytes:
        at = await self.reader.read(request, _new_time)
        changed = await self.stored.reschedule(request.caller.account_id, email_id, at, self.reader.now())
        return _changed(request, email_id, changed, "The email cannot be rescheduled, because it is not scheduled.")

    @app.route("/emails/<id>/cancel", methods=["POST"])
    @operation("Cancel an email", "Cancels an email that is scheduled or queued. It cannot be rescheduled afterwards.", views.CHANGED)
    async def cancel(self, request: Request, id: str) -> bytes:
        email_id = parameters.uuid(id, "id")
        changed = await request.detached(self.stored.cancel(request.caller.account_id, email_id, self.reader.now()))
        too_late = "The email can no longer be canceled: it has ended, is being sent now, or may have arrived already."
        return _changed(request, email_id, changed, too_late)


def _trace(request: Request) -> str | None:
    return None if request.span is None else request.span.traceparent


def _key(endpoint: str, key: str | None, value: Any) -> Key | None:
    return None if key is None else Key(endpoint, key, send_fields.fingerprint(value))


def _read(values: Sequence[Any], key: Key | None, rules: Rules, client: str, trace: str | None) -> _Asked:
    emails, problems = {}, {}
    for place, value in enumerate(values):
        try:
            emails[place] = send_fields.email(value, rules, client, trace)
        except Problem as wrong:
            forget(wrong)
            problems[place] = wrong
    return _Asked(emails, problems, key)


def _result(result: UUID | Refusal) -> UUID | Problem:
    return refused(result) if isinstance(result, Refusal) else result


def _new_time(value: Any, rules: Rules) -> datetime:
    at: datetime | None = send_fields.RESCHEDULE.read(value, "", rules)["scheduled_at"]
    return at or rules.now


def _changed(request: Request, email_id: UUID, changed: str, too_late: str) -> bytes:
    if changed == "not_found":
        raise not_found("Email")
    if changed == "too_late":
        raise invalid(too_late)
    return ok(request, views.CHANGED.show(id=email_id))
