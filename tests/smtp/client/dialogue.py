"""Reads and plays the dialogues of tests/conversations/client, which test the client against a scripted server.

A dialogue consists of lines:

    # a comment
    ! tls opportunistic      the client's TLS policy; `none` by default
    ! to a@x.example b@…     the recipients of a message that is delivered as soon as the client is ready
    ! body Hi.\\r\\n            the message
    ! chunking               BDAT may be used
    ! stuck                  the server reads the first slice of a message and no more
    ! whole                  the dialogue tests what arrives in one segment, so it is not played byte by byte
    S: 250 ok                what the server sends, with CRLF; `{250-more\\r\\n*1000}` repeats it a thousand times, as in S>
    S> half a line           the same without CRLF
    S! gone                  the server breaks the connection
    C: QUIT                  what the client sends next; a line that ends with … is compared up to there
    C> {x*1000}              the same without CRLF
    C! tls                   the client starts TLS, and the handshake completes
    C! gone                  the client closes the connection
    ! verdicts 250 421 -     the code for each recipient; -: none
    ! dot yes                whether the final dot was sent
    ! error GreetingRefused  why the connection did not become ready
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
from twisted.internet.error import ConnectionLost

from tests.smtp.dialogue import unescape
from tests.smtp.fake_server import FakeServer, codes

Step = tuple[str, bytes]  # "S", "C", or what somebody does


@attrs.define
class Script:
    steps: list[Step] = attrs.field(factory=list)
    directions: dict[str, str] = attrs.field(factory=dict)

    def add(self, who: str, data: bytes) -> None:
        """Data that one side sends at once is one step."""
        if self.steps and self.steps[-1][0] == who and who in "SC":
            data = self.steps.pop()[1] + data
        self.steps.append((who, data))


def read(path: Path) -> Script:
    script = Script()
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        kind, text = line[:2], line[3:]
        if kind in ("S:", "C:"):
            script.add(kind[0], unescape(text) + b"\r\n")
        elif kind in ("S>", "C>"):
            script.add(kind[0], unescape(text))
        elif kind in ("S!", "C!"):
            script.add(f"{kind} {text}", b"")
        elif line.startswith("! "):
            word, _, value = line[2:].partition(" ")
            script.directions[word] = value
        elif line and not line.startswith("#"):
            raise ValueError(f"{path.name}:{number}: {line!r}")
    return script


def play(script: Script, *, split: bool = False) -> None:
    wanted = script.directions
    server = FakeServer((1,) if split else (), tls=wanted.get("tls", "none"))
    if "stuck" in wanted:
        server.stop_reading()
    result: list[Any] | None = None
    for number, (who, data) in enumerate(script.steps):
        if who == "S":
            server.send(data)
        elif who == "S! gone":
            server.close(ConnectionLost("reset"))
        elif who == "C! tls":
            assert server.wire.secured is not None
            server.handshake()
        elif who == "C! gone":
            assert server.wire.disconnecting
        else:
            received, end = server.received(), data.find("…".encode())
            assert (received[:end] if end >= 0 else received) == (data[:end] if end >= 0 else data), f"step {number}"
        if "to" in wanted and result is None and who != "C" and server.client.usable:
            body = unescape(wanted.get("body", "x\\r\\n"))
            result = server.deliver(*wanted["to"].split(), body=body, chunking="chunking" in wanted)
    if "stuck" not in wanted:
        assert server.received() == b""
    if not server.wire.disconnecting:
        server.close()
    assert not server.clock.getDelayedCalls()
    if "verdicts" in wanted:
        assert result is not None and [str(code or "-") for code in codes(result[0])] == wanted["verdicts"].split()
    if "dot" in wanted:
        assert result is not None and result[0].sent_dot == (wanted["dot"] == "yes")
    if "error" in wanted:
        assert [type(error).__name__ for error in server.ready_result] == [wanted["error"]]
