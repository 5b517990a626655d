"""Sending domains: make one, read what to publish and what was found, change it, have it checked, delete it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

import attrs

from mailsvc.domains import names, views
from mailsvc.domains.maintenance import AlreadyAdded
from mailsvc.domains.names import NotADomain
from mailsvc.domains.records import Publishing
from mailsvc.http import parameters
from mailsvc.http.answer import audited, collection, made, ok
from mailsvc.http.describe import PAGING, acknowledged, const, listed, told
from mailsvc.http.problem import Problem, invalid, missing, not_found
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources import domain_schema as schema
from mailsvc.http.resources import send_fields
from mailsvc.http.resources.email_views import time
from mailsvc.store.domains.domains import Choices, DkimKey, Domain
from mailsvc.store.domains.values import Claim, LimitReached
from mailsvc.store.people.audit import Line

T = TypeVar("T")
Adding = Callable[[UUID, str, str, Choices, Sequence[Line]], Awaitable[T]]

_SWITCHES = {"enabled": True, "disabled": False}
_TRACKING = ("open_tracking", "click_tracking", "tracking_subdomain")


class Stored(Protocol):
    """store/domains/domains"""

    async def own(self, account_id: UUID, domain_id: UUID) -> Domain | None: ...
    async def list(
        self, account_id: UUID, limit: int | None = None, after: UUID | None = None, before: UUID | None = None
    ) -> tuple[Sequence[Domain], bool]: ...
    async def published_keys(self, domain_id: UUID) -> Sequence[DkimKey]: ...
    async def history(self, domain_id: UUID) -> Sequence[tuple[datetime, str]]: ...
    async def update(
        self, account_id: UUID, domain_id: UUID, changes: Mapping[str, object], lines: Sequence[Line] = ()
    ) -> Domain | None: ...
    async def delete(self, account_id: UUID, domain_id: UUID, lines: Sequence[Line] = ()) -> Domain | None: ...


class Claims(Protocol):
    """store/domains/claims"""

    async def get(self, account_id: UUID, domain_id: UUID) -> Claim | None: ...


class Caring(Protocol):
    """domains/maintenance"""

    @property
    def claims(self) -> Claims: ...

    async def add(self, account_id: UUID, text: str, region: str, choices: Choices | None = None, lines: Sequence[Line] = ()) -> Domain: ...
    async def claim(
        self, account_id: UUID, text: str, region: str, choices: Choices | None = None, lines: Sequence[Line] = ()
    ) -> tuple[Claim, bool]: ...
    async def verify(self, domain: Domain, lines: Sequence[Line] = ()) -> Domain | None: ...


@attrs.frozen
class _New:
    """A request to make a domain."""

    name: str
    region: str | None
    choices: Choices


@attrs.define(eq=False)
class DomainDesk:
    """Everything that the collection needs; `region` is where a domain belongs that names none."""

    stored: Stored
    maintenance: Caring
    publishing: Publishing
    region: str


@attrs.define(eq=False)
class Domains:
    app = collection("claim")
    desk: DomainDesk
    reader: Reader

    @app.route("/domains", methods=["POST"])
    @told("Add a sending domain.", schema.NEW_DOMAIN, status=201, body=schema.CREATE, errors=[403])
    async def create(self, request: Request) -> bytes:
        return await request.detached(self._create(request))

    async def _create(self, request: Request) -> bytes:
        return made(request, await self._full(await self._adding(request, self.desk.maintenance.add, "domain added")))

    async def _adding(self, request: Request, add: Adding[T], action: str) -> T:
        """What `add` makes of the request, or the problem that says why not."""
        new = await self.reader.read(request, lambda value, rules: _new(value))
        region = new.region or self.desk.region
        if region not in self.desk.publishing.hosts:
            raise Problem(422, "invalid_region", f"Region must be one of: {', '.join(sorted(self.desk.publishing.hosts))}.")
        try:
            line = audited(request, action, names.parse(new.name).ascii)
            return await add(request.caller.account_id, new.name, region, new.choices, [line])
        except NotADomain as wrong:
            raise invalid(f"The `name` field is not a domain to send from. {wrong}") from None
        except AlreadyAdded as taken:
            raise invalid(f"The `{taken}` domain has been registered already.", 403) from None
        except LimitReached as limit:
            if limit.retry_after is None:
                raise invalid(str(limit)) from None
            raise Problem(429, "rate_limit_exceeded", str(limit), {"Retry-After": str(limit.retry_after)}) from None

    @app.route("/domains", methods=["GET"])
    @told("The sending domains of the account.", listed(schema.BRIEF), parameters=PAGING, about="All of them when no parameter is given.")
    async def list(self, request: Request) -> bytes:
        page = parameters.page(request, default=None)
        found, more = await request.detached(self.desk.stored.list(request.caller.account_id, page.limit, page.after, page.before))
        return ok(request, {"object": "list", "has_more": more, "data": [views.brief(domain, time) for domain in found]})

    @app.route("/domains/<id>", methods=["GET"])
    @told("A sending domain: what to publish, and what was found.", schema.DOMAIN)
    async def get(self, request: Request, id: str) -> bytes:
        return await request.detached(self._get(request, id))

    async def _get(self, request: Request, id: str) -> bytes:
        domain = await self._own(request, id)
        history = await self.desk.stored.history(domain.id)
        told = [{"created_at": time(at), "message": what} for at, what in history]
        checked = {name: None if at is None else time(at) for name, at in _times(domain)}
        return ok(request, {"object": "domain", **await self._full(domain), **checked, "history": told})

    @app.route("/domains/<id>", methods=["PATCH"])
    @told("Change a sending domain.", acknowledged("domain"), body=schema.CHANGE)
    async def update(self, request: Request, id: str) -> bytes:
        return await request.detached(self._update(request, id))

    async def _update(self, request: Request, id: str) -> bytes:
        domain_id = parameters.uuid(id, "id")
        value = await self.reader.read(request, lambda value, rules: value)
        before = await self._own(request, id)
        changes = _changes(value, before)
        told = ", ".join(f"{name} {value}" for name, value in changes.items())
        line = audited(request, "domain changed", f"{before.name}: {told}")
        if changes and await self.desk.stored.update(request.caller.account_id, domain_id, changes, [line]) is None:
            raise not_found("Domain")
        return ok(request, {"object": "domain", "id": str(domain_id)})

    @app.route("/domains/<id>", methods=["DELETE"])
    @told("Delete a sending domain.", acknowledged("domain", deleted=const(True)))
    async def delete(self, request: Request, id: str) -> bytes:
        return await request.detached(self._delete(request, id))

    async def _delete(self, request: Request, id: str) -> bytes:
        domain = await self._own(request, id)
        line = audited(request, "domain deleted", domain.name)
        if await self.desk.stored.delete(request.caller.account_id, domain.id, [line]) is None:
            raise not_found("Domain")
        return ok(request, {"object": "domain", "id": str(domain.id), "deleted": True})

    @app.route("/domains/<id>/verify", methods=["POST"])
    @told("Look at a domain's DNS soon.", acknowledged("domain"))
    async def verify(self, request: Request, id: str) -> bytes:
        return await request.detached(self._verify(request, id))

    async def _verify(self, request: Request, id: str) -> bytes:
        domain = await self._own(request, id)
        if await self.desk.maintenance.verify(domain, [audited(request, "domain check asked for", domain.name)]) is None:
            raise not_found("Domain")
        return ok(request, {"object": "domain", "id": id.lower()})

    @app.route("/domains/claim", methods=["POST"])
    @told(
        "Claim a domain that another account has.",
        schema.DOMAIN_CLAIM,
        status=201,
        also=(200,),
        body=schema.CLAIM,
        errors=[403],
        about="Adds the domain and answers with the TXT record that proves the claim. 200: the same claim is pending.",
    )
    async def claim(self, request: Request) -> bytes:
        return await request.detached(self._claim(request))

    async def _claim(self, request: Request) -> bytes:
        claim, new = await self._adding(request, self.desk.maintenance.claim, "domain claimed")
        return (made if new else ok)(request, views.claim(claim, time))

    @app.route("/domains/<id>/claim", methods=["GET"])
    @told("The claim of a domain.", schema.DOMAIN_CLAIM)
    async def claimed(self, request: Request, id: str) -> bytes:
        claim = await request.detached(self._own_claim(request, parameters.uuid(id, "id")))
        return ok(request, views.claim(claim, time))

    @app.route("/domains/<id>/claim/verify", methods=["POST"])
    @told("Look for the record of a claim soon.", schema.DOMAIN_CLAIM)
    async def verify_claim(self, request: Request, id: str) -> bytes:
        return await request.detached(self._verify_claim(request, parameters.uuid(id, "id")))

    async def _verify_claim(self, request: Request, domain_id: UUID) -> bytes:
        claim = await self._own_claim(request, domain_id)
        domain = await self.desk.stored.own(request.caller.account_id, domain_id)
        if claim.open and domain is not None:
            await self.desk.maintenance.verify(domain, [audited(request, "domain check asked for", domain.name)])
        return ok(request, views.claim(claim, time))

    async def _own_claim(self, request: Request, domain_id: UUID) -> Claim:
        claim = await self.desk.maintenance.claims.get(request.caller.account_id, domain_id)
        if claim is None:
            raise not_found("Domain claim")
        return claim

    async def _own(self, request: Request, id: str) -> Domain:
        domain = await self.desk.stored.own(request.caller.account_id, parameters.uuid(id, "id"))
        if domain is None:
            raise not_found("Domain")
        return domain

    async def _full(self, domain: Domain) -> dict[str, object]:
        return views.full(domain, await self.desk.stored.published_keys(domain.id), self.desk.publishing, time)


def _times(domain: Domain) -> list[tuple[str, datetime | None]]:
    return [("checked_at", domain.checked_at), ("next_check_at", domain.next_check_at)]


def _new(value: Any) -> _New:
    _object(value)
    if send_fields.absent(value.get("name")):
        raise missing("name")
    name = send_fields.string(value, "name") or ""
    path = send_fields.string(value, "custom_return_path") or "send"
    if not names.RETURN_PATH.fullmatch(path):
        raise invalid(
            "The `custom_return_path` field must have 1 to 63 letters, digits and hyphens, the first a letter and the last no hyphen."
        )
    changes = _changes(value, None)
    choices = Choices(path.lower(), **changes)
    return _New(name, send_fields.string(value, "region") or None, choices)


def _changes(value: Any, before: Domain | None) -> dict[str, Any]:
    """What of `tls` and `capabilities` is given; tracking can only be off."""
    _object(value)
    for field in _TRACKING:
        found = value.get(field)
        if field == "tracking_subdomain":
            send_fields.string(value, field)
        elif found is not None and not isinstance(found, bool):
            raise invalid(f"The `{field}` field must be true or false.")
        if found:
            raise invalid(f"The `{field}` field cannot be switched on: this server does not track.")
    changes: dict[str, Any] = {}
    tls = send_fields.string(value, "tls")
    if tls:
        if tls not in ("opportunistic", "enforced"):
            raise invalid("The `tls` field must be `opportunistic` or `enforced`.")
        changes["tls"] = tls
    return changes | _capabilities(value.get("capabilities"), before)


def _capabilities(value: Any, before: Domain | None) -> dict[str, bool]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid("The `capabilities` field must be an object.")
    given = {}
    for name in ("sending", "receiving"):
        word = send_fields.string(value, name, "capabilities.")
        if word and word not in _SWITCHES:
            raise invalid(f"The `capabilities.{name}` field must be `enabled` or `disabled`.")
        if word:
            given[name] = _SWITCHES[word]
    present = {"sending": True, "receiving": False} if before is None else {"sending": before.sending, "receiving": before.receiving}
    if not any((present | given).values()):
        raise invalid("The `capabilities` field must have at least one capability enabled.")
    return given


def _object(value: Any) -> None:
    if not isinstance(value, dict):
        raise invalid("The request body must be a JSON object.")
