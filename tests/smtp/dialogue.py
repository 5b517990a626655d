"""Reads and plays the dialogues of tests/conversations.

A dialogue is lines:

    # a remark
    ! door submission        which port (DOORS), first thing; `! slow` makes every decision take a second
    C: EHLO me               what the client sends, with CRLF
    C> half a line           the same without CRLF; \\r \\n \\0 \\xff \\\\ are octets, in both
    C: {a*2000}              2,000 times the letter
    S: 250 OK                what the server says; a line that ends with … is compared up to there
    S: (closed)              the server has closed
    ! mails 1                what was accepted, counted at the end; `! body Subject…` is the whole body of the last

Lines of the client that follow one another are sent in one segment; then exactly the S lines that follow are expected.
"""

from __future__ import annotations

import re
from pathlib import Path

import attrs

from mailsvc.smtp.session import Door, Limits
from tests.smtp.harness import Call

FOLDER = Path(__file__).parent.parent / "conversations"
RELAY = FOLDER / "relay"
_CALM = Limits(stranger_octets=None, tarpit=0)
DOORS = {
    "open": Door("mx.test", _CALM, object(), login_offered=True),  # port 25
    "submission": Door("mx.test", Limits(tarpit=0), object(), tls_required=True, login_offered=True, login_required=True),
    "small": Door("mx.test", Limits(size=1000, recipients=3, mails=2, errors=5, chatter=10, stranger_octets=None, tarpit=0)),
}
_REPEAT = re.compile(rb"\{(.+?)\*(\d+)\}", re.DOTALL)


@attrs.define
class Turn:
    """What the client sends, then what the server says to it."""

    sent: bytes = b""
    expected: list[str] = attrs.field(factory=list)
    line: int = 0


@attrs.define
class Dialogue:
    door: str = "open"
    slow: bool = False
    turns: list[Turn] = attrs.field(factory=lambda: [Turn()])
    mails: int | None = None
    body: bytes | None = None


def everything() -> list[Path]:
    """All dialogues but those of the relay, which need more than a door (tests/relay)."""
    return sorted(path for path in FOLDER.rglob("*.txt") if path.parent != RELAY)


def octets(text: str) -> bytes:
    raw = text.encode("utf-8").decode("latin-1")
    unescaped = re.sub(r"\\(r|n|t|0|\\|x[0-9a-f]{2})", lambda found: _ESCAPES.get(found[1]) or chr(int(found[1][1:], 16)), raw)
    return _REPEAT.sub(lambda found: found[1] * int(found[2]), unescaped.encode("latin-1"))


_ESCAPES = {"r": "\r", "n": "\n", "t": "\t", "0": "\0", "\\": "\\"}


def read(path: Path) -> Dialogue:
    dialogue = Dialogue()
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        kind, text = line[:3], line[3:]
        if kind in ("C: ", "C> "):
            if dialogue.turns[-1].expected:
                dialogue.turns.append(Turn(line=number))
            dialogue.turns[-1].sent += octets(text) + (b"\r\n" if kind == "C: " else b"")
        elif kind == "S: ":
            dialogue.turns[-1].expected.append(text)
        elif line.startswith("! "):
            _direct(dialogue, line[2:])
        elif line and not line.startswith("#"):
            raise ValueError(f"{path.name}:{number}: {line!r}")
    return dialogue


def _direct(dialogue: Dialogue, text: str) -> None:
    word, _, value = text.partition(" ")
    match word:
        case "door":
            dialogue.door = value
        case "slow":
            dialogue.slow = True
        case "mails":
            dialogue.mails = int(value)
        case "body":
            dialogue.body = octets(value)
        case _:
            raise ValueError(f"no such direction: {text}")


def play(dialogue: Dialogue, *, split: bool = False) -> None:
    call = Call(DOORS[dialogue.door], slow=dialogue.slow)
    converse(dialogue, call, split=split)
    recorder = call.recorder
    assert recorder is not None
    assert recorder.dropped_times == 1
    assert not call.clock.getDelayedCalls(), "a timer is left"
    assert recorder.sinks == len(recorder.mails) + recorder.drops + recorder.calls.count("finish") - len(recorder.mails)
    if dialogue.mails is not None:
        assert len(recorder.mails) == dialogue.mails
    if dialogue.body is not None:
        assert recorder.mails[-1].body == dialogue.body


def converse(dialogue: Dialogue, call: Call, *, split: bool = False) -> None:
    """Say and hear all of it, then hang up."""
    for turn in dialogue.turns:
        call.say(turn.sent, split=split)
        heard = call.heard().decode("ascii").split("\r\n")
        assert heard.pop() == "", f"half a line after line {turn.line}"
        if call.closed:
            heard.append("(closed)")
        expected = [
            said if wanted.endswith("…") and said.startswith(wanted[:-1]) else wanted
            for wanted, said in zip(turn.expected, heard + [""] * len(turn.expected), strict=False)
        ]
        assert heard == expected, f"after line {turn.line}"
    call.hang_up()
