"""What the tests of received reports share: the intake over a rig of domains, and reports by other software with other dates."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs

from mailsvc.mail.reports import attached
from mailsvc.reports.receiving import OwnSources, ReportIntake
from mailsvc.store.domains.reports import Reports, Summary
from mailsvc.store.domains.values import Domain
from tests.domains.rig import Rig
from tests.mail.reports.samples import mail_with, sample

SECRET = b"r" * 32


@attrs.frozen
class Mail:
    """A mail to addresses for reports."""

    message: bytes
    domains: tuple[UUID, ...]
    sender: str = "reports@receiver.example"


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


def intake(rig: Rig, **changes: Any) -> ReportIntake:
    own = OwnSources(rig.checker.resolver, rig.maintenance.publishing, {"192.0.2.10"})
    given: dict[str, Any] = {"in_thread": at_once, "keep": timedelta(days=90)}
    return ReportIntake(lambda: (SECRET,), rig.domains, Reports(rig.pool), own, seconds=lambda: today(rig).timestamp(), **given | changes)


def today(rig: Rig) -> datetime:
    return datetime.fromtimestamp(rig.clock.seconds(), UTC)


def dmarc(rig: Rig, name: str = "mail-dmarc.zip", days: int = 1, **replaced: str) -> bytes:
    """A mail with a report by other software about the day so many days ago."""
    content = attached.unpacked(sample(name)).decode()
    begin = int(today(rig).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()) - 86400 * days
    for before, after in {"1780272000": str(begin), "1780358399": str(begin + 86399), **replaced}.items():
        assert before in content
        content = content.replace(before, after)
    return mail_with(gzip.compress(content.encode()))


def tls(rig: Rig, days: int = 1) -> bytes:
    """A mail with a TLS report by other software."""
    day = f"{today(rig) - timedelta(days=days):%Y-%m-%d}"
    content = sample("tlsrpt-reporter.json").decode().replace("2026-06-01", day)
    return mail_with(gzip.compress(content.encode()), "application/tlsrpt+gzip")


async def summary(rig: Rig, domain: Domain, days: int = 30) -> Summary:
    return await Reports(rig.pool).summary(domain.account_id, domain.id, (today(rig) - timedelta(days=days)).date())
