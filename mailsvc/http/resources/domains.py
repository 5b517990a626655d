"""Sending domains: add one, read what to publish, what DNS has and what was reported, change it, have it checked, claim it, delete it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import attrs

from mailsvc.domains import names, tracking, views
from mailsvc.domains.maintenance import AlreadyAdded, DomainMaintenance
from mailsvc.domains.names import NotADomain
from mailsvc.domains.records import Publishing
from mailsvc.http import parameters
from mailsvc.http.answer import audited, collection, created, ok
from mailsvc.http.fields import unchanged
from mailsvc.http.operations import PAGING, Parameter, operation, or_unset
from mailsvc.http.problem import Problem, invalid, not_found
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources import domain_fields as fields
from mailsvc.http.views import Listing
from mailsvc.http.views import postgres_time as time
from mailsvc.store.domains.domains import Choices, Domain
from mailsvc.store.domains.domains import Domains as StoredDomains
from mailsvc.store.domains.reports import Reports
from mailsvc.store.domains.values import Claim, LimitReached
from mailsvc.store.people.audit import Line
from mailsvc.store.people.residence import RegionRefused

T = TypeVar("T")
Add = Callable[[UUID, str, str, Choices, Sequence[Line]], Awaitable[T]]

DAYS_DEFAULT, DAYS_MAX = 30, 90
_SCHEMA = or_unset({"type": "integer", "minimum": 1, "maximum": DAYS_MAX})
DAYS = Parameter("days", "The number of days, today included. By default 30.", 7, _SCHEMA)

_ENABLED = {"enabled": True, "disabled": False}


@attrs.define(eq=False)
class DomainContext:
    """What the collection needs."""

    stored: StoredDomains
    maintenance: DomainMaintenance
    publishing: Publishing
    reports: Reports


@attrs.define(eq=False)
class Domains:
    app = collection("claim")
    context: DomainContext
    reader: Reader

    @app.route("/domains", methods=["POST"])
    @operation(
        "Add a domain",
        "Adds a domain to send from. Publish the returned records, then mailsvc verifies the domain.",
        fields.CREATED,
        status=201,
        body=fields.CREATE,
        errors=[403],
    )
    async def create(self, request: Request) -> bytes:
        return await request.detached(self._create(request))

    async def _create(self, request: Request) -> bytes:
        return created(request, await self._full(await self._adding(request, self.context.maintenance.add, "domain added")))

    async def _adding(self, request: Request, add: Add[T], action: str) -> T:
        """The result of `add` for the request."""
        given = await self.reader.record(request, fields.CREATE)
        name = given["name"]
        return_path = (given["custom_return_path"] or "send").lower()
        choices = Choices(return_path, **_changes(given, None), **self._tracking(given, return_path))
        try:
            region = await self.context.maintenance.region_for(request.caller.account_id, given["region"])
            line = audited(request, action, names.parse(name).ascii)
            return await add(request.caller.account_id, name, region, choices, [line])
        except NotADomain as wrong:
            raise invalid(f"The `name` field is not a domain you can send from. {wrong}") from None
        except AlreadyAdded as taken:
            raise invalid(f"The `{taken}` domain has been registered already.", 403) from None
        except RegionRefused as wrong:
            raise Problem(422, "invalid_region", f"The `region` field {wrong}") from None
        except LimitReached as limit:
            if limit.retry_after is None:
                raise invalid(str(limit)) from None
            raise Problem(429, "rate_limit_exceeded", str(limit), {"Retry-After": str(limit.retry_after)}) from None

    @app.route("/domains", methods=["GET"])
    @operation(
        "List domains", "The domains of the account, newest first; all of them without parameters.", Listing(fields.ROW), parameters=PAGING
    )
    async def list(self, request: Request) -> bytes:
        page = parameters.page(request, default=None)
        found, more = await request.detached(self.context.stored.list(request.caller.account_id, page.limit, page.after, page.before))
        return ok(request, {"object": "list", "has_more": more, "data": [views.brief(domain, time) for domain in found]})

    @app.route("/domains/<id>", methods=["GET"])
    @operation("Retrieve a domain", "A domain with the DNS records to publish and the result of the last check.", fields.DOMAIN)
    async def get(self, request: Request, id: str) -> bytes:
        return await request.detached(self._get(request, id))

    async def _get(self, request: Request, id: str) -> bytes:
        domain = await self._own(request, id)
        history = await self.context.stored.history(domain.id)
        more = {
            "checked_at": domain.checked_at and time(domain.checked_at),
            "next_check_at": domain.next_check_at and time(domain.next_check_at),
            "history": [{"created_at": time(at), "message": message} for at, message in history],
        }
        return ok(request, {"object": "domain", **await self._full(domain), **more})

    @app.route("/domains/<id>", methods=["PATCH"])
    @operation(
        "Update a domain",
        "Changes the settings of a domain. Fields that are not given stay as they are. Name, region and return path cannot be changed.",
        fields.CHANGED,
        body=fields.UPDATE,
    )
    async def update(self, request: Request, id: str) -> bytes:
        return await request.detached(self._update(request, id))

    async def _update(self, request: Request, id: str) -> bytes:
        domain_id = parameters.uuid(id, "id")
        given = await self.reader.record(request, fields.UPDATE)
        before = await self._own(request, id)
        _check_fixed(given, before)
        changes = _changes(given, before) | self._tracking(given, before.return_path, before.tracking_subdomains)
        listed = ", ".join(f"{name} {value}" for name, value in changes.items())
        line = audited(request, "domain changed", f"{before.name}: {listed}")
        if changes and await self.context.stored.update(request.caller.account_id, domain_id, changes, [line]) is None:
            raise not_found("Domain")
        if "tracking_subdomain" in changes:
            self.context.maintenance.wake()  # to check its record
        return ok(request, fields.CHANGED.show(id=domain_id))

    def _tracking(self, given: Mapping[str, Any], return_path: str, present: Sequence[str] = ()) -> dict[str, Any]:
        """The settings of tracking that a request changes. `present`: the tracking subdomains of the domain."""
        changes = {name: given[name] for name in ("open_tracking", "click_tracking", "tracking_subdomain") if given[name] is not None}
        if any(changes.values()) and self.context.publishing.tracking_host is None:
            raise invalid(f"The `{next(iter(changes))}` field cannot be set: {tracking.NO_HOST}.")
        label = changes.get("tracking_subdomain")
        wrong = None if label is None else tracking.fault(label, return_path, present)
        if wrong is not None:
            raise invalid(f"The `tracking_subdomain` field {wrong}.")
        return changes

    @app.route("/domains/<id>", methods=["DELETE"])
    @operation("Delete a domain", "Removes a domain. Its queued emails fail.", fields.DELETED)
    async def delete(self, request: Request, id: str) -> bytes:
        return await request.detached(self._delete(request, id))

    async def _delete(self, request: Request, id: str) -> bytes:
        domain = await self._own(request, id)
        line = audited(request, "domain deleted", domain.name)
        if await self.context.stored.delete(request.caller.account_id, domain.id, [line]) is None:
            raise not_found("Domain")
        return ok(request, fields.DELETED.show(id=domain.id))

    @app.route("/domains/<id>/verify", methods=["POST"])
    @operation("Verify a domain", "Checks the DNS records of a domain as soon as possible.", fields.CHANGED)
    async def verify(self, request: Request, id: str) -> bytes:
        return await request.detached(self._verify(request, id))

    async def _verify(self, request: Request, id: str) -> bytes:
        domain = await self._own(request, id)
        if await self.context.maintenance.verify(domain, [audited(request, "domain verification requested", domain.name)]) is None:
            raise not_found("Domain")
        return ok(request, fields.CHANGED.show(id=domain.id))

    @app.route("/domains/claim", methods=["POST"])
    @operation(
        "Claim a domain",
        "Adds a domain that another account has, and returns the TXT record that proves it is yours. 200: already pending.",
        fields.CLAIM,
        status=201,
        also=(200,),
        body=fields.CREATE,
        errors=[403],
    )
    async def claim(self, request: Request) -> bytes:
        return await request.detached(self._claim(request))

    async def _claim(self, request: Request) -> bytes:
        claim, new = await self._adding(request, self.context.maintenance.claim, "domain claimed")
        return (created if new else ok)(request, views.claim(claim, time))

    @app.route("/domains/<id>/claim", methods=["GET"])
    @operation("Retrieve the claim of a domain", "The claim with its state and the record to publish.", fields.CLAIM)
    async def claimed(self, request: Request, id: str) -> bytes:
        claim = await request.detached(self._own_claim(request, parameters.uuid(id, "id")))
        return ok(request, views.claim(claim, time))

    @app.route("/domains/<id>/claim/verify", methods=["POST"])
    @operation("Verify the claim of a domain", "Looks for the record of a claim as soon as possible.", fields.CLAIM)
    async def verify_claim(self, request: Request, id: str) -> bytes:
        return await request.detached(self._verify_claim(request, parameters.uuid(id, "id")))

    async def _verify_claim(self, request: Request, domain_id: UUID) -> bytes:
        claim = await self._own_claim(request, domain_id)
        domain = await self.context.stored.own(request.caller.account_id, domain_id)
        if claim.open and domain is not None:
            await self.context.maintenance.verify(domain, [audited(request, "domain verification requested", domain.name)])
        return ok(request, views.claim(claim, time))

    @app.route("/domains/<id>/reports", methods=["GET"])
    @operation(
        "Retrieve reports about a domain",
        "What DMARC and TLS reports say about a domain: who sends as it, and what fails. Anyone can send reports, so treat them as hints.",
        fields.REPORTS,
        parameters=(DAYS,),
    )
    async def reported(self, request: Request, id: str) -> bytes:
        return await request.detached(self._reported(request, id))

    async def _reported(self, request: Request, id: str) -> bytes:
        domain, days = await self._own(request, id), parameters.days(request, DAYS_DEFAULT, DAYS_MAX)
        today = self.context.stored.now().replace(hour=0, minute=0, second=0, microsecond=0)
        since = today - timedelta(days=days - 1)
        found = await self.context.reports.summary(domain.account_id, domain.id, since.date())
        return ok(request, fields.REPORTS.show(found, domain_id=domain.id, since=since))

    async def _own_claim(self, request: Request, domain_id: UUID) -> Claim:
        claim = await self.context.maintenance.claims.get(request.caller.account_id, domain_id)
        if claim is None:
            raise not_found("Domain claim")
        return claim

    async def _own(self, request: Request, id: str) -> Domain:
        domain = await self.context.stored.own(request.caller.account_id, parameters.uuid(id, "id"))
        if domain is None:
            raise not_found("Domain")
        return domain

    async def _full(self, domain: Domain) -> dict[str, object]:
        return views.full(domain, await self.context.stored.published_keys(domain.id), self.context.publishing, time)


def _check_fixed(given: Mapping[str, Any], before: Domain) -> None:
    """Refuse another name, region or return path."""
    same = {"name": _ascii(before.name), "region": before.region, "custom_return_path": before.return_path}
    written = {**given, "name": given["name"] and _ascii(given["name"])}
    if given["custom_return_path"] is not None:
        written["custom_return_path"] = given["custom_return_path"].lower()
    unchanged(written, "Delete the domain and add it again.", **same)


def _ascii(name: str) -> str:
    try:
        return names.parse(name).ascii
    except NotADomain:
        return name


def _changes(given: Mapping[str, Any], before: Domain | None) -> dict[str, Any]:
    """The settings that a request changes."""
    changes: dict[str, Any] = {} if given["tls"] is None else {"tls": given["tls"]}
    capabilities = {name: _ENABLED[word] for name, word in (given["capabilities"] or {}).items() if word is not None}
    current = {"sending": True, "receiving": False} if before is None else {"sending": before.sending, "receiving": before.receiving}
    if given["capabilities"] is not None and not any((current | capabilities).values()):
        raise invalid("The `capabilities` field must have at least one capability enabled.")
    return changes | capabilities
