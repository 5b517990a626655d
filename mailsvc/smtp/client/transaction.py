"""The state machine of one mail transaction: which commands are next, which one a reply answers, and the outcome for each recipient.

No transport, no clock, no message: SmtpClient (client) writes the commands and passes on the replies.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import attrs

from mailsvc.mail.reply import Reply
from mailsvc.smtp.client.plan import Plan

Stage = Literal["mail", "rcpt", "data", "dot", "ours"]

# Bytes of commands in one write: less than any TCP window, so that the two sides never wait for each other to read (2920 §3.1).
GROUP = 16384

# Replies to BDAT of servers that announce CHUNKING without supporting it. If such a reply is about the message, DATA will get it too.
_UNKNOWN = (500, 501, 502, 503, 504)
# Replies to MAIL and RCPT that may be about their parameters, also of a server that announces them (5321 §4.1.1.11).
_PARAMETERS = (501, 504, 555)
_ACCEPTED_ANYWAY = "the server refused MAIL but accepted recipients"


@attrs.frozen
class Result:
    """The outcome of one message on one connection.

    A recipient's verdict is the reply that decided it, and `stages` says which command that reply answered ("ours": nothing was sent).
    If the verdict is None, `lost` says why. `sent_dot` with neither verdicts nor `final` is the case of RFC 1047: the server may have
    the message.
    """

    sender: Reply | None  # to MAIL
    recipients: tuple[Reply | None, ...]
    stages: tuple[Stage | None, ...]
    final: Reply | None  # to the message: after its end, or before it if the server interrupted
    sent_dot: bool
    lost: str | None
    stale: bool = False  # nothing was attempted: a reused connection ended before any recipient, or announced BDAT is not supported
    unchunked: bool = False  # BDAT is not supported or got no reply: use DATA with this host
    unpipelined: bool = False  # the server replied in time only to the first of several commands that were sent together
    parameters_refused: bool = False  # nobody was accepted, perhaps because of parameters of MAIL or RCPT that can be left out
    cut_after: int | None = None  # the session ended after so many replies to RCPT, before all recipients had one
    transcript: str = ""


class Step(Enum):
    WAIT = "wait for more replies"
    SEND = "write the next commands"
    BODY = "write the message"
    EMPTY = "write a single dot: the server expects a message, but no recipient was accepted"
    DONE = "finished; the connection can be reused"
    STOP = "finished; the connection must not be reused"


class Transaction:
    """Pass every reply to `on_reply`, and do what it returns.

    `chunked`: the message follows BDAT, the last command of the plan, and the reply to BDAT is the reply to the message. `at_once`: BDAT
    does not wait for the replies to MAIL and RCPT.
    """

    def __init__(
        self, plan: Plan, recipients: int, *, pipelining: bool, reset: bool, reused: bool, chunked: bool = False, at_once: bool = False
    ) -> None:
        self._commands = (b"RSET\r\n", *plan.commands) if reset else plan.commands
        self._mail_at = 1 if reset else 0
        self._tried = plan.tried
        self._pipelining = pipelining
        self.chunked = chunked
        self._group_end = len(self._commands) - (chunked and not at_once)  # commands that may be sent in one group
        self._reused = reused
        self._group_start = self._written = 0
        self._answered = 0
        self._accepted: list[int] = []
        self._replied = 0  # recipients that were accepted or refused
        self._extra_354 = False  # a second 354 was ignored
        self._verdicts: list[Reply | None] = [None] * recipients
        self._stages: list[Stage | None] = [None] * recipients
        for number, reply in plan.refused.items():
            self._decide(number, reply, "ours")
        self.sender: Reply | None = None
        self._sender_accepted = False
        self.final: Reply | None = None
        self.sent_dot = False
        self.lost: str | None = None
        self.timed_out = False  # waiting for the reply to a command; set by the client
        self._closing = False  # the server replied 421
        self._bdat_unknown = False  # the server announces BDAT without supporting it, so it does not have the message

    # What to write

    def next_commands(self) -> bytes:
        """The commands to write at once: one, or a group if the server supports PIPELINING (2920)."""
        start = self._group_start = self._written
        self._written += 1
        if self._pipelining:
            size = len(self._commands[start])
            while self._written < self._group_end and size + len(self._commands[self._written]) <= GROUP:
                size += len(self._commands[self._written])
                self._written += 1
        return b"".join(self._commands[start : self._written])

    @property
    def message_next(self) -> bool:
        """Whether the message is to be written next, after BDAT."""
        return self.chunked and self._written == len(self._commands)

    @property
    def stage(self) -> Stage:
        """The command that the next reply answers; RSET counts as MAIL."""
        return self._stage_of(self._answered)

    @property
    def unanswered(self) -> bool:
        """Whether the connection was used before and has not replied since: its server may be gone."""
        return self._reused and self._answered == 0

    # Replies

    def on_reply(self, reply: Reply) -> Step:
        """The reply to the oldest command that has none."""
        number, self._answered = self._answered, self._answered + 1
        if self.chunked and number >= len(self._commands) - 1:  # more: what follows an extra 354 answers BDAT too
            return self.on_early_reply(reply) if reply.positive and not self.sent_dot else self._bdat_reply(reply)
        if reply.code == 421:  # 5321 §3.8: the server closes the connection, whichever command this answers
            return self._server_leaves(reply, self._stage_of(number))
        if number < self._mail_at:
            return self._next() if reply.code < 300 else self._broken(f"RSET was refused: {reply}")
        if number == len(self._commands) - 1:
            return self._data_reply(reply)
        if 300 <= reply.code < 400:
            return self._broken(f"unexpected intermediate reply to {self._stage_of(number).upper()}: {reply}")
        if number > self._mail_at:
            self._rcpt_reply(self._tried[number - self._mail_at - 1], reply)
        elif reply.code == 503 and self._reused:  # bad sequence: the server still remembers the previous transaction
            self.sent_dot = False  # what followed belongs to no mail
            return self._broken(f"MAIL after a previous mail was refused: {reply}")
        else:
            self.sender, self._sender_accepted = reply, reply.positive
        return self._next()

    def on_early_reply(self, reply: Reply) -> Step:
        """A reply before the end of the message was sent. It may refuse the message but cannot accept it."""
        if self.chunked and reply.code in _UNKNOWN:
            return self._refused_as_unknown(reply)
        if self._is_extra_354(reply):
            return Step.WAIT
        self.sent_dot = False
        if reply.positive:
            return self._broken(f"the server accepted the message before its end: {reply}")
        self.final = reply
        return self._server_leaves(reply, "data")

    def on_unasked_reply(self, reply: Reply) -> Step:
        """A reply that arrived before the next command was written. Only 421 has a meaning."""
        if reply.code == 421:
            return self._server_leaves(reply, self.stage)
        return self._broken(f"the server replied before the command was sent: {reply}")

    def cut_short(self, reply: Reply, reason: str) -> None:
        """The session ended in the middle of a reply. The first line is enough for a refusal, and for the reply to the message."""
        if self._answered < self._written:
            if reply.code >= 400 or (self.stage == "dot" and self.sent_dot):
                self.on_reply(reply)
        elif self.sent_dot:
            self.on_final_reply(reply)
        elif reply.code >= 400:
            self.on_early_reply(reply)
        self.break_off(reason)

    def break_off(self, reason: str) -> None:
        """The session has ended. Recipients that were refused before stay refused."""
        if self.lost is None:
            self._broken(reason)

    def on_final_reply(self, reply: Reply) -> Step:
        """The reply to the message, after the final dot or BDAT."""
        if self._is_extra_354(reply):
            return Step.WAIT
        if 300 <= reply.code < 400:
            return self._broken(f"unexpected intermediate reply to the message: {reply}")
        self.final = reply
        if reply.code == 421:
            return self._server_leaves(reply, "dot")
        for number in self._accepted:
            self._decide(number, reply, "dot")
        return Step.DONE

    def on_empty_reply(self, reply: Reply) -> Step:
        """The reply to a message that consists of a single dot."""
        return Step.STOP if reply.code == 421 or 300 <= reply.code < 400 else Step.DONE

    def refuse(self, reply: Reply) -> None:
        """Set this verdict, which is not the server's, for all recipients that have none."""
        self._decide_open(reply, "ours")

    # The outcome

    @property
    def needs_reset(self) -> bool:
        """Whether the server may still be in this transaction, or may have taken a refused chunk for commands."""
        if self.sender is None or (self.final is not None and self.final.positive):
            return False
        return self._sender_accepted or self.sent_dot

    def result(self, transcript: str) -> Result:
        lost = self.lost is not None
        began = self._replied > 0 or (self.sent_dot and not self._closing)  # for some recipient
        failed = self._closing or (lost and (self.sender is None or (self._sender_accepted and not began)))
        no_final_reply = self.sent_dot and self.final is None and lost
        silent = lost and self.sender is None and self._pipelining and not self.sent_dot  # the replies to a group may be lost together
        cut = (silent or ((self._closing or lost) and self._sender_accepted)) and self._replied < len(self._tried)
        no_reply = self.sent_dot and not self._answered  # MAIL and the message were sent together
        stale_connection = self._reused and failed and not (self._sender_accepted and began) and not no_reply
        return Result(
            sender=self.sender,
            recipients=tuple(self._verdicts),
            stages=tuple(self._stages),
            final=self.final,
            sent_dot=self.sent_dot,
            lost=self.lost,
            stale=(self._bdat_unknown and None in self._verdicts) or stale_connection,
            unpipelined=self.timed_out and self._group_start < self._answered < self._written and self.stage != "dot",
            unchunked=self.chunked and (self._bdat_unknown or no_final_reply),
            parameters_refused=self._parameters_refused(),
            cut_after=self._replied if cut else None,
            transcript=transcript,
        )

    # Internals

    def _parameters_refused(self) -> bool:
        """Whether MAIL, or RCPT for every recipient, may have been refused because of parameters that can be left out."""
        if self.sender is None or (self._sender_accepted and self._accepted) or b" SMTPUTF8" in self._commands[self._mail_at]:
            return False
        if not self.sender.positive:
            return _may_be_about_parameters(self.sender, self._commands[self._mail_at])
        replies = [self._verdicts[number] for number in self._tried]
        return all(map(_may_be_about_parameters, replies, self._commands[self._mail_at + 1 :]))

    def _next(self) -> Step:
        if self._answered < self._written:
            return Step.WAIT
        if self.sender is not None and not self._sender_accepted:
            return self._without_message()
        if self._answered == len(self._commands) - 1 and not self._accepted:
            return self._without_message()
        return Step.SEND

    def _data_reply(self, reply: Reply) -> Step:
        if reply.code >= 400:
            self._refused_data(reply)
            return self._without_message()
        if reply.code < 300:
            return self._broken(f"unexpected positive reply to DATA: {reply}")
        if self._sender_accepted and self._accepted:
            return Step.BODY
        if not self._accepted:
            self._sender_verdict()
            return Step.EMPTY  # 2920 §3.1
        return self._broken(_ACCEPTED_ANYWAY)

    def _bdat_reply(self, reply: Reply) -> Step:
        """The reply to BDAT, whether or not any recipient was accepted."""
        accepted = self._sender_accepted and self._accepted
        if reply.code in _UNKNOWN and (accepted or reply.code != 503):
            return self._refused_as_unknown(reply)
        if accepted:
            return self.on_final_reply(reply)
        if reply.code == 421:
            return self._server_leaves(reply, "dot")
        if 300 <= reply.code < 400:
            return self._broken(f"unexpected intermediate reply to BDAT: {reply}")
        if reply.positive and self._accepted:
            return self._broken(_ACCEPTED_ANYWAY)
        return self._without_message()

    def _refused_as_unknown(self, reply: Reply) -> Step:
        """The server may take the message for commands, so no later reply means anything."""
        self.sent_dot = False
        self._sender_verdict()
        self._bdat_unknown = True
        return self._broken(f"the server announces CHUNKING but refused BDAT: {reply}")

    def _refused_data(self, reply: Reply) -> None:
        if self._sender_accepted:
            for number in self._accepted:
                self._decide(number, reply, "data")

    def _without_message(self) -> Step:
        self._sender_verdict()
        return Step.DONE

    def _sender_verdict(self) -> None:
        """If MAIL was refused, that is the verdict for every recipient, whatever the replies to RCPT were."""
        if self.sender is None or self._sender_accepted:
            return
        for number in self._tried:
            self._decide(number, self.sender, "mail")

    def _rcpt_reply(self, number: int, reply: Reply) -> None:
        self._replied += 1
        if reply.positive:
            self._accepted.append(number)
        else:
            self._decide(number, reply, "rcpt")

    def _is_extra_354(self, reply: Reply) -> bool:
        """Whether to ignore this 354: an extra one is harmless, because it cannot be about the message."""
        if reply.code != 354 or self._extra_354:
            return False
        self._extra_354 = True
        return True

    def _server_leaves(self, reply: Reply, stage: Stage) -> Step:
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


def _may_be_about_parameters(reply: Reply | None, command: bytes) -> bool:
    """Not if its enhanced code says that it is about the address or a policy, or if the command has no parameters."""
    if reply is None or reply.code not in _PARAMETERS or command.endswith(b">\r\n"):
        return False
    return reply.enhanced is None or reply.enhanced.startswith("5.5.")
