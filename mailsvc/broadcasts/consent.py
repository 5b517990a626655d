"""Finds the recipients who must not get an email of a broadcast or about a topic: when it is accepted, and right before it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import attrs

from mailsvc.audience.consent import refusal
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.broadcasts.consent import NONE, Consents, Question

REASONS: Mapping[str, str] = {
    "unsubscribed": "The recipient has unsubscribed from all broadcasts.",
    "topic": "The recipient is not subscribed to the topic of this email.",
    "topic deleted": "The topic of this email was deleted, and the recipient had not chosen it.",
}
SUPPRESSED = "The address was put on the suppression list while the email was in the queue."
DELETED = "The broadcast no longer exists."
TOPIC_DELETED = "The topic was deleted, so nobody’s choice is known any more. Restore the topic and continue, or cancel the broadcast."


class OnHold(Exception):
    """The broadcast is paused, or will be: its emails are sent later, if somebody continues it. The text says why."""


class BroadcastCanceled(Exception):
    """Nobody gets its emails any more."""


@attrs.define(eq=False)
class Consent:
    """Implements delivery/message_loader.Consent, and asks for `POST /emails` with a `topic_id`.

    So an unsubscribe takes effect at once, for which Google's rules and Yahoo's rules allow two days.
    """

    keys: AudienceKeys
    stored: Consents

    async def unwanted(
        self, account_id: UUID, broadcast_id: UUID | None, topic_id: UUID | None, addresses: Sequence[str]
    ) -> Mapping[str, str]:
        """Why the email must not be sent, by address. Raises OnHold while the broadcast is paused, or its topic deleted.

        Raises BroadcastCanceled.
        """
        key, found = await self.keys.of(account_id), {}
        for address in addresses:
            facts = await self.stored.facts(Question(account_id, key.hash(address), address, topic_id or NONE, broadcast_id or NONE))
            if facts.status == "canceled":
                raise BroadcastCanceled
            if broadcast_id is not None and facts.status != "queued" and facts.status != "sent":
                found[address] = DELETED
                continue
            refused = refusal(facts.unsubscribed, facts.default, facts.choice)
            if refused == "topic" and facts.choice is None and facts.topic_deleted:
                if facts.status == "queued":  # the broadcast is about to be paused: the topic can be restored
                    raise OnHold(TOPIC_DELETED)
                found[address] = REASONS["topic deleted"]
            elif refused is not None:
                found[address] = REASONS[refused]
            elif facts.suppressed:
                found[address] = SUPPRESSED
            elif facts.paused:
                raise OnHold(f"The broadcast is paused. {facts.reason or ''}".rstrip())
        return found
