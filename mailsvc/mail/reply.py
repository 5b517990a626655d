"""SMTP replies (RFC 5321 §4.2) with enhanced codes (RFC 2034, 3463). smtp/client/replies reads them from data."""

from __future__ import annotations

import re

import attrs

_ENHANCED = re.compile(r"([245])\.(\d{1,3})\.(\d{1,3})(?:\s|$)")


@attrs.frozen
class Reply:
    """One complete reply.

    `code`: 200 to 599. `enhanced`: such as "5.1.1"; None if the server sent none. `text`: the lines without the codes, joined by
    newlines.
    """

    code: int
    text: str
    enhanced: str | None = None

    @property
    def positive(self) -> bool:
        """2yz or 3yz: the server accepted the command."""
        return self.code < 400

    @property
    def transient(self) -> bool:
        """4yz: try again later. The first digit of an unknown code decides (5321 §4.3.2)."""
        return 400 <= self.code < 500

    @property
    def permanent(self) -> bool:
        """5yz: do not repeat."""
        return self.code >= 500

    def __str__(self) -> str:
        status = f"{self.code} {self.enhanced}" if self.enhanced else str(self.code)
        return f"{status} {self.text}".rstrip()


_WHOLE = re.compile(r"([2-5]\d\d)(?:[ -]|$)(.*)", re.DOTALL)


def read(text: str) -> Reply | None:
    """Parses a reply such as `550 5.1.1 no such user`. Further lines can repeat the code. Returns None if it is not a reply."""
    found = _WHOLE.match(text)
    if found is None:
        return None
    code, lines = int(found[1]), found[2].splitlines() or [""]
    prefix = re.compile(rf"{code}[ -]")
    lines = [lines[0], *(prefix.sub("", line, count=1) if prefix.match(line) else line for line in lines[1:])]
    enhanced, _ = split_enhanced(code, lines[0])
    return Reply(code, "\n".join(split_enhanced(code, line)[1] for line in lines), enhanced)


def split_enhanced(code: int, text: str) -> tuple[str | None, str]:
    """Returns the enhanced code at the start of `text` and the rest. A code whose class contradicts `code` is ignored (RFC 2034 §4)."""
    found = _ENHANCED.match(text)
    if found is None or int(found[1]) != code // 100:
        return None, text
    return found[0].strip(), text[found.end() :]


_CODES = re.compile(r"(?<![\d.])([245])\.(\d{1,3})\.(\d{1,3})(?![\d.]?\d)")
_REPEATED = re.compile(r"[2-5]\d\d(?:[ -][245]\.\d{1,3}\.\d{1,3})?[ -]{1,3}(?=[45]\d\d[ -])")
_QUOTED = re.compile(
    r"[2-5]\d\d-'|\b(?:said|replied|responded|answered|returned|response|with|was|is|follows|failure): ?[\[('\"]{0,2}(?=[45]\d\d[ -])",
    re.IGNORECASE,
)
# What follows is the reply to a server that verified our return path. It is about that address, not about the recipient.
_ABOUT_SENDER = re.compile(r"\bsender (?:address rejected|verify)\b", re.IGNORECASE)
_SEARCHED = 2000  # characters of a text


def enhanced_codes(text: str) -> list[str]:
    """Returns the enhanced codes in a text, in order."""
    return [found[0] for found in _CODES.finditer(text)]


def refusal(reply: Reply) -> Reply:
    """Returns the refusal that a reply quotes from another server, otherwise the reply itself.

    Such as `550 5.1.0 Unknown address error 550-'5.7.1 Access denied'`, `550 host mx1 said: 554 no` and `550 550 5.7.1 no`.
    """
    text = str(reply)[:_SEARCHED]
    found = _QUOTED.search(text)
    if found and _ABOUT_SENDER.search(text, 0, found.start()):
        return reply
    quoted = text[found.start() if found[0].endswith("'") else found.end() :].replace("-'", " ", 1) if found else text
    for _ in range(3):
        again = _REPEATED.match(quoted)
        if again is None:
            break
        quoted = quoted[again.end() :]
    return (read(quoted.strip()) or reply) if quoted is not text else reply
