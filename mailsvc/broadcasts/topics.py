"""Emails with a `topic_id` that are not part of a broadcast: the header fields with which their recipient can unsubscribe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import attrs

from mailsvc.broadcasts.links import Source, UnsubscribeLinks, headers
from mailsvc.store.broadcasts.sending import Sending


@attrs.frozen
class TopicMail:
    """For emails about a topic: the fields with which the recipient can unsubscribe."""

    links: UnsubscribeLinks
    stored: Sending
    base_url: str

    async def headers(self, account_id: UUID, email_id: UUID, topic_id: UUID, addresses: Sequence[str]) -> Mapping[str, str] | None:
        """None if there is no such topic. Several recipients get the same message, so it has no link, which is personal."""
        if await self.stored.default(account_id, topic_id) is None:
            return None
        if len(addresses) != 1 or not self.base_url:
            return {}
        source = Source(account_id, email_id=email_id, topic_id=topic_id)
        return headers(await self.links.make(self.base_url, source, addresses[0]))
