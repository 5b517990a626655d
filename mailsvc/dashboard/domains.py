"""Domains: the list, and one domain with its DNS records, reports, settings, key rotation and deletion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.emails.sending import SUSPENDED
from mailsvc.dashboard.emails.trial import TrialPages
from mailsvc.dashboard.page import PageError, PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin import mails
from mailsvc.dashboard.signin.completion import Authentication, is_address
from mailsvc.domains import lifecycle, names, tracking
from mailsvc.domains.dns_providers import nameservers, provider_of
from mailsvc.domains.maintenance import AlreadyAdded, DomainMaintenance, RotationInProgress
from mailsvc.domains.records import Record, improved, in_zone_file
from mailsvc.insights.checks import grouped
from mailsvc.insights.checks.reputation import of_facts
from mailsvc.insights.reputation import HOUR, Reputation
from mailsvc.store.domains.domains import Choices
from mailsvc.store.domains.domains import Domains as Stored
from mailsvc.store.domains.reports import Reports
from mailsvc.store.domains.values import Domain, LimitReached, RecordState
from mailsvc.store.people.residence import RegionRefused, Residence

DOMAINS = f"{HOME}/domains"
DAYS = 30  # of reports
SHOWN = 20  # sources
_DONE = {
    "checking": "Checking DNS… this page updates automatically.",
    "changed": "Settings saved.",
    "rotating": "New DKIM keys created. They take effect once they’re live in DNS. Until then, the current keys stay in use.",
    "busy": "New DKIM keys already exist. Add their records to DNS to finish the rotation.",
    "deleted": "Domain deleted.",
    "moved": "Domain moved. Its SPF records have changed: publish the new values below.",
    "mailed": "The DNS records are on their way to your administrator.",
}


@attrs.frozen
class Row:
    """A DNS record and the result of its last check. `state`: None before the first check. `line`: in a zone file."""

    record: Record
    relative: str
    line: str
    state: RecordState | None


@attrs.define(eq=False)
class DomainPages:
    app = section_app()
    context: PageContext
    stored: Stored
    maintenance: DomainMaintenance
    reputation: Reputation
    reports: Reports
    authentication: Authentication
    trials: TrialPages

    @page(app, DOMAINS, access="see_setup")
    async def list(self, request: PageRequest) -> bytes:
        return await self._listed(request, {}, "")

    @page(app, DOMAINS, "POST", access="change_setup")
    async def add(self, request: PageRequest) -> bytes:
        text = request.field("name")
        try:
            region = await self.maintenance.region_for(request.account_id, request.field("region") or None)
            entry = request.audit_entry("domain added", names.parse(text, self.maintenance.own).ascii)
            domain = await self.maintenance.add(request.account_id, text, region, Choices(), [entry])
        except names.NotADomain as wrong:
            return await self._listed(request, {"name": str(wrong)}, text)
        except AlreadyAdded:
            return await self._listed(request, {"name": "This domain is already in your account."}, text)
        except LimitReached as limit:
            return await self._listed(request, {"name": str(limit)}, text)
        except RegionRefused as wrong:
            return await self._listed(request, {"region": f"The region {wrong}"}, text)
        await self.maintenance.verify(domain)  # its records are looked for from now on
        return request.redirect(f"{DOMAINS}/{domain.id}")

    async def _listed(self, request: PageRequest, errors: dict[str, str], text: str) -> bytes:
        domains, _ = await self.stored.list(request.account_id)
        home = await self.stored.residences.of(request.account_id)
        chosen = request.field("region") or home.region or self.maintenance.region
        return request.render(
            "domains/list.html", 422 if errors else 200, domains=domains, errors=errors, text=text,
            regions=self._regions(home), region=chosen, shown=names.shown, done=_DONE.get(request.query("done"), ""),
        )  # fmt: skip

    def _regions(self, home: Residence) -> Sequence[str]:
        """Where the account's domains can be."""
        return [home.region] if home.pinned and home.region is not None else [*self.maintenance.publishing.hosts]

    @page(app, f"{DOMAINS}/<text>", access="see_setup")
    async def one(self, request: PageRequest, text: str) -> bytes:
        return await self._shown(request, await self._domain(request, text))

    async def _shown(self, request: PageRequest, domain: Domain, status: int = 200, errors: Mapping[str, str] | None = None) -> bytes:
        keys = await self.stored.published_keys(domain.id)
        facts, looking = self.reputation.facts(domain)
        since = (self.context.now() - timedelta(days=DAYS - 1)).date()
        reports = await self.reports.summary(domain.account_id, domain.id, since)
        facts = attrs.evolve(facts, own_failures=reports.own_failures)
        zone = ("nameservers", domain.name)
        servers = self.reputation.cache.get(zone, lambda: nameservers(self.reputation.resolver, domain.name), HOUR)
        looking = looking or zone in self.reputation.cache.pending
        return request.render(
            "domains/one.html",
            status,
            errors=errors or {},
            domain=domain,
            ends_at=lifecycle.ends_at(domain),
            tracking_host=domain.tracking_host(self.maintenance.publishing.tracking_host),
            not_tracked=tracking.inactive(domain, self.maintenance.publishing.tracking_host),
            name=names.shown(domain.name),
            rows=_rows(domain, self.maintenance.publishing.records(domain, keys)),
            advice=_advised(domain, self.maintenance.publishing.advised(domain)),
            provider=provider_of(servers or ()),
            reports=reports,
            days=DAYS,
            shown_sources=SHOWN,
            history=await self.stored.history(domain.id, 20),
            insights=grouped(of_facts(facts)),
            looking=looking,
            live=domain.status == "pending" or looking,
            regions=self._regions(await self.stored.residences.of(domain.account_id)),
            trial=await self.trials.of(request),
            offer=await self.trials.shared.offer(request),
            once=uuid4().hex,
            done=_DONE.get(request.query("done"), ""),
        )

    @page(app, f"{DOMAINS}/<text>/verify", "POST", access="change_setup")
    async def verify(self, request: PageRequest, text: str) -> bytes:
        domain = await self._domain(request, text)
        if await self.maintenance.verify(domain, [request.audit_entry("domain verification requested", domain.name)]) is None:
            raise not_found("domain")
        return request.redirect(f"{DOMAINS}/{domain.id}", done="checking")

    @page(app, f"{DOMAINS}/<text>/zone", access="see_setup")
    async def zone(self, request: PageRequest, text: str) -> bytes:
        """All records as a zone file, for providers that import one."""
        domain = await self._domain(request, text)
        lines = [row.line for row in await self._all_rows(domain)]
        request.set_header("Content-Disposition", f'attachment; filename="{domain.name}.zone"')
        return request.send(("\n".join(lines) + "\n").encode(), "text/plain; charset=utf-8")

    @page(app, f"{DOMAINS}/<text>/mail", "POST", access="change_setup")
    async def mail(self, request: PageRequest, text: str) -> bytes:
        """Mail the records to whoever can add them."""
        domain, email = await self._domain(request, text), names.typed_address(request.field("email"))
        if self.authentication.mailer is None:
            raise not_found()
        if not is_address(email):
            return await self._shown(request, domain, 422, {"email": "Enter a valid email address."})
        if request.user_session.suspended:
            return await self._shown(request, domain, 422, {"email": SUSPENDED})
        subjects = [("records", str(request.account_id)), ("mail", email)]
        refused = await self.authentication.throttled(subjects)
        if refused is not None:
            return await self._shown(request, domain, refused.status, {"email": refused.message})
        await self.authentication.throttle.failed(subjects)
        records = [_in_lines(row.record) for row in await self._all_rows(domain)]
        await request.write_audit_entry("DNS records mailed", f"{domain.name} to {email}")
        self.authentication.send_later(email, mails.dns_records(names.shown(domain.name), request.user_session.email, records))
        return request.redirect(f"{DOMAINS}/{domain.id}", done="mailed")

    async def _all_rows(self, domain: Domain) -> Sequence[Row]:
        keys = await self.stored.published_keys(domain.id)
        required = _rows(domain, self.maintenance.publishing.records(domain, keys))
        return [*required, *_advised(domain, self.maintenance.publishing.advised(domain))]

    @page(app, f"{DOMAINS}/<text>/change", "POST", access="change_setup")
    async def change(self, request: PageRequest, text: str) -> bytes:
        domain = await self._domain(request, text)
        tls = request.field("tls") or "opportunistic"  # a box that is not ticked is not sent
        if tls not in ("opportunistic", "enforced"):
            raise PageError(422, "Unknown TLS setting", "TLS must be opportunistic or enforced.")
        sending = request.field("sending") == "on"
        entry = request.audit_entry("domain changed", f"{domain.name}: TLS {tls}, sending {'on' if sending else 'off'}")
        await self.stored.update(request.account_id, domain.id, {"tls": tls, "sending": sending}, [entry])
        return request.redirect(f"{DOMAINS}/{domain.id}", done="changed")

    @page(app, f"{DOMAINS}/<text>/region", "POST", access="change_setup")
    async def move(self, request: PageRequest, text: str) -> bytes:
        """Move the domain with its queued mail to another region."""
        domain, region = await self._domain(request, text), request.field("region")
        try:
            moved = await self.maintenance.move(domain, region, [request.audit_entry("domain moved", f"{domain.name} to {region}")])
        except RegionRefused as wrong:
            return await self._shown(request, domain, 422, {"region": f"The region {wrong}"})
        if moved is None:
            raise not_found("domain")
        return request.redirect(f"{DOMAINS}/{domain.id}", done="moved")

    @page(app, f"{DOMAINS}/<text>/track", "POST", access="change_setup")
    async def track(self, request: PageRequest, text: str) -> bytes:
        domain = await self._domain(request, text)
        opens, clicks = (request.field(name) == "on" for name in ("open_tracking", "click_tracking"))
        label = request.field("tracking_subdomain").lower()
        changes: dict[str, object] = {"open_tracking": opens, "click_tracking": clicks}
        if label and label not in domain.tracking_subdomains[-1:]:
            wrong = tracking.fault(label, domain.return_path, domain.tracking_subdomains)
            if wrong is not None:
                return await self._shown(request, domain, 422, {"tracking_subdomain": f"The subdomain {wrong}."})
            changes["tracking_subdomain"] = label
        if (opens or clicks) and self.maintenance.publishing.tracking_host is None:
            raise PageError(422, "Tracking isn’t available", "This server doesn’t track opens and clicks.")
        words = ", ".join(f"{name} {value}" for name, value in changes.items())
        await self.stored.update(request.account_id, domain.id, changes, [request.audit_entry("domain changed", f"{domain.name}: {words}")])
        self.maintenance.wake()
        return request.redirect(f"{DOMAINS}/{domain.id}", done="changed")

    @page(app, f"{DOMAINS}/<text>/rotate", "POST", access="change_setup")
    async def rotate(self, request: PageRequest, text: str) -> bytes:
        domain = await self._domain(request, text)
        try:
            await self.maintenance.rotate(domain, [request.audit_entry("domain keys rotated", domain.name)])
        except RotationInProgress:
            return request.redirect(f"{DOMAINS}/{domain.id}", done="busy")
        return request.redirect(f"{DOMAINS}/{domain.id}", done="rotating")

    @page(app, f"{DOMAINS}/<text>/delete", "POST", access="change_setup")
    async def delete(self, request: PageRequest, text: str) -> bytes:
        domain = await self._domain(request, text)
        if request.field("name").lower() not in (domain.name, names.shown(domain.name)):
            return await self._shown(request, domain, 422, {"name": "The name doesn’t match, so the domain wasn’t deleted."})
        await self.stored.delete(request.account_id, domain.id, [request.audit_entry("domain deleted", domain.name)])
        return request.redirect(DOMAINS, done="deleted")

    async def _domain(self, request: PageRequest, text: str) -> Domain:
        domain_id: UUID = request.uuid(text, "domain")
        domain = await self.stored.own(request.account_id, domain_id)
        if domain is None:
            raise not_found("domain")
        return domain


def _rows(domain: Domain, records: Sequence[Record]) -> list[Row]:
    known = {(state.type, state.name): state for state in (*domain.records, *domain.advice)}
    return [_row(domain, record, known.get((record.type, record.name))) for record in records]


def _advised(domain: Domain, records: Sequence[Record]) -> list[Row]:
    return [_row(domain, improved(row.record, row.state), row.state) for row in _rows(domain, records)]


def _row(domain: Domain, record: Record, state: RecordState | None) -> Row:
    return Row(record, names.relative(record.name, domain.name), in_zone_file(record), state)


def _in_lines(record: Record) -> str:
    priority = "" if record.priority is None else f"\nPriority: {record.priority}"
    return f"Type: {record.type}\nName: {record.name}\nValue: {record.value}{priority}"
