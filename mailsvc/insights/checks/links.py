"""Checks of links: where they lead, and how they look to a filter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from mailsvc.domains import names
from mailsvc.insights.checks.finding import Insight, Mail, listed
from mailsvc.net.address_guard import is_address

LINKS_MAX = 50
ESCAPES = 20  # %xx in one URL
SUBDOMAIN = "Set a tracking subdomain on the domain's page."

_SHORTENERS = frozenset(
    "bit.ly tinyurl.com goo.gl t.co ow.ly is.gd buff.ly rebrand.ly cutt.ly shorturl.at rb.gy tiny.cc lnkd.in t.ly s.id bl.ink".split()
)
# Hosts that any sender may link to.
_SHARED = frozenset(
    "facebook.com instagram.com twitter.com x.com linkedin.com youtube.com github.com apple.com google.com tiktok.com".split()
)
_ADDRESS = re.compile(r"https?://\S++", re.IGNORECASE)
_URL = re.compile(r"\b(?:https?://)?((?:[a-z0-9-]+\.)+[a-z]{2,})\b", re.IGNORECASE)


def link_hosts(mail: Mail) -> Iterator[Insight]:
    if mail.page is None or not mail.own:
        return
    leaving = mail.parsed.header("List-Unsubscribe") or ""  # these links often lead to the service that sends the email
    urls = [link.url for link in mail.page.links if f"<{link.url}>" not in leaving]
    hosts = {host for url in urls if (host := host_of(url)) and not _shared(host)}
    others = sorted(host for host in hosts - {mail.tracked_at} if not mail.same(host, mail.own) and host not in _SHORTENERS)
    tracked = mail.tracked_at in hosts and not mail.same(mail.tracked_at, mail.own)
    if tracked:
        why = "Links to other domains look like phishing."
        seen = f"Tracked links lead to {mail.tracked_at}, but the email is from {mail.own}."
        yield Insight("attention", "Track links at your own domain", seen, why, SUBDOMAIN)
    if others:
        why = "Links to other domains look like phishing."
        seen = f"Links lead to {listed(others)}, but the email is from {mail.own}."
        yield Insight("attention", "Link to your own domain", seen, why, f"Link to pages at {mail.own} or a subdomain of it.")
    elif hosts and not tracked:
        yield Insight("great", "Links lead to the sender's domain", f"All links lead to {listed(sorted(hosts))}.")


def link_texts(mail: Mail) -> Iterator[Insight]:
    for link in mail.page.links if mail.page else ():
        shown, host = _shown_host(link.text.strip()), host_of(link.url)
        if shown and host and not mail.same(names.ascii_domain(shown), names.ascii_domain(host)):
            why = "Phishing works this way, and filters check for it."
            remedy = SUBDOMAIN if host == mail.tracked_at else "Show the real address, or words instead of an address."
            seen = f"The link “{shown}” leads to {host}."
            yield Insight("attention", "A link shows one address but leads to another", seen, why, remedy)
            return


def _shown_host(text: str) -> str:
    """The host of an address that is the text of a link; empty if the text is none."""
    if found := _URL.fullmatch(text.rstrip("/")):
        return found[1].lower()
    found = _ADDRESS.match(text)
    return host_of(found[0]) if found else ""


def link_kinds(mail: Mail) -> Iterator[Insight]:
    urls = [link.url for link in mail.page.links] + [image.source for image in mail.page.images] if mail.page else []
    hosts = all_hosts(mail)
    if short := sorted({host for host in hosts if host in _SHORTENERS}):
        seen, why = f"Links lead to {listed(short)}.", "Filters cannot see where they lead, and penalize that."
        yield Insight("attention", "Don't shorten links", seen, why, "Use the full URL; it is hidden behind the link text.")
    if any(url.lower().startswith("http://") for url in urls):
        yield Insight(
            "better", "Use HTTPS", "Some links or images begin with http://.", "Browsers warn about them.", "Use https:// instead."
        )
    if any(is_address(host) for host in hosts):
        remedy = "Use a hostname in your own domain."
        yield Insight(
            "attention",
            "Don't link to IP addresses",
            "A link has an IP address instead of a hostname.",
            "Legitimate email rarely does.",
            remedy,
        )
    if any(host == "youtu.be" for host in hosts):
        yield Insight(
            "better",
            "Use full YouTube links",
            "A link leads to youtu.be.",
            "Filters treat it as a shortened link.",
            "Use www.youtube.com/watch.",
        )
    if mail.page and any(_is_embedded_video(link.url) for link in mail.page.links):
        remedy = "Link to www.youtube.com/watch from a picture of the video."
        yield Insight(
            "better",
            "Link to the video's page",
            "A link leads to an embedded YouTube player.",
            "The player only works inside a web page.",
            remedy,
        )
    if mail.page and len(mail.page.links) > LINKS_MAX:
        seen = f"There are {len(mail.page.links)} links."
        yield Insight("better", "There are too many links", seen, "Many links look like spam.", f"Keep the {LINKS_MAX} that matter most.")


def odd(mail: Mail) -> Iterator[Insight]:
    """URLs that seem to hide something."""
    urls = [link.url for link in mail.page.links] if mail.page else []
    seen = []
    if ports := sorted({str(port) for url in urls if (port := _port(url)) not in (None, 80, 443)}):
        seen.append(f"one has the port {listed(ports)}")
    if any(re.fullmatch(r"0x[0-9a-f]+|\d{6,}", host_of(url), re.IGNORECASE) for url in urls):
        seen.append("one has a number instead of a hostname")
    if any(url.count("%") > ESCAPES and not _only_in_query(url) for url in urls):
        seen.append("one has many percent-encoded characters")
    if any("@" in urlsplit_of(url).netloc for url in urls):
        seen.append("one has a user name before an @")
    if seen:
        text = "; ".join(seen)
        why = "URLs that hide where they lead look like fraud."
        yield Insight("better", "A link looks suspicious", f"{text[0].upper()}{text[1:]}.", why, "Use plain URLs in your own domain.")
    if mail.bulk and mail.page and not urls:
        why, remedy = "Bulk email needs at least an unsubscribe link.", "Add an unsubscribe link."
        yield Insight("better", "There is no link", "The HTML has no links.", why, remedy)


def look_alikes(mail: Mail) -> Iterator[Insight]:
    """Internationalised domain names that look like others. They are xn-- in DNS and in most URLs."""
    for host in sorted({*all_hosts(mail), mail.own}):
        if warning := names.look_alike(host):
            seen = f"{'A link or image leads to' if host != mail.own else 'The email is from'} {host}. {warning}"
            why = "Filters and browsers treat such names as fraud."
            yield Insight("attention", "A domain looks like another one", seen, why, "Use a name in letters of one alphabet.")
            return


def _only_in_query(url: str) -> bool:
    """Whether the escapes are in the query, where they are normal."""
    return urlsplit_of(url).path.count("%") <= ESCAPES


def _port(url: str) -> int | None:
    try:
        return urlsplit_of(url).port
    except ValueError:
        return 0


def urlsplit_of(url: str) -> SplitResult:
    """Empty if the URL is invalid."""
    try:
        return urlsplit(url.strip())
    except ValueError:
        return urlsplit("")


def all_hosts(mail: Mail) -> frozenset[str]:
    """All hosts that the HTML links to or loads images from."""
    urls = [link.url for link in mail.page.links] + [image.source for image in mail.page.images] if mail.page else []
    return frozenset(host for url in urls if (host := host_of(url)))


def host_of(url: str) -> str:
    """The host of an http(s) URL, without `www.`; empty otherwise."""
    try:
        parts = urlsplit(url.strip())
        return (parts.hostname or "").removeprefix("www.") if parts.scheme in ("http", "https") else ""
    except ValueError:
        return ""


def _is_embedded_video(url: str) -> bool:
    return host_of(url).endswith(("youtube.com", "youtube-nocookie.com")) and urlsplit_of(url).path.startswith("/embed/")


def _shared(host: str) -> bool:
    return any(host == shared or host.endswith(f".{shared}") for shared in _SHARED)


CHECKS = (link_hosts, link_texts, link_kinds, odd, look_alikes)
