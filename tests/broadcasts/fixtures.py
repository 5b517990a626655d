"""Shared by the tests of broadcasts: an audience of any size, and the engine on a real database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.task import Clock

from mailsvc.broadcasts.consent import Consent
from mailsvc.broadcasts.fanout import Fanout, Pace, Screen
from mailsvc.broadcasts.links import UnsubscribeLinks
from mailsvc.broadcasts.personal import Composer
from mailsvc.settings.plans import Exhausted
from mailsvc.store.audience.figures import AudienceFigures
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.consent import Consents
from mailsvc.store.broadcasts.personal import PersonalEmails
from mailsvc.store.broadcasts.sending import Sending
from mailsvc.store.broadcasts.values import Broadcast, Content
from mailsvc.store.domains.values import Domain
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.events.ledger import EventLedger
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.messages import Messages
from mailsvc.store.postgres.pool import Pool
from mailsvc.tracking.outgoing import OutgoingTracking

ACCOUNT, DOMAIN_ID = UUID(int=0xA1), UUID(int=0xD1)
BASE = "https://mail.example"
SECRETS = {2: b"n" * 32, 1: b"k" * 32}
NOW = datetime.now(UTC).replace(microsecond=0)
DOMAIN = Domain(DOMAIN_ID, ACCOUNT, "example.com", "r1", "verified", False, "send", ("rsa",), "opportunistic", NOW)

_CONTACT = """
INSERT INTO contacts (account_id, id, address, email, first_name, unsubscribed, properties, hash, created_at, updated_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_MANY = """
INSERT INTO contacts (account_id, id, address, email, first_name, hash, created_at, updated_at)
SELECT %s, ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'c' || n || '@example.net', 'c' || n || '@example.net', 'N' || n,
       decode(md5(n::text), 'hex'), %s, %s
FROM generate_series(1, %s) n
"""
_ALL = "INSERT INTO contact_segments (account_id, segment_id, contact_id, added_at) SELECT account_id, %s, id, created_at FROM contacts"


@attrs.define
class Domains:
    """The one sending domain, or none."""

    domain: Domain | None = DOMAIN

    async def find(self, account_id: UUID, name: str) -> Domain | None:
        return self.domain if self.domain is not None and name == self.domain.name else None

    async def get(self, domain_id: UUID) -> Domain | None:
        return self.domain


@attrs.define
class Quota:
    """So many recipients, and broadcasts with so many contacts."""

    left: int = 1_000_000_000
    resets_at: datetime = NOW + timedelta(hours=5)
    most_contacts: int | None = None

    def contacts(self, plan: str | None) -> int | None:
        return self.most_contacts

    async def take(self, account_id: UUID, plan: str | None, count: int, ramp: int | None) -> Any:
        if count > self.left:
            return Exhausted("day", count, 0, self.left, self.resets_at)
        self.left -= count
        return count

    def refund(self, taken: int, count: int | None = None) -> None:
        self.left += taken if count is None else count


class Notifier:
    def notify(self, channel: str) -> None:
        """Nobody listens."""

    def listen(self, channel: str, callback: Callable[[], None]) -> None:
        """Nobody notifies."""


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


class BroadcastRig:
    """An account with a domain, a segment, and the engine. `clock` stands still."""

    def __init__(self, pool: Pool, reactor: Any, **pace: int) -> None:
        self.pool = pool
        self.clock = Clock()
        self.clock.advance(NOW.timestamp())
        self.keys = AudienceKeys(pool, Encryption.read("1 " + "A" * 43 + "=", "the test"))
        self.links = UnsubscribeLinks(self.keys)
        self.broadcasts = Broadcasts(pool, self.clock)
        self.consent = Consent(self.keys, Consents(pool, reactor))
        self.composer = Composer(PersonalEmails(pool, reactor), self.links, at_once, lambda: SECRETS)
        self.messages = Messages(pool, reactor, self.composer)
        self.domains, self.quotas = Domains(), Quota()
        self.segment = uuid7(NOW.timestamp())
        self.fanout = self.engine(**pace)

    def engine(self, screen: Screen | None = None, tracking: OutgoingTracking | None = None, **pace: int) -> Fanout:
        """One more process that sends broadcasts."""
        domains: Any = self.domains
        return Fanout(
            Sending(self.pool), self.broadcasts, AudienceFigures(self.pool, self.clock), domains, self.quotas,
            lambda account_id, domain_id, name: name, Notifier(), self.clock, at_once, BASE, timedelta(days=5),
            pace=Pace(**pace), screen=screen, tracking=tracking,
        )  # fmt: skip

    async def start(self) -> None:
        await self.pool.run("INSERT INTO accounts (id, name, created_at) VALUES (%s, 'A', %s)", (ACCOUNT, NOW))
        await self.pool.run(
            "INSERT INTO segments (account_id, id, name, created_at) VALUES (%s, %s, 'All', %s)", (ACCOUNT, self.segment, NOW)
        )

    async def contact(
        self, email: str, first_name: str | None = None, *, unsubscribed: bool = False, properties: dict[str, Any] | None = None
    ) -> UUID:
        """A member of the segment."""
        id_, hash_ = uuid7(NOW.timestamp()), (await self.keys.of(ACCOUNT)).hash(email)
        values = (ACCOUNT, id_, email.lower(), email, first_name, unsubscribed, properties or {}, hash_, NOW, NOW)
        await self.pool.run(_CONTACT, values)
        await self.pool.run("INSERT INTO contact_segments VALUES (%s, %s, %s, %s)", (ACCOUNT, self.segment, id_, NOW))
        return id_

    async def contacts(self, count: int) -> None:
        """So many members."""
        await self.pool.run(_MANY, (ACCOUNT, NOW, NOW, count))
        await self.pool.run(_ALL, (self.segment,))

    async def topic(self, subscribed: bool) -> UUID:
        id_ = uuid7(NOW.timestamp())
        sql = "INSERT INTO topics (account_id, id, name, subscribed, public, created_at, updated_at) VALUES (%s, %s, 'T', %s, true, %s, %s)"
        await self.pool.run(sql, (ACCOUNT, id_, subscribed, NOW, NOW))
        return id_

    async def send(self, **content: Any) -> UUID:
        """A broadcast that is to be sent now."""
        id_ = await self.broadcasts.add(ACCOUNT, self._content(content), send=True)
        assert isinstance(id_, UUID), id_
        return id_

    def _content(self, given: dict[str, Any]) -> Content:
        usual = {"name": "News", "segment_id": self.segment, "sender": "Acme <news@example.com>", "subject": "Hi {{{FIRST_NAME|you}}}"}
        text = {"html": '<p>Hi {{{contact.first_name|there}}} <a href="{{{RESEND_UNSUBSCRIBE_URL}}}">Leave</a>'}
        return Content(**{**usual, **text, **given})

    async def schedule(self, **content: Any) -> UUID:
        """A broadcast whose time is in a second, which passes."""
        id_ = await self.broadcasts.add(
            ACCOUNT, self._content(content), send=True, at=datetime.fromtimestamp(self.clock.seconds() + 1, UTC)
        )
        assert isinstance(id_, UUID), id_
        self.clock.advance(1)
        return id_

    async def get(self, id_: UUID) -> Broadcast:
        found = await self.broadcasts.get(ACCOUNT, id_)
        assert found is not None
        return found

    async def number(self) -> None:
        """Number and count the events so far."""
        while await EventLedger(self.pool).number(10_000):
            pass

    async def addresses(self) -> list[str]:
        """Who waits in the queue."""
        return [row[0] for row in await self.pool.rows("SELECT address FROM queue ORDER BY address")]

    async def settled(self, count: int, kind: str, data: dict[str, Any] | None = None) -> None:
        """So many recipients leave the queue with an event."""
        sql = """
        WITH gone AS (
            DELETE FROM queue WHERE ctid = ANY (ARRAY(SELECT ctid FROM queue LIMIT %s)) RETURNING account_id, email_id, domain_id, recipient
        ), told AS (
            INSERT INTO events SELECT account_id, email_id, gen_random_uuid(), recipient, %s, %s, %s FROM gone
        )
        INSERT INTO fresh_events (shard, account_id, email_id, event_id, domain_id, type, at, weight)
        SELECT 1, account_id, email_id, gen_random_uuid(), domain_id, %s, %s, 1 FROM gone
        """
        await self.pool.run(sql, (count, kind, NOW, data, kind, NOW))
