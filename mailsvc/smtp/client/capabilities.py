"""The capabilities that a server announces in its reply to EHLO (RFC 5321 §4.1.1.1)."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mailsvc.mail.reply import Reply


@attrs.frozen
class Capabilities:
    """Without `extended` the server knows only HELO, and everything else has its default."""

    name: str = ""  # of the server, as it announces itself
    extended: bool = False
    keywords: Mapping[str, str] = attrs.field(factory=dict)  # upper-case keyword → its parameters, unchanged
    pipelining: bool = False
    starttls: bool = False
    size: bool = False
    size_limit: int = 0  # bytes; 0: not announced
    eight_bit: bool = False
    smtputf8: bool = False
    chunking: bool = False
    dsn: bool = False
    mechanisms: frozenset[str] = frozenset()  # of AUTH
    rcpt_max: int = 0  # RFC 9422: recipients per transaction; 0: not announced
    mail_max: int = 0  # RFC 9422: transactions per connection; 0: not announced

    def without_parameters(self) -> Capabilities:
        """Without the extensions that a message does not need, so that MAIL and RCPT have only the parameters that it does need."""
        return attrs.evolve(self, size=False, eight_bit=False, dsn=False)


def from_ehlo(reply: Reply) -> Capabilities:
    """The first line is the greeting; each other line is a keyword, in any case, and its parameters."""
    greeting, *lines = reply.text.split("\n")
    keywords: dict[str, str] = {}
    for line in lines:
        keyword, _, parameters = line.strip().partition(" ")
        if keyword[:5].upper() == "AUTH=":  # the syntax of old servers
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
    """A decimal number of at most 20 digits (1870 §5); 0 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0


def _limits(text: str) -> dict[str, int]:
    pairs = (word.partition("=") for word in text.split())
    return {name.upper(): _number(value) for name, _, value in pairs}
