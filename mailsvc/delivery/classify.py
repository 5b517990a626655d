"""What a reply means for a recipient: delivered, deferred or bounced. Pure.

Why the server refused: bounces/diagnosis. When the next attempt is: retry. Writing the outcome: store/queue/settle.
"""

from __future__ import annotations

from typing import Literal

import attrs

from mailsvc.bounces.diagnosis import Stage, diagnose
from mailsvc.mail.reply import Reply
from mailsvc.outcome import BounceType, Meaning

__all__ = ["Action", "Stage", "Verdict", "classify"]

Action = Literal["delivered", "deferred", "bounced"]


@attrs.frozen
class Verdict:
    """What to do with a recipient.

    `type`, `sub_type` and `suppress` (the address itself is invalid) are for a bounce. `closing`: the server is closing the
    connection (421), so nothing more may be sent on it. `greylisted`: waiting may be enough. `meaning`: of a refusal.
    """

    action: Action
    type: BounceType = "Permanent"
    sub_type: str = "General"
    closing: bool = False
    greylisted: bool = False
    suppress: bool = False
    meaning: Meaning | None = None


_DELIVERED = Verdict("delivered")


def classify(reply: Reply, stage: Stage, host: str = "") -> Verdict:
    """The verdict for the recipients that `reply` is about. `host` sent it."""
    if reply.positive:
        # A 3yz, or a 2yz to DATA, does not answer the command. Only a 2yz to the message delivers.
        return _DELIVERED if stage == "dot" and reply.code < 300 else Verdict("deferred")
    found = diagnose(reply, host, stage)
    if reply.code == 421:  # 5321 §3.8: the server closes the connection, whatever the command was
        return Verdict("deferred", closing=True, meaning=found.meaning)
    if reply.transient:
        greylisted = stage in ("mail", "rcpt", "data", "dot") and reply.code != 452
        return Verdict("deferred", greylisted=greylisted, meaning=found.meaning)
    if reply.code == 552 and stage == "rcpt":  # 5321 §4.5.3.1.10: too many recipients, to be treated as 452
        return Verdict("deferred", meaning=found.meaning)
    # After such a greeting, another host or a later attempt may work: servers that block an address use 554, which by RFC 5321 §3.1
    # means that the host has no mail service. 521 says that it never has (7504 §3).
    if found.retry_permanent or (stage == "greeting" and reply.code != 521):
        return Verdict("deferred", meaning=found.meaning)
    return Verdict("bounced", found.type, found.sub_type, suppress=found.suppress, meaning=found.meaning)
