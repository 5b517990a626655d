"""The links: where they lead, and what they look like to a filter."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from mailsvc.insights.checks.finding import Insight, Mail, listed

LINKS_MOST = 50
ESCAPES = 20  # %xx in one address

_SHORTENERS = frozenset(
    "bit.ly tinyurl.com goo.gl t.co ow.ly is.gd buff.ly rebrand.ly cutt.ly shorturl.at rb.gy tiny.cc lnkd.in t.ly s.id bl.ink".split()
)
# Hosts that mail of every sender links to.
_SHARED = frozenset(
    "facebook.com instagram.com twitter.com x.com linkedin.com youtube.com github.com apple.com google.com tiktok.com".split()
)
_URL = re.compile(r"\b(?:https?://)?((?:[a-z0-9-]+\.)+[a-z]{2,})\b", re.IGNORECASE)


def link_hosts(mail: Mail) -> Iterator[Insight]:
    if mail.page is None or not mail.own:
        return
    hosts = {host for link in mail.page.links if (host := host_of(link.url)) and not _shared(host)}
    others = sorted(host for host in hosts if not mail.same(host, mail.own) and host not in _SHORTENERS)
    if others:
        why = "Links that lead elsewhere look like phishing."
        seen = f"Links lead to {listed(others)}, the mail is from {mail.own}."
        yield Insight("attention", "Link to your own domain", seen, why, f"Link to pages at {mail.own}, or at a name below it.")
    elif hosts:
        yield Insight("great", "Links lead to the sender's domain", f"All of them lead to {listed(sorted(hosts))}.")


def link_texts(mail: Mail) -> Iterator[Insight]:
    for link in mail.page.links if mail.page else ():
        said = _URL.fullmatch(link.text.strip().rstrip("/")) or re.match(r"https?://([^/\s]+)", link.text.strip())
        host = host_of(link.url)
        if said and host and not mail.same(said[1].lower(), host):
            why = "That is how phishing works, and filters know it."
            seen, remedy = f"“{said[1]}” leads to {host}.", "Let it say where it leads, or words in place of an address."
            yield Insight("attention", "A link says one address and leads to another", seen, why, remedy)
            return


def link_kinds(mail: Mail) -> Iterator[Insight]:
    urls = [link.url for link in mail.page.links] + [image.source for image in mail.page.images] if mail.page else []
    hosts = of_page(mail)
    if short := sorted({host for host in hosts if host in _SHORTENERS}):
        seen, why = f"Links lead to {listed(short)}.", "Filters cannot see where they go, and count that."
        yield Insight("attention", "Don't shorten links", seen, why, "Use the whole address; nobody sees it behind words.")
    if any(url.lower().startswith("http://") for url in urls):
        yield Insight(
            "better", "Use https", "Some links or images begin with http://.", "Browsers warn of them.", "Begin them with https://."
        )
    if any(_is_address(host) for host in hosts):
        remedy = "Give the server a name of your own domain."
        yield Insight("attention", "Link to names, not to IP addresses", "A link has an IP address.", "Only spam does.", remedy)
    if any(host == "youtu.be" for host in hosts):
        yield Insight(
            "better", "Use full YouTube links", "A link leads to youtu.be.", "It counts as shortened.", "Use www.youtube.com/watch."
        )
    if mail.page and any(_is_embedded_video(link.url) for link in mail.page.links):
        remedy = "Link to www.youtube.com/watch, behind a picture of the video."
        yield Insight("better", "Link to the video's page", "A link leads to a YouTube player.", "It is made to lie inside a page.", remedy)
    if mail.page and len(mail.page.links) > LINKS_MOST:
        seen = f"There are {len(mail.page.links)}."
        yield Insight("better", "There are many links", seen, "Filters count them.", f"Keep the {LINKS_MOST} that matter most.")


def odd(mail: Mail) -> Iterator[Insight]:
    """Addresses that look as if they hid something."""
    urls = [link.url for link in mail.page.links] if mail.page else []
    seen = []
    if ports := sorted({str(port) for url in urls if (port := _port(url)) not in (None, 80, 443)}):
        seen.append(f"one names the port {listed(ports)}")
    if any(re.fullmatch(r"0x[0-9a-f]+|\d{6,}", host_of(url), re.IGNORECASE) for url in urls):
        seen.append("one has a number for a name")
    if any(url.count("%") > ESCAPES and not _telling(url) for url in urls):
        seen.append("one is full of %-codes")
    if any("@" in urlsplit_of(url).netloc for url in urls):
        seen.append("one has a name before an @")
    if seen:
        told = "; ".join(seen)
        why = "Addresses that hide where they lead are those of fraud."
        yield Insight("better", "A link looks odd", f"{told[0].upper()}{told[1:]}.", why, "Use plain addresses of your own domain.")
    if mail.bulk and mail.page and not urls:
        why, remedy = "Mail to many has at least the one to leave.", "Add a link to unsubscribe."
        yield Insight("better", "There is no link", "The html has none.", why, remedy)


def _telling(url: str) -> bool:
    """A query may hold anything: it is not what people see."""
    return urlsplit_of(url).path.count("%") <= ESCAPES


def _port(url: str) -> int | None:
    try:
        return urlsplit_of(url).port
    except ValueError:
        return 0


def urlsplit_of(url: str) -> SplitResult:
    """Empty for what is no address."""
    try:
        return urlsplit(url.strip())
    except ValueError:
        return urlsplit("")


def of_page(mail: Mail) -> frozenset[str]:
    """All hosts that it links to or loads from."""
    urls = [link.url for link in mail.page.links] + [image.source for image in mail.page.images] if mail.page else []
    return frozenset(host for url in urls if (host := host_of(url)))


def host_of(url: str) -> str:
    """Of a web address; empty for what is none."""
    try:
        parts = urlsplit(url.strip())
        return (parts.hostname or "").removeprefix("www.") if parts.scheme in ("http", "https") else ""
    except ValueError:
        return ""


def _is_embedded_video(url: str) -> bool:
    return host_of(url).endswith(("youtube.com", "youtube-nocookie.com")) and urlsplit_of(url).path.startswith("/embed/")


def _shared(host: str) -> bool:
    return any(host == shared or host.endswith(f".{shared}") for shared in _SHARED)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


CHECKS = (link_hosts, link_texts, link_kinds, odd)
