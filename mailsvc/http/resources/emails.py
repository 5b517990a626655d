"""Emails: send one or a batch, read back, reschedule, cancel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import collection, ok
from mailsvc.http.describe import ID, PAGING, acknowledged, listed, not_served, obj, told
from mailsvc.http.problem import NO_LONGER_KEPT, Problem, invalid, missing, no_endpoint, not_found, over_quota, refused, unavailable
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources import email_schema as schema
from mailsvc.http.resources import email_views, send_fields
from mailsvc.http.resources.attachment_links import Links, has_links
from mailsvc.http.resources.contents import COPIES, GONE, IN_THREAD, Contents
from mailsvc.intake import Admission, Admitted, Busy, Incoming, Key, OtherRequest, Rejected
from mailsvc.policy import Refusal
from mailsvc.settings.plans import WORDS, Exhausted
from mailsvc.store.mail.emails import Cancellation, EmailView, RecipientView, Rescheduling
from mailsvc.store.people.quota import Period


class Submitting(Protocol):
    """intake.Intake"""

    async def submit(self, caller: Any, emails: Sequence[Incoming], key: Key | None = None, *, permissive: bool = False) -> Admission: ...


class Stored(Protocol):
    """store/mail/emails"""

    async def get(self, account_id: UUID, email_id: UUID) -> EmailView | None: ...
    async def recipients(self, account_id: UUID, email_id: UUID) -> Sequence[RecipientView]: ...
    async def list(
        self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None
    ) -> tuple[Sequence[EmailView], bool]: ...
    async def cancel(self, account_id: UUID, email_id: UUID, now: datetime) -> Cancellation: ...
    async def reschedule(self, account_id: UUID, email_id: UUID, at: datetime, now: datetime) -> Rescheduling: ...


@attrs.frozen
class _Batch:
    """A batch as read: good emails with their places, and what is wrong with the others."""

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
    intake: Submitting
    stored: Stored
    contents: Contents
    reader: Reader
    links: Links
    batch_max: int = 100
    used: Callable[[UUID], Mapping[Period, int]] = lambda account_id: {}  # of its plan, as far as it is known here

    # The work of a send goes on when the client hangs up: accepted is accepted.

    @app.route("/emails", methods=["POST"])
    @app.route("/email", methods=["POST"])
    @app.route("/emails/sending", methods=["POST"])
    @app.route("/email/sending", methods=["POST"])
    @told("Send an email.", obj({"id": ID}), body=schema.EMAIL, parameters=[schema.IDEMPOTENCY_KEY], errors=[409, 413], key="sending")
    async def send(self, request: Request) -> bytes:
        return await request.detached(self._send(request))

    @app.route("/emails/batch", methods=["POST"])
    @told("Send a batch.", schema.BATCH_ANSWER, body=schema.BATCH, parameters=schema.BATCH_HEADERS, errors=[409, 413], key="sending")
    async def send_batch(self, request: Request) -> bytes:
        return await request.detached(self._send_batch(request))

    async def _send(self, request: Request) -> bytes:
        key = parameters.idempotency_key(request)

        def make(value: Any, rules: send_fields.Rules) -> tuple[Incoming, bytes | None]:
            return send_fields.email(value, rules), send_fields.fingerprint(value) if key is not None else None

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
        batch = await self.reader.read(request, lambda value, rules: self._batch(value, rules, permissive, key is not None))
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

    def _batch(self, value: Any, rules: send_fields.Rules, permissive: bool, keyed: bool) -> _Batch:
        if not isinstance(value, list):
            raise invalid("The request body must be an array of emails.")
        if not 1 <= len(value) <= self.batch_max:
            raise invalid(f"A batch must have 1 to {self.batch_max} emails.")
        emails, problems = {}, {}
        for place, item in enumerate(value):
            try:
                emails[place] = send_fields.email(item, rules)
            except Problem as wrong:
                problems[place] = wrong
        if problems and not permissive:
            raise _first(problems)
        return _Batch(tuple(emails.values()), tuple(emails), problems, send_fields.fingerprint(value) if keyed else None)

    async def _follow(self, request: Request, emails: Sequence[Incoming]) -> Mapping[int, Incoming | Problem]:
        """By index the emails that have links, with what was fetched, or what is wrong with them."""
        if not any(map(has_links, emails)):
            return {}
        if not request.leave_turn():  # other servers take their time
            raise unavailable()
        followed = await self.links.follow(emails, request.reserve)
        if request.reserved >= IN_THREAD and not await request.turn(COPIES * request.reserved):
            raise unavailable()
        return followed

    async def _submit(
        self, request: Request, emails: Sequence[Incoming], key: Key | None, *, permissive: bool
    ) -> Sequence[UUID | Refusal | None]:
        """What became of each email; None for one that was good and not stored because others were refused."""
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
                raise Problem(409, "invalid_idempotent_request", "The idempotency key was used for a request with another body.")

    @app.route("/emails/receiving")
    @app.route("/emails/receiving/<path:rest>")
    @not_served
    async def received(self, request: Request, rest: str = "") -> bytes:
        raise no_endpoint()

    @app.route("/emails", methods=["GET"])
    @told("The emails of the account, newest first.", listed(obj(schema.LISTED)), parameters=PAGING)
    async def list(self, request: Request) -> bytes:
        page = parameters.page(request)
        found, has_more = await request.detached(
            self.stored.list(request.caller.account_id, page.limit or parameters.PAGE_DEFAULT, page.after, page.before)
        )
        return ok(request, {"object": "list", "has_more": has_more, "data": [email_views.listed(email) for email in found]})

    @app.route("/emails/<id>", methods=["GET"])
    @told("An email: its content, and where each recipient is.", obj(schema.SINGLE))
    async def get(self, request: Request, id: str) -> bytes:
        return await request.detached(self._get(request, parameters.uuid(id, "id")))

    async def _get(self, request: Request, email_id: UUID) -> bytes:
        account_id = request.caller.account_id
        email = await self.stored.get(account_id, email_id)
        if email is None:
            raise not_found("Email")
        recipients = await self.stored.recipients(account_id, email_id)
        parsed = await self.contents.of(request, email)
        note = NO_LONGER_KEPT if parsed is GONE else None
        return ok(request, email_views.single(email, parsed.html, parsed.text, recipients, note))

    @app.route("/emails/<id>", methods=["PATCH"])
    @told("Let a scheduled email go at another time.", acknowledged("email"), body=schema.RESCHEDULE)
    async def reschedule(self, request: Request, id: str) -> bytes:
        return await request.detached(self._reschedule(request, parameters.uuid(id, "id")))

    async def _reschedule(self, request: Request, email_id: UUID) -> bytes:
        at = await self.reader.read(request, _new_time)
        changed = await self.stored.reschedule(request.caller.account_id, email_id, at, self.reader.now())
        return _changed(request, email_id, changed, "rescheduled")

    @app.route("/emails/<id>/cancel", methods=["POST"])
    @told("Cancel what is not on its way yet.", acknowledged("email"))
    async def cancel(self, request: Request, id: str) -> bytes:
        email_id = parameters.uuid(id, "id")
        changed = await request.detached(self.stored.cancel(request.caller.account_id, email_id, self.reader.now()))
        return _changed(request, email_id, changed, "canceled")


def _key(endpoint: str, key: str | None, fingerprint: bytes | None) -> Key | None:
    return None if key is None or fingerprint is None else Key(endpoint, key, fingerprint)


def _first(problems: dict[int, Problem]) -> Problem:
    place = min(problems)
    return problems[place].at(place)


def _new_time(value: Any, rules: send_fields.Rules) -> datetime:
    if not isinstance(value, dict):
        raise invalid("The request body must be a JSON object.")
    if send_fields.absent(value.get("scheduled_at")):
        raise missing("scheduled_at")
    return send_fields.scheduled_at(value, rules) or rules.now


def _changed(request: Request, email_id: UUID, changed: str, done: str) -> bytes:
    if changed == "not_found":
        raise not_found("Email")
    if changed == "too_late":
        raise invalid(f"The email cannot be {done} any more: only a scheduled email can.")
    return ok(request, {"object": "email", "id": str(email_id)})
