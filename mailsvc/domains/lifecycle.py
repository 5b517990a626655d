"""The states of a sending domain and the time of its next check. Pure.

not_started → pending → verified → (record missing for 72 hours) → failed; pending → (72 hours) → failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import attrs

from mailsvc.store.domains.values import Domain, RecordState, RecordStatus

GRACE = timedelta(hours=72)
DAILY = timedelta(days=1)
_STATUS_IF_MISSING: dict[str, RecordStatus] = {"verified": "temporary_failure", "failed": "failed"}
BACKOFF = tuple(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 20, 30, 60))  # the last one repeats


def requested(domain: Domain, now: datetime) -> Domain:
    """Verification previous requested: check now. A domain that is not verified gets 72 hours from here."""
    if domain.status == "verified":
        return attrs.evolve(domain, next_check_at=now)
    return attrs.evolve(domain, status="pending", since=now, checks=0, next_check_at=now)


def checked(domain: Domain, records: Sequence[RecordState], advice: Sequence[RecordState], now: datetime) -> Domain:
    """The domain after a check. Each of `records` is `verified` or `pending`."""
    complete = all(record.status == "verified" for record in records if record.required)
    after = _after(domain, complete, now)
    status_if_missing = _STATUS_IF_MISSING.get(after.status, "pending")
    served = {host for host in domain.tracking_hosts if domain.serves_tracking_host(host)}
    states = []
    for record in records:
        if record.status != "verified" and (record.required or record.name in served):
            record = attrs.evolve(record, status=status_if_missing if record.required else "temporary_failure")
        states.append(record)
    return attrs.evolve(after, records=tuple(states), advice=tuple(advice), checked_at=now)


def _after(domain: Domain, complete: bool, now: datetime) -> Domain:
    if domain.status in ("not_started", "failed"):  # a check without a request changes nothing
        return attrs.evolve(domain, next_check_at=None)
    if complete:
        return attrs.evolve(domain, status="verified", since=None, checks=0, next_check_at=now + DAILY)
    since = domain.since or now
    if now - since >= GRACE:
        return attrs.evolve(domain, status="failed", checks=0, next_check_at=None)
    pause = BACKOFF[min(domain.checks, len(BACKOFF) - 1)]
    return attrs.evolve(domain, since=since, checks=domain.checks + 1, next_check_at=min(now + pause, since + GRACE))


def ends_at(domain: Domain) -> datetime | None:
    """When a verified domain fails because a required record is missing; None if none is, or if the operator trusts the domain."""
    return domain.since + GRACE if domain.status == "verified" and domain.since is not None and not domain.trusted else None


def _lost(domain: Domain) -> str:
    """The line about a check that did not find all required records of a verified domain."""
    if domain.unanswered:
        what, until = "DNS did not answer for required records.", "it answers"
    else:
        what, until = "Required records are missing or incorrect.", "they are fixed"
    return what if domain.trusted else f"{what} Sending stops after 72 hours unless {until}."


def history_lines(before: Domain, after: Domain) -> list[str]:
    """Lines for the domain's history about the change."""
    lines = []
    if before.status != after.status:
        lines.append("Verified." if after.status == "verified" else "Failed: not all records were found within 72 hours.")
    elif after.status == "verified" and (before.since is None) != (after.since is None):
        lines.append("All records were found again." if after.since is None else _lost(after))
    known = {(r.type, r.name): r for r in before.records}
    for record in after.records:
        previous = known.get((record.type, record.name))
        if previous is not None and (previous.status, previous.problem) != (record.status, record.problem):
            lines.append(f"{record.purpose} {record.type} {record.name}: {record.message or record.status}")
    return lines
