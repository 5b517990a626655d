"""What was said in a session: commands and replies, no bodies, no secrets, of bounded size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs

_LINE = 512  # octets kept of a line
_REPLY = 1024  # octets kept of a reply, which may have several


@attrs.define(eq=False)
class Transcript:
    """The first and the newest of what was said; what a long conversation leaves out is counted."""

    limit: int = 500  # commands and replies, half of them from the start
    refusals: int = 0  # among all replies
    _first: list[tuple[str, bytes]] = attrs.field(factory=list)
    _newest: deque[tuple[str, bytes]] = attrs.field(factory=deque)
    _left_out: int = 0

    def client(self, line: bytes) -> None:
        self._keep("C: ", line[:_LINE])

    def server(self, reply: bytes, *, refusal: bool = False) -> None:
        self.refusals += refusal
        self._keep("S: ", reply[:_REPLY])

    def _keep(self, who: str, said: bytes) -> None:
        half = self.limit // 2
        if len(self._first) < half:
            self._first.append((who, said))
            return
        self._newest.append((who, said))
        if len(self._newest) > half:
            self._newest.popleft()
            self._left_out += 1

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from map(_shown, self._first)
        if self._left_out:
            yield f"   [{self._left_out} commands and replies left out]"
        yield from map(_shown, self._newest)


def _shown(said: tuple[str, bytes]) -> str:
    who, octets = said
    return "\n".join(who + _printable(line) for line in octets.removesuffix(b"\r\n").split(b"\r\n"))


def _printable(line: bytes) -> str:
    """ASCII that breaks no line: other octets are written as \\x.."""
    text = line.decode("latin-1")
    if text.isascii() and text.isprintable():  # as nearly every line is
        return text
    return "".join(chr(octet) if 0x20 <= octet < 0x7F else f"\\x{octet:02x}" for octet in line)
