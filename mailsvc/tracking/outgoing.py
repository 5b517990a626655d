"""Decides whether an outgoing email is tracked, and tracks it: before it is signed and stored, so every attempt has the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.incoming import AsReceived, Content, Incoming, recipients_of
from mailsvc.mail.tracking import submitted
from mailsvc.mail.tracking.message import Tracker, Tracking, unsubscribe_urls
from mailsvc.mail.tracking.token import Key, Tracked, day_of
from mailsvc.runtime.offload import InThread
from mailsvc.store.audience.objections import Objections
from mailsvc.store.domains.values import Domain
from mailsvc.store.mail.values import Pieces

OFF_REACTOR = 16 * 1024  # characters of HTML or bytes of a message; longer ones are tracked in a thread
BEGINNING = 4 << 20  # bytes of a large message in which its HTML has to be
SOURCES = frozenset({"api", "smtp"})  # not system mail; what is sent again is tracked already


@attrs.define(eq=False)
class OutgoingTracking:
    """`own_host`: of links of domains without a tracking subdomain. `secrets`: by number, the one that makes new links first.

    `untracked_domains`: recipient domains that the operator listed. `base_url`: of this service; links to it stay as they are.
    """

    own_host: str | None
    secrets: Callable[[], Mapping[int, bytes]]
    objections: Objections
    in_thread: InThread
    untracked_domains: frozenset[str] = frozenset()
    base_url: str = ""

    def of(self, domain: Domain) -> Tracking | None:
        """What is tracked of the emails of a domain. None: nothing."""
        host = domain.tracking_host(self.own_host)
        if host is None:
            return None
        number, secret = next(iter(self.secrets().items()))
        return Tracking(host, domain.open_tracking, domain.click_tracking, Key(number, secret), self.base_url)

    def fixed(self, domain: Domain) -> dict[str, object] | None:
        """The same as JSON, for a broadcast that starts."""
        tracking = self.of(domain)
        if tracking is None:
            return None
        return {"host": tracking.host, "opens": tracking.opens, "clicks": tracking.clicks, "key": tracking.key.number}

    def lists(self, address: str) -> bool:
        """Whether the operator listed the address's domain, or one above it."""
        labels = address.rpartition("@")[2].lower().split(".")
        return any(".".join(labels[start:]) in self.untracked_domains for start in range(len(labels)))

    async def track(self, email: Incoming, domain: Domain, email_id: UUID, date: datetime) -> Incoming:
        """The email with tracked links and an image. The same email if it is not tracked; one person is enough who must not be tracked."""
        tracking, content = self.of(domain), email.content
        if tracking is None or email.source not in SOURCES or not _has_html(content):
            return email
        addresses = recipients_of(email)
        if any(map(self.lists, addresses)) or await self.objections.any(domain.account_id, addresses):
            return email
        tracked = Tracked(domain.account_id, email_id, day_of(date.timestamp()))

        def tracker(headers: Mapping[str, str]) -> Tracker:
            return Tracker(tracking, tracked, (*([f"{self.base_url}/"] if self.base_url else []), *unsubscribe_urls(headers)))

        def make() -> Content | AsReceived:
            if isinstance(content, AsReceived):
                return _submitted(content, tracker)
            return attrs.evolve(content, tracked=tracker(email.headers).html(content.html or ""))

        size = len(content.message) if isinstance(content, AsReceived) else len(content.html or "")
        changed = make() if size <= OFF_REACTOR else await self.in_thread(make)
        return email if changed is content else attrs.evolve(email, content=changed)


@attrs.frozen(eq=False)
class Spliced:
    """A message with another beginning: `beginning`, then `rest` without its first `skipped` bytes."""

    beginning: bytes
    rest: Pieces
    skipped: int

    def __len__(self) -> int:
        return len(self.beginning) + len(self.rest) - self.skipped

    def __iter__(self) -> Iterator[bytes]:
        yield self.beginning
        skip = self.skipped
        for piece in self.rest:
            if skip < len(piece):
                yield piece[skip:]
            skip = max(0, skip - len(piece))


def _submitted(content: AsReceived, tracker: Callable[[Mapping[str, str]], Tracker]) -> AsReceived:
    """The same content if it has no HTML that can be tracked."""
    message = content.message
    beginning = message if isinstance(message, bytes) else _beginning(message)
    part = submitted.html_of(beginning, len(beginning) == len(message))
    if part is None:
        return content
    written = submitted.replaced(beginning, part, tracker(submitted.headers(beginning)).html)
    if written is None:
        return content
    if isinstance(message, bytes) or len(beginning) == len(message):
        return attrs.evolve(content, message=written)
    return attrs.evolve(content, message=Spliced(written, message, len(beginning)))


def _beginning(message: Pieces) -> bytes:
    pieces: list[bytes] = []
    for piece in message:
        pieces.append(piece)
        if sum(map(len, pieces)) >= BEGINNING:
            break
    return b"".join(pieces)


def _has_html(content: Content | AsReceived) -> bool:
    return isinstance(content, AsReceived) or bool(content.html)
