"""Emails: send one or a batch, read them back, reschedule, cancel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

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
from mailsvc.intake import Admitted, Busy, Incoming, Intake, Key, OtherRequest, Rejected
from mailsvc.policy import Refusal
from mailsvc.settings.plans import WORDS, Exhausted
from mailsvc.store.mail.emails import Emails as StoredEmails
from mailsvc.store.people.quota import Period


@attrs.frozen
class _Batch:
    """A batch: the valid emails with their places in the request, and the problems of the others."""

    emails: tuple[Incoming, ...]
    places: tuple[int, ...]
    problems: dict[int, Problem]
    fingerprint: bytes | None

    def with_email(self, n: int, email: Incoming) -> _Batch:
        return attrs.evolve(self, emails=(*self.emails[:n], email, *self.emails[n + 1 :]))

    def without(self, problems: Collection[int]) -> _Batch:
        kept = [(email, place) for email, place in zip(self.emails, self.places, strict=True) if place not in problems]
        return attrs.evolve(self, emails=tuple(email for email, _ in kept), places=tuple(place for _, place in kept))


@attrs.define(eq=False)
class Emails:
    app = collection("batch", "sending", "receiving")
    intake: Intake
    stored: StoredEmails
    contents: Contents
    reader: Reader
    links: Links
    used: Callable[[UUID], Mapping[Period, int]] = lambda account_id: {}  # how much of its plan an account has used, if known here

    # Sending continues if the client hangs up.

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
    async def send(self, request: Request) -> bytes:
        return await request.detached(self._send(request))

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
    async def send_batch(self, request: Request) -> bytes:
        return await request.detached(self._send_batch(request))

    async def _send(self, request: Request) -> bytes:
        key = parameters.idempotency_key(request)
        client, trace = request.address(), _trace(request)

        def make(value: Any, rules: Rules) -> tuple[Incoming, bytes | None]:
            return send_fields.email(value, rules, client, trace), send_fields.fingerprint(value) if key is not None else None

        email, fingerprint = await self.reader.read(request, make)
        for followed in (await self._follow(request, [email])).values():
            if isinstance(followed, Problem):
                raise followed
            email = followed
        results = await self._submit(request, [email], _key("POST /emails", key, fingerprint), permissive=False)
        if isinstance(results[0], Refusal):
            raise refused(results[0])
        request.email_id = str(results[0])
        return ok(request, {"id": request.email_id})

    async def _send_batch(self, request: Request) -> bytes:
        key, permissive = parameters.idempotency_key(request), parameters.permissive(request)
        client, trace = request.address(), _trace(request)

        def make(value: Any, rules: Rules) -> _Batch:
            return self._batch(value, lambda item: send_fields.email(item, rules, client, trace), rules, permissive, key is not None)

        batch = await self.reader.read(request, make)
        problems, ids = dict(batch.problems), []
        for n, followed in (await self._follow(request, batch.emails)).items():
            if isinstance(followed, Problem):
                problems[batch.places[n]] = followed
            else:
                batch = batch.with_email(n, followed)
        if problems and not permissive:
            raise _first(problems)
        batch = batch.without(problems)
        if batch.emails:
            name = _key("POST /emails/batch", key, batch.fingerprint)
            results = await self._submit(request, batch.emails, name, permissive=permissive)
            for place, result in zip(batch.places, results, strict=True):
                if isinstance(result, Refusal):
                    problems[place] = refused(result)
                else:
                    ids.append({"id": str(result)})
        if problems and not permissive:
            raise _first(problems)
        request.email_id = " ".join(each["id"] for each in ids)
        if not permissive:
            return ok(request, {"data": ids})
        errors = [{"index": place, "message": problems[place].message} for place in sorted(problems)]
        return ok(request, {"data": ids, "errors": errors})

    def _batch(self, value: Any, read: Callable[[Any], Incoming], rules: Rules, permissive: bool, keyed: bool) -> _Batch:
        send_fields.BATCH.count(value, "", rules)
        emails, problems = {}, {}
        for place, item in enumerate(value):
            try:
                emails[place] = read(item)
            except Problem as wrong:
                problems[place] = wrong
        if problems and not permissive:
            raise _first(problems)
        return _Batch(tuple(emails.values()), tuple(emails), problems, send_fields.fingerprint(value) if keyed else None)

    async def _follow(self, request: Request, emails: Sequence[Incoming]) -> Mapping[int, Incoming | Problem]:
        """The emails that have links to attachments, by index: with the fetched files, or why one could not be fetched."""
        if not any(isinstance(each, Link) for email in emails for each in attachments_of(email)):
            return {}
        if not request.leave_turn():  # others can work while this request waits for other servers
            raise unavailable()
        followed = await self.links.follow(emails, request.reserve)
        if request.reserved >= IN_THREAD and not await request.turn(COPIES * request.reserved):
            raise unavailable()
        return followed

    async def _submit(
        self, request: Request, emails: Sequence[Incoming], key: Key | None, *, permissive: bool
    ) -> Sequence[UUID | Refusal | None]:
        """The result for each email; None for a valid one that was not stored because others were refused."""
        admission = await self.intake.submit(request.caller, emails, key, permissive=permissive)
        for period, used in self.used(request.caller.account_id).items():
            request.setHeader(f"x-resend-{WORDS[period]}-quota", str(used))
        match admission:
            case Admitted(results):
                return results
            case Rejected(refusals):
                return [refusals.get(place) for place in range(len(emails))]
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
        return _changed(request, email_id, changed, "rescheduled")

    @app.route("/emails/<id>/cancel", methods=["POST"])
    @operation("Cancel an email", "Cancels a scheduled email. It cannot be rescheduled afterwards.", views.CHANGED)
    async def cancel(self, request: Request, id: str) -> bytes:
        email_id = parameters.uuid(id, "id")
        changed = await request.detached(self.stored.cancel(request.caller.account_id, email_id, self.reader.now()))
        return _changed(request, email_id, changed, "canceled")


def _trace(request: Request) -> str | None:
    return None if request.span is None else request.span.traceparent


def _key(endpoint: str, key: str | None, fingerprint: bytes | None) -> Key | None:
    return None if key is None or fingerprint is None else Key(endpoint, key, fingerprint)


def _first(problems: dict[int, Problem]) -> Problem:
    place = min(problems)
    return problems[place].at(place)


def _new_time(value: Any, rules: Rules) -> datetime:
    at: datetime | None = send_fields.RESCHEDULE.read(value, "", rules)["scheduled_at"]
    return at or rules.now


def _changed(request: Request, email_id: UUID, changed: str, done: str) -> bytes:
    if changed == "not_found":
        raise not_found("Email")
    if changed == "too_late":
        raise invalid(f"The email cannot be {done}, because it is not scheduled.")
    return ok(request, views.CHANGED.show(id=email_id))
