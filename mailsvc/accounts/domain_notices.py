"""Mails the admins of an account when sending from one of its domains is about to stop, or has stopped.

When that is: domains/lifecycle. Each process that accepts mail looks for such domains.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import attrs
from twisted.logger import Logger

from mailsvc.accounts.abuse import Mail
from mailsvc.clock import utc
from mailsvc.domains import lifecycle, names
from mailsvc.store.domains.notices import DomainNoticeStore
from mailsvc.store.domains.values import Domain
from mailsvc.store.in_turn import all_in_turn, in_turn

EVERY = 60.0  # seconds
WARN_AFTER = timedelta(hours=6)  # a record that is missing for less time is often back soon
LOST_FOR = timedelta(days=1)  # a domain that was lost earlier than that is not mentioned any more
LISTED = 10  # records

log = Logger()


@attrs.frozen
class DomainNotices:
    """An idempotency key prevents duplicates of several processes."""

    store: DomainNoticeStore
    mail: Mail
    clock: Any

    async def send_due(self) -> None:
        now = utc(self.clock)
        await in_turn([partial(self._send, domain) for domain in await self.store.due(now - WARN_AFTER, now - LOST_FOR)])

    async def _send(self, domain: Domain) -> None:
        account, admins = await self.store.account(domain)
        log.info("mailing the admins of the domain {name}, which is {status}", name=domain.name, status=_state(domain))
        subject, text = compose(domain, account)
        if await all_in_turn([partial(self.mail.send, to, subject, text, f"{_key(domain)}/{to}") for to in admins]):
            await self.store.notified(domain)


def compose(domain: Domain, account: str) -> tuple[str, str]:
    """Subject and text."""
    name, state = names.shown(domain.name), _state(domain)
    if state == "failing" and domain.since is not None:
        subject = f"Sending from {name} will stop"
        lines = [
            f"Required DNS records of {name} have been missing or incorrect since {_time(domain.since)}. Email from it is still sent, "
            f"until {_time(domain.since + lifecycle.GRACE)}. If all records are found before then, nothing stops.",
            *_defects(domain),
        ]
    elif state == "lost" and domain.lost_at is not None:
        subject = f"{name} now belongs to another account"
        lines = [
            f"At {_time(domain.lost_at)}, another account had its own records for {name} in DNS, and those of {account} were gone. You "
            "can no longer send from the domain, and its queued email has ended.",
            "If you did not expect this, check who can change the domain's DNS. To get the domain back, publish its records and request "
            "verification.",
        ]
    else:
        subject = f"Sending from {name} has stopped"
        lines = [
            f"Required DNS records of {name} have been missing or incorrect for {lifecycle.GRACE // timedelta(hours=1)} hours. New email "
            "from it is refused. Once the records are in DNS, request verification.",
            *_defects(domain),
        ]
    lines.append(f"The records are in the dashboard of {account}, under Domains.")
    return subject, "\n\n".join(lines) + "\n"


def _defects(domain: Domain) -> Iterator[str]:
    """What is wrong with each required record."""
    wrong = [record for record in domain.records if record.required and record.problem is not None]
    for record in wrong[:LISTED]:
        yield f"{record.type} {record.name}: {record.message or record.problem}"


def _state(domain: Domain) -> str:
    return "failing" if domain.status == "verified" else "lost" if domain.lost_at is not None else "failed"


def _key(domain: Domain) -> str:
    at = domain.since or domain.lost_at
    return f"domain/{domain.id}/{_state(domain)}/{'' if at is None else at.isoformat()}"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
