"""What a reply means: delivered, again later, or never, and what kind of never. Pure.

Rules are rows of a table, the first that matches decides. When to try again: retry. Writing it down: store/settle.
"""

from __future__ import annotations

from typing import Literal

import attrs

from mailsvc.mail.reply import Reply
from mailsvc.outcome import BounceType

Stage = Literal["greeting", "mail", "rcpt", "data", "dot", "ours"]  # what the reply answers; "ours": we spoke for the server
Action = Literal["delivered", "deferred", "bounced"]


@attrs.frozen
class Verdict:
    """What to do about a recipient.

    `type` and `sub_type` count for a bounce. `closing`: the server is closing the connection (421), so nothing more may be
    sent on it. `greylisted`: a refusal that waiting may cure by itself. `suppress`: the address itself is no good.
    """

    action: Action
    type: BounceType = "Permanent"
    sub_type: str = "General"
    closing: bool = False
    greylisted: bool = False
    suppress: bool = False


@attrs.frozen
class Rule:
    """A row: enhanced codes without their class (`1.1`, or `7.` for a whole subject), basic codes, stages; empty means any."""

    type: BounceType
    sub_type: str
    enhanced: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    stages: tuple[Stage, ...] = ()
    suppress: bool = False

    def matches(self, reply: Reply, stage: Stage) -> bool:
        subject = reply.enhanced.partition(".")[2] if reply.enhanced else None
        if self.enhanced and (subject is None or not any(_within(subject, each) for each in self.enhanced)):
            return False
        return (not self.codes or reply.code in self.codes) and (not self.stages or stage in self.stages)


# Enhanced codes (3463 §3, and the IANA registry) before basic ones (5321 §4.2.3). Only what is wrong with the recipient itself is
# Permanent: a policy, a full mailbox or a refused content says nothing against the address. It is suppressed when the code leaves
# no doubt: a bare 550 is also said for reasons of policy.
RULES: tuple[Rule, ...] = (
    Rule("Permanent", "General", enhanced=("1.1", "1.2", "1.3", "1.6", "1.10"), suppress=True),  # no such mailbox or host, moved, null MX
    Rule("Permanent", "General", enhanced=("1.0", "1.4")),
    Rule("Permanent", "General", enhanced=("2.1",), suppress=True),  # disabled
    Rule("Transient", "General", enhanced=("1.",)),  # the sender's address
    Rule("Transient", "MailboxFull", enhanced=("2.2",)),
    Rule("Transient", "MessageTooLarge", enhanced=("2.3", "3.4")),
    Rule("Transient", "ContentRejected", enhanced=("6.", "7.1"), stages=("data", "dot")),
    Rule("Transient", "General", enhanced=("3.", "4.", "5.", "6.", "7.")),  # their system, the network, the protocol, policy
    Rule("Permanent", "General", enhanced=("2.",)),
    Rule("Transient", "MessageTooLarge", codes=(552,), stages=("mail",)),  # SIZE (1870 §6.1)
    Rule("Transient", "MailboxFull", codes=(552,)),
    Rule("Permanent", "General", codes=(550, 551, 553), stages=("rcpt",)),
    Rule("Transient", "General", stages=("greeting", "mail")),  # these speak of us, not of the recipient
)
_UNDETERMINED = Rule("Undetermined", "Undetermined")


def classify(reply: Reply, stage: Stage, host: str = "") -> Verdict:
    """The verdict on the recipients that `reply` is about; `host` is the exchanger that gave it."""
    if reply.code == 421:  # 5321 §3.8: closing, whatever was asked
        return Verdict("deferred", closing=True)
    if reply.code == 552 and stage == "rcpt":  # 5321 §4.5.3.1.10: too many recipients, to be read as 452
        return Verdict("deferred")
    if reply.transient:
        return Verdict("deferred", greylisted=stage in ("mail", "rcpt", "data", "dot") and reply.code != 452)
    if reply.positive:
        # A 3yz, or a 2yz to DATA, is no answer to what was asked; only the final dot delivers.
        return Verdict("delivered" if stage == "dot" and reply.code < 300 else "deferred")
    if stage == "greeting":
        return Verdict("deferred")  # another host may serve, or this one later
    rule = next((rule for rule in RULES if rule.matches(reply, stage)), _UNDETERMINED)
    return Verdict("bounced", rule.type, rule.sub_type, suppress=rule.suppress)


def _within(subject: str, pattern: str) -> bool:
    return subject.startswith(pattern) if pattern.endswith(".") else subject == pattern
