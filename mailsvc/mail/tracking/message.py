"""Tracks a message: its links lead to the tracking host, and its HTML ends with an invisible image. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import attrs

from mailsvc.mail.tracking import links, token
from mailsvc.mail.tracking.token import CLICKS, OPENS, Key, Tracked


@attrs.frozen
class Tracking:
    """What is tracked of a message, and at which host its links lead to. `base_url`: of this service, whose own host may have no https."""

    host: str
    opens: bool
    clicks: bool
    key: Key
    base_url: str = ""

    @property
    def origin(self) -> str:
        base = urlsplit(self.base_url)
        return f"{base.scheme}://{base.netloc}" if base.hostname == self.host else f"https://{self.host}"


@attrs.define(eq=False)
class Tracker:
    """Makes the links of one message, in their order. `untouched`: the beginnings of URLs that stay as they are."""

    tracking: Tracking
    email: Tracked
    untouched: tuple[str, ...] = ()
    _links: int = attrs.field(default=0, init=False)
    _origin: str = attrs.field(init=False, default=attrs.Factory(lambda self: self.tracking.origin, takes_self=True))

    def html(self, html: str) -> str:
        return links.rewrite(html, self.link, self.pixel())

    def link(self, source: str) -> str | None:
        """What stands in the place of a link as it is written; None: it stays."""
        url = links.target(source) if self.tracking.clicks else None
        if url is None or url.startswith((self._url(CLICKS), *self.untouched)):
            return None
        self._links += 1
        return self._url(CLICKS) + token.make(attrs.evolve(self.email, link=self._links, url=url), self.tracking.key)

    def pixel(self) -> str:
        """The image that shows that the message was opened."""
        if not self.tracking.opens:
            return ""
        source = self._url(OPENS) + token.make(self.email, self.tracking.key)
        return f'<img src="{source}" alt="" width="1" height="1" style="display:block;width:1px;height:1px;border:0">'

    def _url(self, path: str) -> str:
        return self._origin + path


def unsubscribe_urls(headers: Mapping[str, str]) -> Sequence[str]:
    """The web addresses in a message's List-Unsubscribe (2369 §3.2): links to them are not tracked."""
    found = next((value for name, value in headers.items() if name.lower() == "list-unsubscribe"), "")
    return [url for part in found.split("<")[1:] if (url := links.target(part.partition(">")[0])) is not None]
