"""Links from the pages to the documentation: whether it is installed here, and which chapter explains which page."""

from __future__ import annotations

import attrs

from mailsvc.http import docs_site

_INSTALLED = docs_site.ARCHIVE.is_file()  # when the process starts, as it reads the site itself
BASE = f"/{docs_site.HOME}/{docs_site.LATEST}"


@attrs.frozen
class Chapter:
    """`page`: the name of its file, without the ending."""

    page: str
    title: str

    @property
    def url(self) -> str:
        return f"{BASE}/{self.page}.html"


# By path below /dashboard. The longest beginning of a path counts.
CHAPTERS = {
    "/": Chapter("dashboard", "Dashboard"),
    "/emails": Chapter("bounces", "Bounces"),
    "/broadcasts": Chapter("broadcasts", "Broadcasts"),
    "/audience": Chapter("audience", "Audience"),
    "/domains": Chapter("domains", "Domains"),
    "/keys": Chapter("clients", "Client libraries"),
    "/metrics": Chapter("deliverability", "Deliverability"),
    "/webhooks": Chapter("webhooks", "Webhooks"),
    "/suppressions": Chapter("bounces", "Bounces"),
    "/settings": Chapter("security", "Security"),
    "/settings/usage": Chapter("plans", "Plans"),
    "/settings/smtp": Chapter("smtp", "SMTP"),
    "/settings/data": Chapter("privacy", "Privacy"),
    "/settings/privacy": Chapter("privacy", "Privacy"),
    "/settings/audit": Chapter("audit", "Audit log"),
}


def installed() -> bool:
    """Whether this process serves the documentation. Links to it are only shown then."""
    return _INSTALLED


def chapter(path: str) -> Chapter:
    """The chapter about the page with this path."""
    below = path.removeprefix("/dashboard") or "/"
    if below.startswith("/broadcasts/") and below.endswith("/edit"):
        return Chapter("editor", "Broadcast editor")
    return CHAPTERS[max((begin for begin in CHAPTERS if f"{below}/".startswith(f"{begin.rstrip('/')}/")), key=len)]
