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
    _newest: deque[tuple[str, bytes]] = attrs.field(init=False)
    _said: int = 0

    @_newest.default
    def _as_many(self) -> deque[tuple[str, bytes]]:
        return deque(maxlen=self.limit // 2)

    def client(self, line: bytes) -> None:
        self._keep("C: ", line[:_LINE])

    def server(self, reply: bytes, *, refusal: bool = False) -> None:
        self.refusals += refusal
        self._keep("S: ", reply[:_REPLY])

    def _keep(self, who: str, said: bytes) -> None:
        self._said += 1
        (self._first if self._said <= self.limit // 2 else self._newest).append((who, said))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from map(_shown, self._first)
        left_out = self._said - len(self._first) - len(self._newest)
        if left_out:
            yield f"   [{left_out} commands and replies left out]"
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
