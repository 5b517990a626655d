"""Shared by the tests of the audience: one account with everything that its contacts need."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.task import Clock

from mailsvc.store.audience.confirmations import Confirmations
from mailsvc.store.audience.contacts import Contacts
from mailsvc.store.audience.evidence import Evidence
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.audience.listing import ContactLists
from mailsvc.store.audience.preferences import Preferences
from mailsvc.store.audience.properties import Properties
from mailsvc.store.audience.segments import Segments
from mailsvc.store.audience.topics import Topics
from mailsvc.store.audience.values import By, Choice, Confirmation, Contact, NewContact
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.postgres.pool import Pool
from tests.store.encryption.test_secrets import ENCRYPTION

NOW = datetime.now(UTC).replace(microsecond=0)
API = By("api", {"key": "a key"})
PAGE = By("preferences", {"ip": "192.0.2.1"}, "Product news: unsubscribe")
CONFIRMED = By("confirmation", {"ip": "192.0.2.1"}, "Yes, send me the newsletter")
WORDING = Confirmation(
    "Acme <news@example.com>", "Please confirm", None, "Confirm: {{{CONFIRM_URL}}}", "Confirm", "One click.", "Yes", "Thank you."
)


@attrs.define(eq=False)
class Audience:
    pool: Pool
    clock: Clock
    account: UUID
    contacts: Contacts
    lists: ContactLists
    segments: Segments
    topics: Topics
    properties: Properties
    preferences: Preferences
    evidence: Evidence
    confirmations: Confirmations
    keys: AudienceKeys

    @classmethod
    async def of(cls, pool: Pool) -> Audience:
        clock = Clock()
        clock.advance(NOW.timestamp())
        account = await Accounts(pool, clock).create("Acme")
        keys = AudienceKeys(pool, ENCRYPTION)
        return cls(
            pool, clock, account.id, Contacts(pool, clock, keys), ContactLists(pool), Segments(pool, clock, 5), Topics(pool, clock, 5),
            Properties(pool, clock, 5), Preferences(pool, clock), Evidence(pool), Confirmations(pool), keys,
        )  # fmt: skip

    async def add(self, email: str = "ada@example.net", by: By = API, **fields: Any) -> Contact:
        return await self.contacts.create(self.account, NewContact(email, **fields), by)

    async def find(self, ref: UUID | str = "ada@example.net") -> Contact:
        found = await self.contacts.get(self.account, ref)
        assert found is not None
        return found

    async def hash(self, email: str = "ada@example.net") -> bytes:
        return (await self.keys.of(self.account)).hash(email)

    async def chosen(self, contact: Contact) -> dict[UUID, bool]:
        sql = "SELECT topic_id, subscribed FROM contact_topics WHERE account_id = %s AND contact_id = %s"
        return dict(await self.pool.rows(sql, (self.account, contact.id)))

    async def members(self, segment_id: UUID) -> set[UUID]:
        sql = "SELECT contact_id FROM contact_segments WHERE account_id = %s AND segment_id = %s"
        return {id_ for (id_,) in await self.pool.rows(sql, (self.account, segment_id))}

    async def events(self) -> list[tuple[str, dict[str, Any]]]:
        sql = "SELECT type, data FROM events WHERE account_id = %s ORDER BY event_id"
        return [(kind, data) for kind, data in await self.pool.rows(sql, (self.account,))]

    async def acts(self, email: str = "ada@example.net") -> list[tuple[str, str, str]]:
        """Newest first: kind, action and source."""
        return [(each.kind, each.action, each.source) for each in await self.evidence.of(self.account, await self.hash(email))]

    async def choose(self, ref: UUID | str, topic_id: UUID, subscribed: bool) -> None:
        await self.contacts.choose(self.account, ref, [Choice(topic_id, subscribed)], API)
