"""The states of a sending domain and when it is looked at again. Pure: from what was known, what was found and the time.

not_started → pending → verified → (a miss: 72 hours of grace) → failed; pending → (72 hours) → failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import attrs

from mailsvc.store.domains.values import Domain, RecordState, RecordStatus

GRACE = timedelta(hours=72)
DAILY = timedelta(days=1)
_MISSED: dict[str, RecordStatus] = {"verified": "temporary_failure", "failed": "failed"}
BACKOFF = tuple(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 20, 30, 60))  # the last one repeats


def asked(domain: Domain, now: datetime) -> Domain:
    """Somebody asks for a check: at once; a domain that is not verified has 72 hours from here."""
    if domain.status == "verified":
        return attrs.evolve(domain, next_check_at=now)
    return attrs.evolve(domain, status="pending", since=now, checks=0, next_check_at=now)


def checked(domain: Domain, records: Sequence[RecordState], advice: Sequence[RecordState], now: datetime) -> Domain:
    """The domain after a check. Each of `records` is `verified` or, as yet, `pending`."""
    complete = all(record.status == "verified" for record in records if record.required)
    after = _after(domain, complete, now)
    missed = _MISSED.get(after.status, "pending")
    states = tuple(attrs.evolve(record, status=missed) if record.status != "verified" and record.required else record for record in records)
    return attrs.evolve(after, records=states, advice=tuple(advice), checked_at=now)


def _after(domain: Domain, complete: bool, now: datetime) -> Domain:
    if domain.status in ("not_started", "failed"):  # looked at without being asked to: that changes nothing
        return attrs.evolve(domain, next_check_at=None)
    if complete:
        return attrs.evolve(domain, status="verified", since=None, checks=0, next_check_at=now + DAILY)
    since = domain.since or now
    if now - since >= GRACE:
        return attrs.evolve(domain, status="failed", checks=0, next_check_at=None)
    pause = BACKOFF[min(domain.checks, len(BACKOFF) - 1)]
    return attrs.evolve(domain, since=since, checks=domain.checks + 1, next_check_at=min(now + pause, since + GRACE))


def sentences(before: Domain, after: Domain) -> list[str]:
    """What the history says of the step between the two."""
    told = []
    if before.status != after.status:
        told.append("Verified." if after.status == "verified" else "Failed: not all records were found within 72 hours.")
    elif after.status == "verified" and (before.since is None) != (after.since is None):
        told.append("All records are found again." if after.since is None else "A record is missing; it may send for 72 hours more.")
    known = {(r.type, r.name): r for r in before.records}
    for record in after.records:
        was = known.get((record.type, record.name))
        if was is not None and (was.status, was.problem) != (record.status, record.problem):
            told.append(f"{record.purpose} {record.type} {record.name}: {record.told or record.status}")
    return told
