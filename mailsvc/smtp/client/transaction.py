"""One mail transaction as replies see it: which commands are next, whose reply came, what became of each recipient.

No transport, no clock, no message: client.Courier writes what this says and hands in the replies.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import attrs

from mailsvc.mail.reply import Reply
from mailsvc.smtp.client.plan import Plan

Stage = Literal["mail", "rcpt", "data", "dot", "ours"]

# Octets of commands that may be on their way without a reply: less than any TCP window, so that neither side can wait
# for the other to read (2920 §3.1).
GROUP = 16384

# What a server says to BDAT when it offers CHUNKING without knowing it. Were it a verdict on the message, DATA gets the same one.
_UNKNOWN = (500, 501, 502, 503, 504)
_TAKEN_ANYWAY = "recipients were taken after MAIL had been refused"


@attrs.frozen
class Result:
    """What became of one message on one connection.

    A recipient's verdict is the reply that decided it, and `stages` says what it was a reply to ("ours": the server was not
    asked). None is no verdict: `lost` says why. `sent_dot` with neither verdict nor `final` is RFC 1047's case: the server
    may have the message.
    """

    sender: Reply | None  # to MAIL
    recipients: tuple[Reply | None, ...]
    stages: tuple[Stage | None, ...]
    final: Reply | None  # to the message: after the dot, or before it when the server broke in
    sent_dot: bool
    lost: str | None
    stale: bool = False  # nothing was tried: a connection used before was over, or BDAT is not known where it is offered
    unchunked: bool = False  # BDAT was not known, or got no answer: this host had better be given DATA
    transcript: str = ""


class Step(Enum):
    WAIT = "more replies are under way"
    SEND = "write the next commands"
    BODY = "write the message"
    EMPTY = "write a lone dot: the server wants a message and nobody is there to get it"
    DONE = "over; the connection is good for another"
    STOP = "over; the connection is not to be used again"


class Transaction:
    """Hand in every reply by `take`; do what it says.

    `chunked`: the message goes behind BDAT, which is the last of the plan's commands, and the reply to that is the one to the
    message. `prompt`: BDAT does not wait for the replies to MAIL and RCPT.
    """

    def __init__(
        self, plan: Plan, recipients: int, *, pipelining: bool, reset: bool, reused: bool, chunked: bool = False, prompt: bool = False
    ) -> None:
        self._commands = (b"RSET\r\n", *plan.commands) if reset else plan.commands
        self._mail_at = 1 if reset else 0
        self._tried = plan.tried
        self._pipelining = pipelining
        self.chunked = chunked
        self._together = len(self._commands) - (chunked and not prompt)  # commands that may go in one group
        self._reused = reused
        self._written = 0
        self._answered = 0
        self._accepted: list[int] = []
        self._repeated = False  # a second 354 has been passed over
        self._verdicts: list[Reply | None] = [None] * recipients
        self._stages: list[Stage | None] = [None] * recipients
        for number, reply in plan.refused.items():
            self._decide(number, reply, "ours")
        self.sender: Reply | None = None
        self._welcome = False  # it took MAIL
        self.final: Reply | None = None
        self.sent_dot = False
        self.lost: str | None = None
        self._closing = False  # 421 came
        self._stranger = False  # it does not know the BDAT that it offers, and has no message because of it

    # What to write

    def next_commands(self) -> bytes:
        """All that may go out in one write: one command, or a group when the server pipelines (2920)."""
        start = self._written
        self._written += 1
        if self._pipelining:
            size = len(self._commands[start])
            while self._written < self._together and size + len(self._commands[self._written]) <= GROUP:
                size += len(self._commands[self._written])
                self._written += 1
        return b"".join(self._commands[start : self._written])

    @property
    def message_next(self) -> bool:
        """Whether what is written next is the message, behind the BDAT that was the last command."""
        return self.chunked and self._written == len(self._commands)

    @property
    def stage(self) -> Stage:
        """What the next reply answers; RSET counts as MAIL."""
        return self._stage_of(self._answered)

    # What came back

    def take(self, reply: Reply) -> Step:
        """The reply to the oldest command without one."""
        number, self._answered = self._answered, self._answered + 1
        if self.chunked and number == len(self._commands) - 1:
            return self.early(reply) if reply.positive and not self.sent_dot else self._chunk(reply)
        if reply.code == 421:  # 5321 §3.8: whatever it was a reply to, the server is leaving
            return self._leave(reply, self._stage_of(number))
        if number < self._mail_at:
            return self._next() if reply.code < 300 else self._broken(f"RSET was refused: {reply}")
        if number == len(self._commands) - 1:
            return self._data(reply)
        if 300 <= reply.code < 400:
            return self._broken(f"a reply that asks for more, to {self._stage_of(number).upper()}: {reply}")
        if number > self._mail_at:
            self._recipient(self._tried[number - self._mail_at - 1], reply)
        elif reply.code == 503 and self._reused:  # what it refuses is the order of commands, hence its memory of the last mail
            self.sent_dot = False  # whatever was behind it belongs to no mail
            return self._broken(f"MAIL after another mail was refused: {reply}")
        else:
            self.sender, self._welcome = reply, reply.positive
        return self._next()

    def early(self, reply: Reply) -> Step:
        """A reply before all of the message was sent: it may refuse the message, but it cannot accept it."""
        if self.chunked and reply.code in _UNKNOWN:
            return self._unknown(reply)
        if self._again(reply):
            return Step.WAIT
        self.sent_dot = False
        if reply.positive:
            return self._broken(f"a reply to the message before its end: {reply}")
        self.final = reply
        return self._leave(reply, "data")

    def ahead(self, reply: Reply) -> Step:
        """A reply that had arrived before the next command was written. It answers nothing, except that 421 ends the session."""
        if reply.code == 421:
            return self._leave(reply, self.stage)
        return self._broken(f"the server replied before it was asked: {reply}")

    def cut_short(self, reply: Reply, reason: str) -> None:
        """The session ended within a reply, for `reason`. A refusal counts by its first line, and so does the reply to the message."""
        if self._answered < self._written:
            if reply.code >= 400 or (self.stage == "dot" and self.sent_dot):
                self.take(reply)
        elif self.sent_dot:
            self.take_final(reply)
        elif reply.code >= 400:
            self.early(reply)
        self.lose(reason)

    def lose(self, reason: str) -> None:
        """The session has ended. What was refused before that stays refused."""
        if self.lost is None:
            self._broken(reason)

    def take_final(self, reply: Reply) -> Step:
        """The reply to the message: to the final dot, or to BDAT."""
        if self._again(reply):
            return Step.WAIT
        if 300 <= reply.code < 400:
            return self._broken(f"a reply that asks for more, after the message: {reply}")
        self.final = reply
        if reply.code == 421:
            return self._leave(reply, "dot")
        for number in self._accepted:
            self._decide(number, reply, "dot")
        return Step.DONE

    def take_void(self, reply: Reply) -> Step:
        """The reply to a lone dot."""
        return Step.STOP if reply.code == 421 or 300 <= reply.code < 400 else Step.DONE

    def refuse(self, reply: Reply) -> None:
        """Our own verdict for everyone who has none."""
        self._decide_open(reply, "ours")

    # What became of it

    @property
    def needs_reset(self) -> bool:
        """Whether the server may still remember this transaction; or what it read a refused chunk for."""
        if self.sender is None or (self.final is not None and self.final.positive):
            return False
        return self._welcome or self.sent_dot

    def result(self, transcript: str) -> Result:
        failed = self._closing or (self.lost is not None and self.sender is None)
        silent = self.sent_dot and self.final is None and self.lost is not None
        unheard = self.sent_dot and not self._answered  # the message went out with its MAIL, and nothing is known of either
        return Result(
            sender=self.sender,
            recipients=tuple(self._verdicts),
            stages=tuple(self._stages),
            final=self.final,
            sent_dot=self.sent_dot,
            lost=self.lost,
            stale=(self._stranger and None in self._verdicts) or (self._reused and failed and not self._welcome and not unheard),
            unchunked=self.chunked and (self._stranger or silent),
            transcript=transcript,
        )

    # Inside

    def _next(self) -> Step:
        if self._answered < self._written:
            return Step.WAIT
        if self.sender is not None and not self._welcome:
            return self._without_message()
        if self._answered == len(self._commands) - 1 and not self._accepted:
            return self._without_message()
        return Step.SEND

    def _data(self, reply: Reply) -> Step:
        if reply.code >= 400:
            self._refused_data(reply)
            return self._without_message()
        if reply.code < 300:
            return self._broken(f"a reply that asks for no message, to DATA: {reply}")
        if self._welcome and self._accepted:
            return Step.BODY
        if not self._accepted:
            self._sender_verdict()
            return Step.EMPTY  # 2920 §3.1
        return self._broken(_TAKEN_ANYWAY)

    def _chunk(self, reply: Reply) -> Step:
        """The reply to BDAT, whoever is there to get the message."""
        welcome = self._welcome and self._accepted
        if reply.code in _UNKNOWN and (welcome or reply.code != 503):
            return self._unknown(reply)
        if welcome:
            return self.take_final(reply)
        if reply.code == 421:
            return self._leave(reply, "dot")
        if 300 <= reply.code < 400:
            return self._broken(f"a reply that asks for more, to BDAT: {reply}")
        if reply.positive and self._accepted:
            return self._broken(_TAKEN_ANYWAY)
        return self._without_message()

    def _unknown(self, reply: Reply) -> Step:
        """It may be reading the message for commands, so that nothing it says from now on means anything."""
        self.sent_dot = False
        self._sender_verdict()
        self._stranger = True
        return self._broken(f"the server offers CHUNKING and refused BDAT: {reply}")

    def _refused_data(self, reply: Reply) -> None:
        if self._welcome:
            for number in self._accepted:
                self._decide(number, reply, "data")

    def _without_message(self) -> Step:
        self._sender_verdict()
        return Step.DONE

    def _sender_verdict(self) -> None:
        """A refused MAIL is everyone's verdict, whatever the RCPTs behind it got."""
        if self.sender is None or self._welcome:
            return
        for number in self._tried:
            self._decide(number, self.sender, "mail")

    def _recipient(self, number: int, reply: Reply) -> None:
        if reply.positive:
            self._accepted.append(number)
        else:
            self._decide(number, reply, "rcpt")

    def _again(self, reply: Reply) -> bool:
        """One 354 too many is harmless: no server can mean the message's fate by it."""
        if reply.code != 354 or self._repeated:
            return False
        self._repeated = True
        return True

    def _leave(self, reply: Reply, stage: Stage) -> Step:
        self._closing = reply.code == 421
        if self.sender is None and stage == "mail":
            self.sender = reply
        self._sender_verdict()
        self._decide_open(reply, stage)
        return Step.STOP

    def _broken(self, reason: str) -> Step:
        self.lost = reason
        self._sender_verdict()
        return Step.STOP

    def _stage_of(self, number: int) -> Stage:
        if number <= self._mail_at:
            return "mail"
        if number < len(self._commands) - 1:
            return "rcpt"
        return "dot" if self.chunked else "data"

    def _decide_open(self, reply: Reply, stage: Stage) -> None:
        for number, verdict in enumerate(self._verdicts):
            if verdict is None:
                self._decide(number, reply, stage)

    def _decide(self, number: int, reply: Reply, stage: Stage) -> None:
        self._verdicts[number] = reply
        self._stages[number] = stage
