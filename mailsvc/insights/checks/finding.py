"""The insight type, and the mail that the checks examine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal

import attrs

from mailsvc.mail.html import Page
from mailsvc.mail.mime import Parsed

Level = Literal["attention", "better", "great"]


@attrs.frozen
class Insight:
    """Sentences: what was `seen`, `why` it matters, and the `remedy`, both empty if the level is "great"."""

    level: Level
    title: str
    seen: str
    why: str = ""
    remedy: str = ""


@attrs.frozen
class Grouped:
    attention: tuple[Insight, ...]
    better: tuple[Insight, ...]
    great: tuple[Insight, ...]


@attrs.frozen
class Mail:
    """The mail to check.

    `own`: the domain of From; `same(a, b)`: whether two hosts belong to one organisation; `root(domain)`: whether a domain is an
    organisational domain; `accepted`: when the email was accepted, if known; `tracked_at`: the host of this service to which tracked links
    lead, if the domain has no tracking subdomain.
    """

    parsed: Parsed
    size: int
    bulk: bool
    page: Page | None
    sender: str
    own: str
    same: Callable[[str, str], bool]
    root: Callable[[str], bool]
    recipients: tuple[str, ...] = ()
    accepted: datetime | None = None
    tracked_at: str = ""

    @property
    def text(self) -> str:
        """The visible text."""
        return self.page.text if self.page else self.parsed.text or ""


def grouped(found: Sequence[Insight]) -> Grouped:
    attention, better, great = (tuple(one for one in found if one.level == level) for level in ("attention", "better", "great"))
    return Grouped(attention, better, great)


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
