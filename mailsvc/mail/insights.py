"""What could be better about an email, seen from its message alone: each check tells what was seen, why it matters and what to do.

Pure: what needs DNS or the network is told where that is looked at. Thresholds are those of the receivers that publish theirs.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal
from urllib.parse import urlsplit

import attrs

from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.mail.markup import Image, Page, read
from mailsvc.mail.mime import Parsed

Level = Literal["attention", "better", "great"]

HTML_MOST, HTML_NEAR = 102 * 1024, 90 * 1024  # octets; large receivers cut a mail off there
SIZE_MOST, SIZE_NEAR = 25 << 20, 10 << 20
IMAGE_MOST = 1 << 20
LINKS_MOST = 50
SUBJECT_LONG, SHOUTED = 70, 10  # characters
VISIBLE_MOST = 50  # addresses in To

_NO_REPLY = re.compile(r"\b(no|do-?not|dont)[-_.]?reply\b", re.IGNORECASE)
_SHORTENERS = frozenset(
    "bit.ly tinyurl.com goo.gl t.co ow.ly is.gd buff.ly rebrand.ly cutt.ly shorturl.at rb.gy tiny.cc lnkd.in t.ly s.id bl.ink".split()
)
_EVERYBODYS = frozenset(
    "gmail.com googlemail.com yahoo.com outlook.com hotmail.com live.com icloud.com aol.com gmx.de gmx.net web.de proton.me mail.ru".split()
)
# Hosts that mail of every sender links to.
_SHARED = frozenset(
    "facebook.com instagram.com twitter.com x.com linkedin.com youtube.com github.com apple.com google.com tiktok.com".split()
)
_DANGEROUS = frozenset("exe bat cmd com scr js jse vbs vbe jar msi msp iso img lnk ps1 docm xlsm pptm hta cpl wsf reg dll apk".split())
_URL = re.compile(r"\b(?:https?://)?((?:[a-z0-9-]+\.)+[a-z]{2,})\b", re.IGNORECASE)


@attrs.frozen
class Insight:
    """`seen`, `why` and `todo` are sentences."""

    level: Level
    title: str
    seen: str
    why: str = ""
    todo: str = ""


@attrs.frozen
class Grouped:
    attention: tuple[Insight, ...]
    better: tuple[Insight, ...]
    great: tuple[Insight, ...]


@attrs.frozen
class Mail:
    """What the checks look at. `own` is the domain of From, `same` says whether a host is of the same organisation."""

    parsed: Parsed
    size: int
    bulk: bool
    page: Page | None
    sender: str
    own: str
    same: Callable[[str, str], bool]


def same_organisation(one: str, other: str) -> bool:
    """By their last two labels, where nobody knows public suffixes better."""
    return one.split(".")[-2:] == other.split(".")[-2:]


def of_message(parsed: Parsed, size: int, bulk: bool, same: Callable[[str, str], bool] = same_organisation) -> list[Insight]:
    """Of all checks; `size` is that of the whole message in octets."""
    try:
        mailbox = parse_mailbox(parsed.header("From") or "")
        sender, own = mailbox.address, mailbox.domain
    except AddressError:
        sender, own = "", ""
    mail = Mail(parsed, size, bulk, read(parsed.html) if parsed.html else None, sender, own, same)
    return [found for check in CHECKS for found in check(mail)]


def grouped(found: Sequence[Insight]) -> Grouped:
    attention, better, great = (tuple(one for one in found if one.level == level) for level in ("attention", "better", "great"))
    return Grouped(attention, better, great)


# The parts


def plain_text(mail: Mail) -> Iterator[Insight]:
    html, text = mail.parsed.html, mail.parsed.text
    if text is None or not text.strip():
        why = "Filters distrust mail that has none, and some people read nothing else."
        yield Insight("attention", "Include a plain text part", "There is none.", why, "Leave `text` out and it is made from the html.")
    elif html and mail.page and len(text) < len(mail.page.text) / 100:
        yield Insight("better", "The text part is nearly empty", f"It has {len(text)} characters.", "Filters compare it with the html.")
    else:
        yield Insight("great", "It has a plain text part", f"{len(text):,} characters.")


def html_size(mail: Mail) -> Iterator[Insight]:
    size = len((mail.parsed.html or "").encode("utf-8", "replace"))
    seen = f"The html has {size / 1024:.0f} kB."
    why = f"Gmail cuts a mail off after {HTML_MOST // 1024} kB, and with it the way to unsubscribe."
    if size > HTML_MOST:
        yield Insight("attention", "The html is too large", seen, why, "Remove unused styles and long links.")
    elif size > HTML_NEAR:
        yield Insight("better", "The html is nearly too large", seen, why)
    elif mail.parsed.html:
        yield Insight("great", "The html is small enough", seen)


def whole_size(mail: Mail) -> Iterator[Insight]:
    seen = f"The message has {mail.size / (1 << 20):.1f} MB."
    if mail.size > SIZE_MOST:
        yield Insight("attention", "The message is too large", seen, "Many receivers take 25 MB at most.", "Link to large files instead.")
    elif mail.size > SIZE_NEAR:
        yield Insight("better", "The message is large", seen, "Some receivers take 10 MB at most.", "Link to large files instead.")


# The headers


def no_reply(mail: Mail) -> Iterator[Insight]:
    found = next((value for value in (mail.sender, mail.parsed.header("Reply-To") or "") if _NO_REPLY.search(value)), None)
    if found:
        why = "People who can answer trust a mail more, and answers raise its reputation."
        yield Insight("attention", "Don't use a “no-reply” address", f"It is from {found}.", why, "Use an address that somebody reads.")
    elif mail.sender:
        yield Insight("great", "It can be answered", f"It is from {mail.sender}.")


def own_domain(mail: Mail) -> Iterator[Insight]:
    if mail.own in _EVERYBODYS:
        why = f"{mail.own} asks receivers to refuse mail that it did not send itself."
        yield Insight("attention", "Send from a domain of your own", f"It is from {mail.sender}.", why)
    elif mail.bulk and mail.own.count(".") == 1:
        why = "What goes wrong with it then harms all of the domain's mail."
        yield Insight("better", "Use a subdomain", f"It is from {mail.own} itself.", why, f"Send from one such as news.{mail.own}.")


def subject(mail: Mail) -> Iterator[Insight]:
    text = (mail.parsed.header("Subject") or "").strip()
    if not text:
        yield Insight("attention", "It has no subject", "The subject is empty.", "Filters count that as spam.", "Say what it is about.")
        return
    problems = []
    if len(text) >= SHOUTED and text.isupper():
        problems.append("It is written in capitals.")
    if re.search(r"!{2,}|\${2,}", text):
        problems.append("It has signs in a row.")
    if re.match(r"(re|fwd?|aw):", text, re.IGNORECASE) and not mail.parsed.header("In-Reply-To"):
        problems.append("It looks like an answer and is none.")
    if len(text) > SUBJECT_LONG:
        problems.append(f"It has {len(text)} characters; a phone shows about 40.")
    if problems:
        yield Insight("better", "The subject could be better", " ".join(problems), "It is what people and filters see first.")
    else:
        yield Insight("great", "The subject is fine", f"{len(text)} characters.")


def recipients(mail: Mail) -> Iterator[Insight]:
    visible = (mail.parsed.header("To") or "").count("@")
    if visible > VISIBLE_MOST:
        yield Insight(
            "better", "Many people see each other's addresses", f"To has {visible}.", "They may not want that.", "Send to each alone."
        )


def unsubscribe(mail: Mail) -> Iterator[Insight]:
    links, one_click = mail.parsed.header("List-Unsubscribe"), mail.parsed.header("List-Unsubscribe-Post")
    if not mail.bulk:
        return
    if not links:
        why = "Large receivers refuse mail to many without it."
        yield Insight("attention", "Let people unsubscribe with one click", "There is no List-Unsubscribe field.", why)
    elif not one_click or "https:" not in links.lower():
        yield Insight(
            "better",
            "Unsubscribing takes more than a click",
            "List-Unsubscribe-Post or an https link is missing.",
            "RFC 8058 asks for both.",
        )
    else:
        yield Insight("great", "People can unsubscribe with one click", "List-Unsubscribe and List-Unsubscribe-Post are there.")


# The links


def link_hosts(mail: Mail) -> Iterator[Insight]:
    if mail.page is None or not mail.own:
        return
    hosts = {host for link in mail.page.links if (host := _host(link.url)) and not _shared(host)}
    others = sorted(host for host in hosts if not mail.same(host, mail.own) and host not in _SHORTENERS)
    if others:
        why = "Links that lead elsewhere look like phishing."
        yield Insight("attention", "Link to your own domain", f"Links lead to {_listed(others)}, the mail is from {mail.own}.", why)
    elif hosts:
        yield Insight("great", "Links lead to the sender's domain", f"All of them lead to {_listed(sorted(hosts))}.")


def link_texts(mail: Mail) -> Iterator[Insight]:
    for link in mail.page.links if mail.page else ():
        said = _URL.fullmatch(link.text.strip().rstrip("/")) or re.match(r"https?://([^/\s]+)", link.text.strip())
        host = _host(link.url)
        if said and host and not mail.same(said[1].lower(), host):
            why = "That is how phishing works, and filters know it."
            yield Insight("attention", "A link says one address and leads to another", f"“{said[1]}” leads to {host}.", why)
            return


def link_kinds(mail: Mail) -> Iterator[Insight]:
    urls = [link.url for link in mail.page.links] + [image.source for image in mail.page.images] if mail.page else []
    hosts = [host for url in urls if (host := _host(url))]
    if short := sorted({host for host in hosts if host in _SHORTENERS}):
        yield Insight(
            "attention", "Don't shorten links", f"Links lead to {_listed(short)}.", "Filters cannot see where they go, and count that."
        )
    if any(url.lower().startswith("http://") for url in urls):
        yield Insight("better", "Use https", "Some links or images begin with http://.", "Browsers warn of them.")
    if any(_is_address(host) for host in hosts):
        yield Insight("attention", "Link to names, not to IP addresses", "A link has an IP address.", "Only spam does.")
    if any(host == "youtu.be" for host in hosts):
        yield Insight(
            "better", "Use full YouTube links", "A link leads to youtu.be.", "It counts as shortened.", "Use www.youtube.com/watch."
        )
    if mail.page and len(mail.page.links) > LINKS_MOST:
        yield Insight("better", "There are many links", f"There are {len(mail.page.links)}.", "Filters count them.")


# The html


def images(mail: Mail) -> Iterator[Insight]:
    found: Sequence[Image] = mail.page.images if mail.page else ()
    shown = [image for image in found if not image.tiny]
    if any(image.alt is None for image in shown):
        missing = sum(image.alt is None for image in shown)
        why = "Many programs show no images at first, and some people see none."
        yield Insight("better", "Describe the images", f"{missing} of {len(shown)} have no alt text.", why)
    if any(image.source.lower().startswith("data:") for image in found):
        yield Insight(
            "better", "Images inside the html are lost", "Some begin with data:.", "Gmail removes them.", "Attach them with a content id."
        )
    if any(re.search(r"\.svg(\?|$)|^data:image/svg", image.source, re.IGNORECASE) for image in found):
        yield Insight("better", "Avoid SVG images", "There are some.", "Gmail and Outlook do not show them.", "Use PNG.")
    if mail.page and shown and len(mail.page.text) < 400 and len(shown) * 200 > len(mail.page.text):
        seen = f"{len(shown)} image{'s' * (len(shown) != 1)} and {len(mail.page.text)} characters of text."
        yield Insight("better", "There is little text beside the images", seen, "Mail made of images looks like spam.")


def elements(mail: Mail) -> Iterator[Insight]:
    names = mail.page.elements if mail.page else frozenset()
    if wrong := sorted(names & {"script", "iframe", "object", "embed", "applet"}):
        yield Insight(
            "attention", "Remove what mail cannot do", f"The html has {_listed(wrong)}.", "Receivers remove it, and count it as spam."
        )
    if odd := sorted(names & {"form", "video", "audio"}):
        yield Insight("better", "Some programs do not show all of it", f"The html has {_listed(odd)}.", "", "Link to a page that has it.")
    if mail.page and not mail.page.lang:
        yield Insight("better", "Say the language", "The html element has no lang.", "Screen readers need it to speak.")


def files(mail: Mail) -> Iterator[Insight]:
    names = [file.filename or "" for file in mail.parsed.files if file.disposition == "attachment"]
    if bad := [name for name in names if name.rpartition(".")[2].lower() in _DANGEROUS]:
        yield Insight(
            "attention", "Receivers refuse this attachment", f"{_listed(bad)} is of a kind that carries viruses.", "The mail bounces."
        )
    if any(name.lower().endswith((".html", ".htm")) for name in names):
        yield Insight("better", "An html file is attached", "Phishing mail does that.", "Filters look twice.", "Link to a page instead.")
    if any(file.disposition == "inline" and len(file.content) > IMAGE_MOST for file in mail.parsed.files):
        yield Insight("better", "An image is large", "It has more than 1 MB.", "It loads slowly on a phone.")


CHECKS: tuple[Callable[[Mail], Iterator[Insight]], ...] = (
    plain_text, html_size, whole_size, no_reply, own_domain, subject, recipients, unsubscribe,
    link_hosts, link_texts, link_kinds, images, elements, files,
)  # fmt: skip


def _host(url: str) -> str:
    """Of a web address; empty for what is none."""
    try:
        parts = urlsplit(url.strip())
        return (parts.hostname or "").removeprefix("www.") if parts.scheme in ("http", "https") else ""
    except ValueError:
        return ""


def _shared(host: str) -> bool:
    return any(host == shared or host.endswith(f".{shared}") for shared in _SHARED)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
