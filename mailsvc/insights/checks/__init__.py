"""Deliverability checks of an email: what was seen, why it matters, and what to do. Pure.

Checks of the message: parts, nesting, header, links, mistakes, html, files. Checks of facts that insights/reputation gathers: reputation.
Thresholds are those that large receivers publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

import attrs

from mailsvc.insights.checks import files, header, html, links, mistakes, nesting, parts
from mailsvc.insights.checks.finding import Grouped, Insight, Level, Mail, grouped
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.mail.html import read
from mailsvc.mail.mime import Parsed

__all__ = ["Grouped", "Insight", "Level", "Mail", "grouped", "mail_of", "of_mail", "same_organisation"]

LONGEST = 1 << 20  # characters of text and of html that are checked

CHECKS: tuple[Callable[[Mail], Iterator[Insight]], ...] = (
    *parts.CHECKS, *nesting.CHECKS, *header.CHECKS, *links.CHECKS, *mistakes.CHECKS, *html.CHECKS, *files.CHECKS,
)  # fmt: skip


def same_organisation(one: str, other: str) -> bool:
    """Compares the last two labels, for callers without a public suffix list."""
    return one.split(".")[-2:] == other.split(".")[-2:]


def _two_labels(domain: str) -> bool:
    return domain.count(".") == 1


def mail_of(
    parsed: Parsed,
    size: int,
    bulk: bool,
    same: Callable[[str, str], bool] = same_organisation,
    root: Callable[[str], bool] = _two_labels,
    recipients: tuple[str, ...] = (),
    accepted: datetime | None = None,
    tracked_at: str = "",
) -> Mail:
    """`size`: bytes of the whole message. Of a longer text or html than LONGEST the checks see the beginning."""
    parsed = attrs.evolve(parsed, html=parsed.html and parsed.html[:LONGEST], text=parsed.text and parsed.text[:LONGEST])
    try:
        mailbox = parse_mailbox(parsed.header("From") or "")
        sender, own = mailbox.address, mailbox.domain
    except AddressError:
        sender, own = "", ""
    return Mail(parsed, size, bulk, read(parsed.html) if parsed.html else None, sender, own, same, root, recipients, accepted, tracked_at)


def of_mail(mail: Mail) -> list[Insight]:
    """Run all checks of the message."""
    return [found for check in CHECKS for found in check(mail)]
