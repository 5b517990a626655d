"""What a server offers: its answer to EHLO, read once (RFC 5321 §4.1.1.1)."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mailsvc.mail.reply import Reply


@attrs.frozen
class Capabilities:
    """A server that greeted us. Without `extended` it knew only HELO, and everything else keeps its default."""

    name: str = ""  # what the server calls itself
    extended: bool = False
    keywords: Mapping[str, str] = attrs.field(factory=dict)  # upper-case keyword → its parameters as they came
    pipelining: bool = False
    starttls: bool = False
    size: bool = False
    size_limit: int = 0  # octets; 0: none told
    eight_bit: bool = False
    smtputf8: bool = False
    chunking: bool = False
    dsn: bool = False
    mechanisms: frozenset[str] = frozenset()  # of AUTH
    rcpt_max: int = 0  # RFC 9422, recipients a transaction; 0: none told
    mail_max: int = 0  # RFC 9422, transactions a connection; 0: none told


def from_ehlo(reply: Reply) -> Capabilities:
    """The first line is the greeting; each other line is a keyword, in any case, and its parameters."""
    greeting, *lines = reply.text.split("\n")
    keywords: dict[str, str] = {}
    for line in lines:
        keyword, _, parameters = line.strip().partition(" ")
        if keyword[:5].upper() == "AUTH=":  # the spelling of old servers
            keyword, parameters = "AUTH", f"{keyword[5:]} {parameters}"
        keywords.setdefault(keyword.upper(), parameters.strip())
    limits = _limits(keywords.get("LIMITS", ""))
    return Capabilities(
        name=_first_word(greeting),
        extended=True,
        keywords=keywords,
        pipelining="PIPELINING" in keywords,
        starttls="STARTTLS" in keywords,
        size="SIZE" in keywords,
        size_limit=_number(keywords.get("SIZE", "")),
        eight_bit="8BITMIME" in keywords,
        smtputf8="SMTPUTF8" in keywords,
        chunking="CHUNKING" in keywords,
        dsn="DSN" in keywords,
        mechanisms=frozenset(keywords.get("AUTH", "").upper().split()),
        rcpt_max=limits.get("RCPTMAX", 0),
        mail_max=limits.get("MAILMAX", 0),
    )


def from_helo(reply: Reply) -> Capabilities:
    return Capabilities(name=_first_word(reply.text))


def _first_word(text: str) -> str:
    words = text.split(maxsplit=1)
    return words[0] if words else ""


def _number(text: str) -> int:
    """A decimal number of at most 20 digits (1870 §5); anything else is as good as none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0


def _limits(text: str) -> dict[str, int]:
    pairs = (word.partition("=") for word in text.split())
    return {name.upper(): _number(value) for name, _, value in pairs}
