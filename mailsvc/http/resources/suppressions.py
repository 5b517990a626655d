"""Suppressions: the addresses that an account must not write to; see them, add some, take some off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import UUID

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import audited, collection, made, ok, page
from mailsvc.http.describe import PAGING, listed, told
from mailsvc.http.problem import invalid, missing, not_found
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources import event_schema as schema
from mailsvc.http.resources import send_fields
from mailsvc.http.resources.email_views import time
from mailsvc.http.resources.send_fields import Rules
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.events.suppressions import Suppression
from mailsvc.store.people.audit import Line

BATCH = 100


class List(Protocol):
    """store/events/suppressions"""

    async def add(self, account_id: UUID, emails: Sequence[str], lines: Sequence[Line] = ()) -> Sequence[Suppression]: ...
    async def get(self, account_id: UUID, id_: UUID) -> Suppression | None: ...
    async def named(self, account_id: UUID, email: str) -> Suppression | None: ...
    async def remove(
        self, account_id: UUID, ids: Sequence[UUID] = (), emails: Sequence[str] = (), lines: Sequence[Line] = ()
    ) -> Sequence[Suppression]: ...
    async def list(
        self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None, origin: str | None = None
    ) -> tuple[Sequence[Suppression], bool]: ...


@attrs.define(eq=False)
class Suppressions:
    """`changed` is called after each change, since there are events to be numbered."""

    app = collection()
    suppressions: List
    reader: Reader
    changed: Callable[[], None] = lambda: None

    @app.route("/suppressions", methods=["POST"])
    @told("Write to an address no more.", schema.SUPPRESSED, status=201, body=schema.SUPPRESS)
    async def add(self, request: Request) -> bytes:
        return await request.detached(self._add(request))

    async def _add(self, request: Request) -> bytes:
        email = await self.reader.read(request, _email)
        [added] = await self.suppressions.add(request.caller.account_id, [email], [audited(request, "suppressions added", email)])
        self.changed()
        return made(request, _named(added))

    @app.route("/suppressions/batch/add", methods=["POST"])
    @told("Write to these addresses no more.", schema.SUPPRESSED_MANY, status=201, body=schema.SUPPRESS_MANY)
    async def add_batch(self, request: Request) -> bytes:
        return await request.detached(self._add_batch(request))

    async def _add_batch(self, request: Request) -> bytes:
        emails = await self.reader.read(request, lambda value, rules: _emails(_object(value)))
        if not emails:
            raise missing("emails")
        line = audited(request, "suppressions added", _shortly(emails))
        added = await self.suppressions.add(request.caller.account_id, emails, [line])
        self.changed()
        return made(request, {"data": [_named(each) for each in added]})

    @app.route("/suppressions/batch/remove", methods=["POST"])
    @told("Allow these addresses again.", schema.RELEASED_MANY, body=schema.RELEASE_MANY)
    async def remove_batch(self, request: Request) -> bytes:
        return await request.detached(self._remove_batch(request))

    async def _remove_batch(self, request: Request) -> bytes:
        ids, emails = await self.reader.read(request, _either)
        line = audited(request, "suppressions removed", _shortly(emails or ids))
        removed = await self.suppressions.remove(request.caller.account_id, ids, emails, [line])
        self.changed()
        return ok(request, {"data": [_removed(each) for each in removed]})

    @app.route("/suppressions", methods=["GET"])
    @told("Addresses that the account must not write to.", listed(schema.SUPPRESSION_ROW), parameters=[*PAGING, schema.ORIGIN])
    async def list(self, request: Request) -> bytes:
        asked, origin = parameters.page(request), parameters.choice(request, "origin", "bounce", "complaint", "manual")
        account_id = request.caller.account_id
        found, more = await request.detached(
            self.suppressions.list(account_id, asked.limit or parameters.PAGE_DEFAULT, asked.after, asked.before, origin)
        )
        return page(request, [_listed(each) for each in found], more)

    @app.route("/suppressions/<id>", methods=["GET"])
    @told("One of them, by its id or by the address itself.", schema.SUPPRESSION)
    async def get(self, request: Request, id: str) -> bytes:
        account_id = request.caller.account_id
        if "@" in id:
            found = await request.detached(self.suppressions.named(account_id, _address(id, "email")))
        else:
            found = await request.detached(self.suppressions.get(account_id, parameters.uuid(id, "id")))
        if found is None:
            raise not_found("Suppression")
        return ok(request, {"object": "suppression", **_listed(found)})

    @app.route("/suppressions/<id>", methods=["DELETE"])
    @told("Allow it again; the answer says why it was there.", schema.RELEASED)
    async def remove(self, request: Request, id: str) -> bytes:
        """What was removed says why it was there."""
        return await request.detached(self._remove(request, id))

    async def _remove(self, request: Request, id: str) -> bytes:
        account_id = request.caller.account_id
        if "@" in id:
            email = _address(id, "email")
            removed = await self.suppressions.remove(account_id, (), [email], [audited(request, "suppression removed", email)])
        else:
            suppression_id = parameters.uuid(id, "id")
            there = await self.suppressions.get(account_id, suppression_id)
            line = audited(request, "suppression removed", there.email if there else "")
            removed = await self.suppressions.remove(account_id, [suppression_id], (), [line]) if there else ()
        if not removed:
            raise not_found("Suppression")
        self.changed()
        return ok(request, _removed(removed[0]))


def _shortly(many: Sequence[object]) -> str:
    """For the audit log: the one there is, or how many."""
    return str(many[0]) if len(many) == 1 else f"{len(many)} addresses"


def _object(value: Any) -> send_fields.Object:
    if not isinstance(value, dict):
        raise invalid("The request body must be a JSON object.")
    return value


def _email(value: Any, rules: Rules) -> str:
    text = send_fields.string(_object(value), "email")
    if not text:
        raise missing("email")
    return _address(text, "email")


def _emails(fields: send_fields.Object) -> list[str]:
    return [_address(text, f"emails[{n}]") for n, text in enumerate(_few(fields, "emails"))]


def _either(value: Any, rules: Rules) -> tuple[Sequence[UUID], Sequence[str]]:
    fields = _object(value)
    ids = [parameters.uuid(text, f"ids[{n}]") for n, text in enumerate(_few(fields, "ids"))]
    emails = _emails(fields)
    if bool(ids) == bool(emails):
        raise invalid("The request body must have either `emails` or `ids`.")
    return ids, emails


def _few(fields: send_fields.Object, name: str) -> Sequence[str]:
    found = send_fields.strings(fields, name)
    if len(found) > BATCH:
        raise invalid(f"The `{name}` field may have at most {BATCH} items.")
    return found


def _address(text: str, field: str) -> str:
    try:
        return parse_mailbox(text).address
    except AddressError as wrong:
        raise invalid(f"Invalid `{field}` field. {wrong}") from None


def _named(one: Suppression) -> dict[str, object]:
    return {"object": "suppression", "id": str(one.id)}


def _removed(one: Suppression) -> dict[str, object]:
    return {"object": "suppression", **_listed(one), "deleted": True}


def _listed(one: Suppression) -> dict[str, object]:
    return {
        "id": str(one.id),
        "email": one.email,
        "origin": one.origin,
        "source_id": None if one.source_id is None else str(one.source_id),
        "reason": one.reason,
        "created_at": time(one.created_at),
    }
