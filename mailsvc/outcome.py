"""What can become of a recipient: the states, the moves between them, and the outcomes of an attempt. Pure data.

Reading a reply into a class: delivery/classify. Writing the result down: store/queue/settle.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import attrs

State = Literal[
    "scheduled", "queued", "sending", "delayed", "uncertain",
    "delivered", "bounced", "failed", "canceled", "suppressed", "complained",
]  # fmt: skip

# from → where a recipient may go next. `sending` is a row of the queue with a lease.
MOVES: dict[State, frozenset[State]] = {
    "scheduled": frozenset({"queued", "canceled", "failed", "suppressed"}),
    "queued": frozenset({"sending", "canceled", "failed"}),
    "sending": frozenset({"queued", "delivered", "bounced", "delayed", "uncertain", "failed"}),
    "delayed": frozenset({"sending", "canceled", "failed", "bounced"}),
    "uncertain": frozenset({"sending", "bounced"}),
    "delivered": frozenset({"bounced", "complained"}),
    "bounced": frozenset(),
    "failed": frozenset(),
    "canceled": frozenset(),
    "suppressed": frozenset(),
    "complained": frozenset(),
}

WAITING: frozenset[State] = frozenset({"scheduled", "queued", "sending", "delayed", "uncertain"})

# The event that tells of each state. `queued`, `sending` and a scheduled email's release have `email.sent`.
EVENTS: dict[State, str] = {
    "scheduled": "email.scheduled",
    "queued": "email.sent",
    "sending": "email.sent",
    "delayed": "email.delivery_delayed",
    "uncertain": "email.delivery_delayed",
    "delivered": "email.delivered",
    "bounced": "email.bounced",
    "failed": "email.failed",
    "canceled": "email.canceled",  # internal: no webhook type exists for it
    "suppressed": "email.suppressed",
    "complained": "email.complained",
}

BounceType = Literal["Permanent", "Transient", "Undetermined"]
Party = Literal["recipient", "content", "address", "dns", "provider", "network"]


@attrs.frozen
class Meaning:
    """What a refusal means. `kind` names its class, `rule` the row that says so (diagnosis); `party` is who must act.

    `address`: the operator, for the addresses that mail leaves from; `dns`: the owner of the sending domain. `retrying` is the advice
    while the email is tried again, `advice` the one once it is not.
    """

    kind: str
    rule: str
    party: Party
    says: str
    advice: str
    retrying: str = ""

    def explain(self, said: str) -> str:
        """For people: what was said and what that means."""
        return f"{said if said.endswith(('.', '!', '?')) else said + '.'} {self.says}"

    def sentence(self, said: str) -> str:
        """For people: what was said, what that means, who must do what."""
        return f"{self.explain(said)} {self.advice}"

    def while_retried(self) -> Meaning:
        """The same for an email that is tried again."""
        return attrs.evolve(self, advice=self.retrying or self.advice)


@attrs.frozen
class Delivered:
    """The mail exchanger took responsibility; `reply` is its answer to the final dot."""

    reply: str


@attrs.frozen
class Deferred:
    """Not now: `reason` is a sentence for people, `next_at` when the next attempt may start."""

    reason: str
    next_at: datetime
    meaning: Meaning | None = None


@attrs.frozen
class Bounced:
    """Never: refused for good or expired. `reply` is the diagnostic as the peer gave it, or a sentence of ours.

    `suppress`: the address itself is no good, so its account writes to it no more. `reason` is a sentence for people; "": `reply` is one.
    """

    reply: str
    type: BounceType = "Permanent"
    sub_type: str = "General"
    suppress: bool = False
    reason: str = attrs.field(default="", eq=False)  # two bounces are the same whatever words they are explained with
    meaning: Meaning | None = attrs.field(default=None, eq=False)


@attrs.frozen
class Uncertain:
    """No reply to the whole message (RFC 1047): it may have been delivered. Tried again, same bytes, at `next_at`."""

    reason: str
    next_at: datetime


@attrs.frozen
class Failed:
    """Never attempted, for a reason of ours: the sending domain is gone, the message cannot be read, …"""

    reason: str


Outcome = Delivered | Deferred | Bounced | Uncertain | Failed
