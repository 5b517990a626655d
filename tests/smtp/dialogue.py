"""Reads and plays the dialogues of tests/conversations.

A dialogue consists of lines:

    # a comment
    ! listener submission        which port (LISTENERS), first thing; `! slow` makes every decision take a second
    C: EHLO me               what the client sends, with CRLF
    C> half a line           the same without CRLF; \\r \\n \\0 \\xff \\\\ are bytes, in both
    C: {a*2000}              2,000 times the letter
    S: 250 OK                what the server replies; a line that ends with … is compared up to there
    S: {250 OK*1000}         a thousand such lines
    S: {EHLO STARTTLS}       the reply to EHLO: the keywords that every listener announces (EHLO, below), then these
    S: (closed)              the server has closed the connection
    W: 10                    10 seconds pass
    C! gone                  the client closes the connection; `half`: it sends nothing more but still reads
    ! mails 1                the number of accepted mails, checked at the end; `! body Subject…` is the whole body of the last one
    ! from 10.1.2.3          the client's address (relay dialogues only)
    ! whole                  the dialogue tests what arrives in one segment, so it is not played byte by byte
    ! clear                  after the 220 to STARTTLS the client continues in clear text (only over real connections)

Consecutive lines of the client are sent in one segment; then exactly the S lines that follow are expected.
"""

from __future__ import annotations

import re
from pathlib import Path

import attrs

from mailsvc.smtp.server.session import Limits, Listener
from tests.smtp.harness import Client

FOLDER = Path(__file__).parent.parent / "conversations"
RELAY, CLIENT = FOLDER / "relay", FOLDER / "client"
_CALM = Limits(unauthenticated_bytes=None, tarpit=0)
LISTENERS = {
    "open": Listener("mx.test", _CALM, object(), login_offered=True),  # port 25
    "submission": Listener("mx.test", Limits(tarpit=0), object(), tls_required=True, login_offered=True, login_required=True),
    "small": Listener(
        "mx.test", Limits(size=1000, recipients=3, mails=2, errors=5, non_mail_commands=10, unauthenticated_bytes=None, tarpit=0)
    ),
}
# What each EHLO reply of a dialogue begins with: the server's name, and the keywords that do not depend on TLS.
EHLO = (
    *("mx.test", "SIZE 41943040", "PIPELINING", "8BITMIME", "SMTPUTF8", "CHUNKING", "DSN", "ENHANCEDSTATUSCODES"),
    "LIMITS RCPTMAX=1000",
)
_REPEAT = re.compile(rb"\{(.+?)\*(\d+)\}", re.DOTALL)


@attrs.define
class Turn:
    """What the client sends, then what the server says to it."""

    sent: bytes = b""
    expected: list[str] = attrs.field(factory=list)
    line: int = 0
    waits: float = 0.0  # before it
    leaves: str = ""  # after it: "gone" or "half"


@attrs.define
class Dialogue:
    listener: str = "open"
    slow: bool = False
    whole: bool = False
    clear: bool = False
    host: str = "192.0.2.1"
    turns: list[Turn] = attrs.field(factory=lambda: [Turn()])
    mails: int | None = None
    body: bytes | None = None

    @property
    def plain(self) -> bool:
        """Nothing but what one says and the other answers."""
        return not (self.slow or self.whole or self.clear or any(turn.waits or turn.leaves for turn in self.turns))


def everything() -> list[Path]:
    """All dialogues with our server but those of the relay, which need more than a listener (tests/relay)."""
    return sorted(path for path in FOLDER.rglob("*.txt") if path.parent not in (RELAY, CLIENT))


def unescape(text: str) -> bytes:
    raw = text.encode("utf-8").decode("latin-1")
    unescaped = re.sub(r"\\(r|n|t|0|\\|x[0-9a-f]{2})", lambda found: _ESCAPES.get(found[1]) or chr(int(found[1][1:], 16)), raw)
    return _REPEAT.sub(lambda found: found[1] * int(found[2]), unescaped.encode("latin-1"))


def replies(text: str) -> list[str]:
    """The lines that one S line of a dialogue expects."""
    if ehlo := re.fullmatch(r"\{EHLO (.+)\}", text):
        return [*(f"250-{line}" for line in EHLO), f"250 {ehlo[1]}"]
    repeated = re.fullmatch(r"\{(.+)\*(\d+)\}", text)
    return [text] if repeated is None else [repeated[1]] * int(repeated[2])


_ESCAPES = {"r": "\r", "n": "\n", "t": "\t", "0": "\0", "\\": "\\"}


def read(path: Path) -> Dialogue:
    dialogue = Dialogue()
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        kind, text = line[:3], line[3:]
        if kind in ("C: ", "C> "):
            if dialogue.turns[-1].expected:
                dialogue.turns.append(Turn(line=number))
            dialogue.turns[-1].sent += unescape(text) + (b"\r\n" if kind == "C: " else b"")
        elif kind == "S: ":
            dialogue.turns[-1].expected += replies(text)
        elif kind in ("W: ", "C! "):
            turn = dialogue.turns[-1]
            if kind == "C! " and not turn.expected:
                turn.leaves = text
            elif kind == "C! ":
                dialogue.turns.append(Turn(line=number, leaves=text))
            else:
                dialogue.turns.append(Turn(line=number, waits=float(text)))
        elif line.startswith("! "):
            _direct(dialogue, line[2:])
        elif line and not line.startswith("#"):
            raise ValueError(f"{path.name}:{number}: {line!r}")
    return dialogue


def _direct(dialogue: Dialogue, text: str) -> None:
    word, _, value = text.partition(" ")
    match word:
        case "listener":
            dialogue.listener = value
        case "slow":
            dialogue.slow = True
        case "whole":
            dialogue.whole = True
        case "clear":
            dialogue.clear = True
        case "from":
            dialogue.host = value
        case "mails":
            dialogue.mails = int(value)
        case "body":
            dialogue.body = unescape(value)
        case _:
            raise ValueError(f"no such direction: {text}")


def play(dialogue: Dialogue, *, split: bool = False) -> None:
    client = Client(LISTENERS[dialogue.listener], slow=dialogue.slow)
    converse(dialogue, client, split=split)
    recorder = client.recorder
    assert recorder is not None
    assert recorder.closed_times == 1
    assert not client.clock.getDelayedCalls(), "a timer is left"
    assert recorder.sinks == len(recorder.mails) + recorder.discards + recorder.calls.count("finish") - len(recorder.mails)
    if dialogue.mails is not None:
        assert len(recorder.mails) == dialogue.mails
    if dialogue.body is not None:
        assert recorder.mails[-1].body == dialogue.body


def converse(dialogue: Dialogue, client: Client, *, split: bool = False) -> None:
    """Sends all of it, compares the replies, and disconnects."""
    for turn in dialogue.turns:
        client.clock.advance(turn.waits)
        if turn.leaves == "gone":
            client.protocol.dataReceived(turn.sent)
            client.disconnect()
            client.settle()
            break
        client.send(turn.sent, split=split)
        if turn.leaves == "half":
            client.protocol.readConnectionLost()
        received = client.received().decode("ascii").split("\r\n")
        assert received.pop() == "", f"half a line after line {turn.line}"
        if client.closed:
            received.append("(closed)")
        expected = [
            line if wanted.endswith("…") and line.startswith(wanted[:-1]) else wanted
            for wanted, line in zip(turn.expected, received + [""] * len(turn.expected), strict=False)
        ]
        assert received == expected, f"after line {turn.line}"
    client.disconnect()
