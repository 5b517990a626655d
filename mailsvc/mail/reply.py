"""SMTP replies as values (RFC 5321 §4.2, enhanced codes RFC 2034 and 3463). Reading them off a connection: smtp/client/client."""

from __future__ import annotations

import re

import attrs

_ENHANCED = re.compile(r"([245])\.(\d{1,3})\.(\d{1,3})(?:\s|$)")


@attrs.frozen
class Reply:
    """One complete reply.

    `code` is 200–599; `enhanced` is "5.1.1" or None when the server sent none; `text` has one line per reply line,
    joined by a newline, without the codes.
    """

    code: int
    text: str
    enhanced: str | None = None

    @property
    def positive(self) -> bool:
        """2yz, or 3yz: go on."""
        return self.code < 400

    @property
    def transient(self) -> bool:
        """4yz: try again later. Unknown codes are read by their first digit (5321 §4.3.2)."""
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
    """A reply as it is written out, such as `550 5.1.1 no such user`; further lines may repeat the code. None: it is none."""
    found = _WHOLE.match(text)
    if found is None:
        return None
    code, lines = int(found[1]), found[2].splitlines() or [""]
    prefix = re.compile(rf"{code}[ -]")
    lines = [lines[0], *(prefix.sub("", line, count=1) if prefix.match(line) else line for line in lines[1:])]
    enhanced, _ = split_enhanced(code, lines[0])
    return Reply(code, "\n".join(split_enhanced(code, line)[1] for line in lines), enhanced)


def split_enhanced(code: int, text: str) -> tuple[str | None, str]:
    """The enhanced code at the start of `text`, when its class agrees with `code` (RFC 2034 §4), and the rest."""
    found = _ENHANCED.match(text)
    if found is None or int(found[1]) != code // 100:
        return None, text
    return found[0].strip(), text[found.end() :]
