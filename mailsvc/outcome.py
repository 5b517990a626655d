"""The states of a recipient, the moves between them, and the outcomes of an attempt. Pure data.

`delivery/reading` makes an outcome for each recipient, `store/queue/settle` stores it. After a `Deferred` the state is `delayed`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import attrs

State = Literal[
    "scheduled", "queued", "sending", "delayed", "uncertain",
    "delivered", "bounced", "failed", "canceled", "suppressed", "complained",
]  # fmt: skip

# From each state, the states that can follow. A recipient in state `sending` has a lease in the queue.
MOVES: dict[State, frozenset[State]] = {
    "scheduled": frozenset({"queued", "canceled", "failed", "suppressed"}),
    "queued": frozenset({"sending", "canceled", "failed"}),
    "sending": frozenset({"queued", "delivered", "bounced", "delayed", "uncertain", "failed", "canceled"}),
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

# The event for each state. `queued`, `sending` and the release of a scheduled email have `email.sent`.
EVENTS: dict[State, str] = {
    "scheduled": "email.scheduled",
    "queued": "email.sent",
    "sending": "email.sent",
    "delayed": "email.delivery_delayed",
    "uncertain": "email.delivery_delayed",
    "delivered": "email.delivered",
    "bounced": "email.bounced",
    "failed": "email.failed",
    "canceled": "email.canceled",  # internal: there is no such webhook type
    "suppressed": "email.suppressed",
    "complained": "email.complained",
}

BounceType = Literal["Permanent", "Transient", "Undetermined"]
Party = Literal["recipient", "content", "address", "dns", "provider", "network"]


@attrs.frozen
class Meaning:
    """What a refusal means. `kind` is its class, `rule` the row of the diagnosis that says so, `party` who has to act.

    `address`: the operator, for the source addresses; `dns`: the owner of the sending domain. `retrying` is the advice while the email is
    retried, `advice` the one afterwards.
    """

    kind: str
    rule: str
    party: Party
    says: str
    advice: str
    retrying: str = ""

    def explain(self, text: str) -> str:
        """For people: the reply and what it means."""
        return f"{text if text.endswith(('.', '!', '?')) else text + '.'} {self.says}"

    def sentence(self, text: str) -> str:
        """For people: the reply, what it means, and what to do."""
        return f"{self.explain(text)} {self.advice}"

    def while_retried(self) -> Meaning:
        """The same for an email that is retried."""
        return attrs.evolve(self, advice=self.retrying or self.advice)


@attrs.frozen
class Delivered:
    """The recipient's server accepted the message; `reply` is its final reply."""

    reply: str


@attrs.frozen
class Deferred:
    """To be retried. `reason` is a sentence for people, `next_at` the earliest time of the next attempt."""

    reason: str
    next_at: datetime
    meaning: Meaning | None = None


@attrs.frozen
class Bounced:
    """Refused permanently, or expired. `reply` is the diagnostic of the server, or our own sentence.

    `suppress`: the address itself is bad, so the account doesn't email it again. `reason` is a sentence for people; "": `reply` is one.
    """

    reply: str
    type: BounceType = "Permanent"
    sub_type: str = "General"
    suppress: bool = False
    reason: str = attrs.field(default="", eq=False)  # bounces are equal however they are explained
    meaning: Meaning | None = attrs.field(default=None, eq=False)


@attrs.frozen
class Uncertain:
    """No reply to the complete message (RFC 1047), which may have been delivered. The same bytes are sent again at `next_at`."""

    reason: str
    next_at: datetime


@attrs.frozen
class Failed:
    """Never attempted, for an internal reason: the sending domain was deleted, the message cannot be read, …"""

    reason: str


@attrs.frozen
class Canceled:
    """Never transmitted, because its broadcast was canceled."""


Outcome = Delivered | Deferred | Bounced | Uncertain | Failed | Canceled
