"""The transcript of what the client said and heard: commands and replies, no message, no secret, of bounded size."""

from __future__ import annotations

import attrs

LIMIT = 32768  # characters of a transcript
_LINE = 1024  # characters kept of a line
_TAIL = 8192  # of these, how many belong to the newest lines

_Entry = tuple[float, str, str]  # seconds since the start, who, lines


@attrs.define(eq=False)
class ClientTranscript:
    """Commands are `C: `, replies `S: ` with the seconds that had passed, notes of ours `* `. Written out only when asked for."""

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

    def _add(self, seconds: float, who: str, lines: str) -> None:
        self._entries.append((seconds, who, lines))
        self._size += len(lines)
        if self._size > 4 * LIMIT:  # a talkative server does not make us keep what nobody will read
            self._entries, self._size = [(0.0, "", str(self))], LIMIT

    def __str__(self) -> str:
        lines: list[str] = []
        for seconds, who, text in self._entries:
            if len(text) > _LINE or "\n" in text:
                lines += [who + line[:_LINE] for line in text.split("\n")]
            else:  # as most are
                lines.append(who + text)
            if who == "S: ":
                lines[-1] += f"  [{seconds:.3f} s]"
        transcript = "\n".join(lines)
        return transcript if len(transcript) <= LIMIT else _shortened(lines)


def _shortened(lines: list[str]) -> str:
    """The first lines and the newest ones; how many were between them is said."""
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
