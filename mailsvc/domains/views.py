"""Sending domains as the API returns them: the fields that client libraries expect, and our own. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from mailsvc.clock import iso_time
from mailsvc.domains import names
from mailsvc.domains.records import Publishing, Record, improved, quoted
from mailsvc.store.domains.values import CAA, TRACKING, Claim, DkimKey, Domain, RecordState

Time = Callable[[datetime], str]


def brief(domain: Domain, time: Time) -> dict[str, object]:
    """A domain in a list."""
    view: dict[str, object] = {
        "id": str(domain.id),
        "name": names.shown(domain.name),
        "status": domain.status,
        "created_at": time(domain.created_at),
        "region": domain.region,
        "open_tracking": domain.open_tracking,
        "click_tracking": domain.click_tracking,
        "capabilities": {"sending": _enabled(domain.sending), "receiving": _enabled(domain.receiving)},
        "tls": domain.tls,
        "custom_return_path": domain.return_path,
    }
    if domain.name != view["name"]:
        view["name_ascii"] = domain.name
    if domain.lost is not None and domain.status != "verified":
        view["failure_reason"] = domain.lost
    warning = names.look_alike(domain.name)
    return view if warning is None else view | {"warning": warning}


def full(domain: Domain, keys: Sequence[DkimKey], publishing: Publishing, time: Time) -> dict[str, object]:
    """A domain with its records; `advice`: records that are not required."""
    known = {(state.type, state.name): state for state in (*domain.records, *domain.advice)}
    records = publishing.records(domain, keys)
    advised = [(record, known.get((record.type, record.name))) for record in publishing.advised(domain)]
    return brief(domain, time) | {
        "tracking_subdomain": domain.tracking_subdomains[-1] if domain.tracking_subdomains else None,
        "tracking_host": domain.tracking_host(publishing.tracking_host),
        "records": [_record(record, known.get((record.type, record.name)), domain) for record in records],
        "advice": [_record(improved(record, state), state, domain) for record, state in advised],
    }


def claim(claim: Claim, time: Time) -> dict[str, object]:
    """A claim, with the record that proves it."""
    return {
        "object": "domain_claim",
        "id": str(claim.id),
        "name": names.shown(claim.name),
        "status": claim.status,
        "domain_id": str(claim.domain_id),
        "region": claim.region,
        "record": {"type": "TXT", "name": claim.name, "value": claim.record, "ttl": "Auto"},
        # The closest value that client libraries know: the other account's DNS records still exist.
        "blocked_reason": "recent_owner_activity" if claim.status == "blocked" else None,
        "failure_reason": claim.failure_reason,
        "created_at": time(claim.created_at),
        "expires_at": time(claim.expires_at),
    }


def payload(publishing: Publishing) -> Callable[[Domain, Sequence[DkimKey]], dict[str, object]]:
    """The data of events about a domain."""
    return lambda domain, keys: full(domain, keys, publishing, iso_time)


def _record(record: Record, state: RecordState | None, domain: Domain) -> dict[str, object]:
    unchecked = "not_started" if domain.status == "not_started" else "pending"
    view: dict[str, object] = {
        "record": record.purpose,
        "name": record.name if record.purpose in (TRACKING, CAA) else names.relative(record.name, domain.name),
        "type": record.type,
        "ttl": "Auto",
        "status": state.status if state is not None else unchecked,
        "value": quoted(record.value) if len(record.value) > 255 else record.value,
    }
    if record.priority is not None:
        view["priority"] = record.priority
    if state is not None:
        view["check"] = {"found": list(state.found), "where": state.where, "problem": state.problem, "message": state.message}
    return view


def _enabled(on: bool) -> str:
    return "enabled" if on else "disabled"
