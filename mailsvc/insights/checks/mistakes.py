"""Checks for mistakes of the sending program: placeholders without values, links that lead nowhere, broken encodings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from mailsvc.insights.checks.finding import Insight, Mail, listed
from mailsvc.insights.checks.links import host_of
from mailsvc.mail import charset

SHOWN = 60  # characters of a URL or placeholder that are quoted
READ, READ_URL = 200_000, 2000  # characters of a text and of a URL that are searched; other threads wait meanwhile

# {{name}}, {% if %}, {first_name}, *|FNAME|*, %%name%%, %recipient.name%, ${name}, #{name}, [[name]], <%= name %>, and what JavaScript
# writes for a missing value.
_PLACEHOLDER = re.compile(
    r"\{\{[^{}\n]{1,60}\}\}|\{%[^{}%\n]{1,60}%\}|\{[a-z]{1,20}(?:_[a-z]{1,20}){1,3}\}|\*\|[A-Z][A-Z0-9_:]{0,40}\|\*"
    r"|%%[A-Za-z]\w{0,40}%%|%recipient\.\w{1,40}%|[$#]\{[A-Za-z_][\w.]{0,60}\}|\[\[[A-Za-z_][\w.]{0,40}\]\]|<%=?[^%<>\n]{1,60}%>"
    r"|\[object Object\]|\bInvalid Date\b|[$€£] ?NaN\b"
)
_NO_NAME = re.compile(r"\b(?:hi|hello|hey|dear|hallo|liebe|lieber|bonjour|hola|ciao),? (undefined|null|none|nan)\b", re.IGNORECASE)
_UNDEFINED = re.compile(r"(?:\b(\w{1,20}) )?(?<![\w'\"`“‘])undefined(?![\w'\"`”’])(?: (\w{1,20}))?")
_UNDEFINED_IN_URL = re.compile(r"[=/]undefined(?=[/?&#]|$)")
# Beside “undefined” in texts about programs and contracts.
_TECHNICAL_BEFORE = frozenset("is are was were be been of an or as left remain remains return returns typeof equals not".split())
_TECHNICAL_AFTER = frozenset(
    "is are was behavior behaviour variable variables function method index symbol reference constant property offset array name error"
    " or and value values term terms".split()
)
_ENCODED_WORD = re.compile(r"=\?([^?\s]{1,64})\?[bBqQ]\?[^?\r\n]*\?=")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,30}):", re.IGNORECASE)
_NEARLY_HTTP = re.compile(r"h{0,2}t{1,3}p{1,2}s{0,2} ?(?:[:;]|//)", re.IGNORECASE)  # such as htp://, https// and http;//
_HOST = re.compile(r"[\w.-]+", re.ASCII)
_WITHOUT_SLASHES = frozenset("mailto tel sms cid webcal geo callto skype sip facetime xmpp maps urn intent".split())
_SCRIPTS = frozenset({"javascript", "vbscript"})
_LOCAL = frozenset({"file", "data", "blob", "about"})


def placeholders(mail: Mail) -> Iterator[Insight]:
    """Where a value is missing, in the order in which people see it."""
    links = mail.page.links if mail.page else ()
    places = [("subject", mail.parsed.header("Subject") or ""), ("HTML", mail.page.text if mail.page else "")]
    places += [("text", mail.parsed.text or ""), *(("URL of a link", link.url) for link in links)]
    for place, text in places:
        found = _unfilled_in_url(text) if place.startswith("URL") else _unfilled(text[:READ])
        if found:
            seen = f"The {place} contains “{found[:SHOWN]}”."
            why = "A value was missing when the email was made. People notice it at once."
            remedy = "Set the value, or a default for people without one."
            yield Insight("attention", "A placeholder has no value", seen, why, remedy)
            return


def _unfilled_in_url(url: str) -> str:
    plain = unquote(url[:READ_URL])
    found = _PLACEHOLDER.search(plain) or _UNDEFINED_IN_URL.search(plain)
    return found[0].strip("=/") if found else ""


def _unfilled(text: str) -> str:
    found = _PLACEHOLDER.search(text) or _NO_NAME.search(text)
    if found:
        return found[0]
    for word in _UNDEFINED.finditer(text):
        if (word[1] or "").lower() not in _TECHNICAL_BEFORE and (word[2] or "").lower() not in _TECHNICAL_AFTER:
            return word[0]
    return ""


def broken_links(mail: Mail) -> Iterator[Insight]:
    problems = [problem for link in (mail.page.links if mail.page else ()) if (problem := _fault(link.url.strip()))]
    if problems:
        text = "; ".join(list(dict.fromkeys(problems))[:3])
        why = "People who follow it get nowhere, and filters take such links for a sign of fraud."
        yield Insight(
            "attention", "A link does not work", f"{text[0].upper()}{text[1:]}.", why, "Use complete URLs that begin with https://."
        )


def _fault(url: str) -> str:
    """Why a link does not work in an email; empty if it does."""
    shown = f"“{url[:SHOWN]}”"
    if not url:
        return "one link has no address"
    if url == "#":
        return "one link leads to “#”"
    if url.startswith("#") or _unfilled_in_url(url):  # a place in the same email; an unfilled one has its own insight
        return ""
    found = _SCHEME.match(url)
    scheme = found[1].lower() if found else ""
    if scheme in ("http", "https"):
        host = host_of(url)
        usable = ":" in host or ("." in host.strip(".") and ".." not in host and (not host.isascii() or _HOST.fullmatch(host)))
        return "" if usable else f"{shown} is misspelled or only works on your own machine"
    if scheme in _SCRIPTS:
        return f"{shown} is a script"
    if scheme in _LOCAL:
        return f"{shown} only works on your own machine"
    if _NEARLY_HTTP.match(url):
        return f"{shown} is misspelled"
    if scheme in _WITHOUT_SLASHES or url[len(scheme) :].startswith("://"):
        return f"{shown} has no address" if scheme == "mailto" and "@" not in url else ""
    return f"{shown} is relative"


def encodings(mail: Mail) -> Iterator[Insight]:
    seen = []
    for defect in mail.parsed.defects:
        seen.append(
            f"{defect.part} {'is not valid base64' if defect.kind == 'base64' else f'has the unknown {defect.kind} {defect.value}'}"
        )
    for field in mail.parsed.fields:
        if field.name.lower() in ("subject", "from", "to", "cc", "reply-to"):
            words = [(word[0], word[1].partition("*")[0]) for word in _ENCODED_WORD.finditer(charset.guess(field.raw)[:1000])]
            unknown = [name for _, name in words if charset.codec_of(name) is None]
            value = field.value if words else ""
            if unknown:
                seen.append(f"{field.name} has the unknown charset {unknown[0]}")
            elif any(word in value for word, _ in words):
                seen.append(f"{field.name} cannot be decoded")
    if seen:
        text = listed(list(dict.fromkeys(seen)))
        why = "Email clients show it as gibberish or not at all, and filters treat it as an attempt to hide something."
        remedy = "Use UTF-8, and a library to build the message."
        yield Insight("attention", "Part of the message cannot be decoded", f"{text[0].upper()}{text[1:]}.", why, remedy)


CHECKS = (placeholders, broken_links, encodings)
