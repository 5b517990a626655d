"""What was said in a session: commands and replies, no bodies, no secrets, of bounded size."""

from __future__ import annotations

from collections import deque

import attrs

_LINE = 512  # characters kept of a line


@attrs.define(eq=False)
class Transcript:
    """The first and the newest lines of a conversation; what a long one leaves out is counted."""

    limit: int = 500  # lines, half of them from the start
    _first: list[str] = attrs.field(factory=list)
    _newest: deque[str] = attrs.field(factory=deque)
    _left_out: int = 0

    def client(self, line: bytes) -> None:
        self._add("C: ", line)

    def server(self, lines: bytes) -> None:
        for line in lines.split(b"\r\n")[:-1]:
            self._add("S: ", line)

    def note(self, text: str) -> None:
        self._keep(f"   [{text}]")

    def _add(self, who: str, line: bytes) -> None:
        text = line[:_LINE].decode("ascii", "backslashreplace")
        self._keep(who + (text if text.isprintable() else text.encode("unicode_escape").decode("ascii")))

    def _keep(self, line: str) -> None:
        if len(self._first) < self.limit // 2:
            self._first.append(line)
            return
        self._newest.append(line)
        if len(self._newest) > self.limit // 2:
            self._newest.popleft()
            self._left_out += 1

    def __str__(self) -> str:
        middle = [f"   [{self._left_out} lines left out]"] if self._left_out else []
        return "\n".join([*self._first, *middle, *self._newest])
