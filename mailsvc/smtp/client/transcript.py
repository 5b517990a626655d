"""The client's transcript: commands and replies, no messages, no secrets, of bounded size."""

from __future__ import annotations

import attrs

LIMIT = 32768  # characters of a transcript
_LINE = 1024  # characters kept of a line
_TAIL = 8192  # characters of a shortened transcript that show the latest lines

_Entry = tuple[float, str, str]  # seconds since the start, prefix, lines


@attrs.define(eq=False)
class ClientTranscript:
    """Commands begin with `C: `, replies with `S: ` (and end with the time that passed), notes with `* `. Formatted on demand."""

    started: float
    wanted: bool = True
    _entries: list[_Entry] = attrs.field(factory=list)
    _size: int = 0

    def client(self, commands: bytes) -> None:
        if self.wanted:
            text = commands.decode("utf-8", "backslashreplace")
            self._add(0.0, "C: ", text.rstrip("\r\n").replace("\r", ""))

    def server(self, lines: str, now: float) -> None:
        if self.wanted:
            self._add(now - self.started, "S: ", lines)

    def note(self, text: str) -> None:
        if self.wanted:
            self._add(0.0, "* ", text)

    def _add(self, seconds: float, prefix: str, lines: str) -> None:
        self._entries.append((seconds, prefix, lines))
        self._size += len(lines)
        if self._size > 4 * LIMIT:  # bounds the memory even with a server that never stops sending
            self._entries, self._size = [(0.0, "", str(self))], LIMIT

    def __str__(self) -> str:
        lines: list[str] = []
        for seconds, prefix, text in self._entries:
            if len(text) > _LINE or "\n" in text:
                lines += [prefix + line[:_LINE] for line in text.split("\n")]
            else:  # nearly every line
                lines.append(prefix + text)
            if prefix == "S: ":
                lines[-1] += f"  [{seconds:.3f} s]"
        transcript = "\n".join(lines)
        return transcript if len(transcript) <= LIMIT else _shortened(lines)


def _shortened(lines: list[str]) -> str:
    """The first and the latest lines, and how many were left out between them."""
    head, tail = 0, len(lines)
    room = LIMIT - _TAIL
    while room >= len(lines[head]) + 1:
        room -= len(lines[head]) + 1
        head += 1
    room = _TAIL - 64
    while room >= len(lines[tail - 1]) + 1:
        room -= len(lines[tail - 1]) + 1
        tail -= 1
    return "\n".join([*lines[:head], f"* {tail - head} lines left out", *lines[tail:]])
