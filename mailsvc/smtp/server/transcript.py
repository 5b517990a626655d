"""The transcript of a session: commands and replies, no messages, no secrets, of bounded size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs

_LINE = 512  # bytes kept of a command
_REPLY = 1024  # bytes kept of a reply, which may have several lines
_ESCAPED = {byte: f"\\x{byte:02x}" for byte in range(256) if not 0x20 <= byte < 0x7F}  # all but printable ASCII


@attrs.define(eq=False)
class Transcript:
    """Keeps the first and the latest commands and replies, and counts those between that were left out."""

    limit: int = 500  # commands and replies that are kept, half of them from the start
    refusals: int = 0  # of all replies
    _first: list[tuple[str, bytes]] = attrs.field(factory=list)
    _latest: deque[tuple[str, bytes]] = attrs.field(init=False)
    _count: int = 0

    @_latest.default
    def _half(self) -> deque[tuple[str, bytes]]:
        return deque(maxlen=self.limit // 2)

    def client(self, line: bytes) -> None:
        self._keep("C: ", line[:_LINE])

    def server(self, reply: bytes, *, refusal: bool = False) -> None:
        self.refusals += refusal
        self._keep("S: ", reply[:_REPLY])

    def _keep(self, prefix: str, data: bytes) -> None:
        self._count += 1
        (self._first if self._count <= self.limit // 2 else self._latest).append((prefix, data))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from map(_prefixed, self._first)
        left_out = self._count - len(self._first) - len(self._latest)
        if left_out:
            yield f"   [{left_out} commands and replies left out]"
        yield from map(_prefixed, self._latest)


def _prefixed(entry: tuple[str, bytes]) -> str:
    prefix, data = entry
    text = data.removesuffix(b"\r\n").decode("latin-1")
    if text.isascii() and text.isprintable():  # nearly every entry is, and has one line
        return prefix + text
    return "\n".join([prefix + line.translate(_ESCAPED) for line in text.split("\r\n")])
