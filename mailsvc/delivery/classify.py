"""What to do about a reply: delivered, again later, or never. Pure.

What a refusal means is diagnosis. When to try again: retry. Writing it down: store/queue/settle.
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
    """What to do about a recipient.

    `type`, `sub_type` and `suppress` (the address itself is no good) count for a bounce. `closing`: the server is closing the
    connection (421), so nothing more may be sent on it. `greylisted`: a refusal that waiting may cure by itself. `meaning`: of a
    refusal.
    """

    action: Action
    type: BounceType = "Permanent"
    sub_type: str = "General"
    closing: bool = False
    greylisted: bool = False
    suppress: bool = False
    meaning: Meaning | None = None


def classify(reply: Reply, stage: Stage, host: str = "") -> Verdict:
    """The verdict on the recipients that `reply` is about; `host` is the exchanger that gave it."""
    if reply.positive:
        # A 3yz, or a 2yz to DATA, is no answer to what was asked; only the one to the message delivers.
        return Verdict("delivered" if stage == "dot" and reply.code < 300 else "deferred")
    found = diagnose(reply, host, stage)
    if reply.code == 421:  # 5321 §3.8: closing, whatever was asked
        return Verdict("deferred", closing=True, meaning=found.meaning)
    if reply.transient:
        greylisted = stage in ("mail", "rcpt", "data", "dot") and reply.code != 452
        return Verdict("deferred", greylisted=greylisted, meaning=found.meaning)
    if reply.code == 552 and stage == "rcpt":  # 5321 §4.5.3.1.10: too many recipients, to be read as 452
        return Verdict("deferred", meaning=found.meaning)
    # Another host may serve after such a greeting, or this one later: servers that block an address use 554, which RFC 5321 §3.1
    # has for a host without mail service. 521 says that there never is any (7504 §3).
    if found.retry_permanent or (stage == "greeting" and reply.code != 521):
        return Verdict("deferred", meaning=found.meaning)
    return Verdict("bounced", found.type, found.sub_type, suppress=found.suppress, meaning=found.meaning)
