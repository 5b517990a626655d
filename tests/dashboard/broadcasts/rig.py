"""An account with a trusted domain, a segment of contacts and the browser of a member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.audience.segments import Segments
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.values import Broadcast, Content
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import Browser, DashboardRig

HOME = "/dashboard/broadcasts"
DOMAIN = "news.acme.example"
HTML = '<p>Hi {{{contact.first_name|there}}}, <a href="{{{RESEND_UNSUBSCRIBE_URL}}}">unsubscribe</a></p>'
_CONTACT = """
INSERT INTO contacts (account_id, id, address, email, first_name, unsubscribed, hash, created_at, updated_at)
VALUES (%s, gen_random_uuid(), %s, %s, %s, %s, decode(md5(%s), 'hex'), now(), now()) RETURNING id
"""
_MEMBER = "INSERT INTO contact_segments (account_id, segment_id, contact_id, added_at) VALUES (%s, %s, %s, now())"


@attrs.frozen
class BroadcastPagesRig:
    rig: DashboardRig
    account_id: UUID
    segment_id: UUID
    browser: Browser

    @classmethod
    async def of(cls, pool: Pool) -> BroadcastPagesRig:
        rig = DashboardRig(pool)
        await rig.person("ann@example.com", await rig.account(), "developer")
        return await cls.beside(rig, await rig.inside("ann@example.com"))

    @classmethod
    async def beside(cls, rig: DashboardRig, browser: Browser) -> BroadcastPagesRig:
        """For the account that a browser shows."""
        [(account_id,)] = await rig.pool.rows("SELECT id FROM accounts ORDER BY created_at LIMIT 1")
        await rig.assembly.domains.add(account_id, DOMAIN, "us-east-1", [])
        await rig.assembly.domains.trust(account_id, DOMAIN)
        segment = await Segments(rig.pool, rig.clock).add(account_id, "Readers")
        return cls(rig, account_id, segment.id, browser)

    @property
    def stored(self) -> Broadcasts:
        return Broadcasts(self.rig.pool, self.rig.clock)

    async def contacts(self, addresses: Sequence[str], *, unsubscribed: bool = False, first_name: str | None = "Ann") -> list[UUID]:
        """Members of the segment."""
        found = []
        for address in addresses:
            [(id_,)] = await self.rig.pool.rows(_CONTACT, (self.account_id, address, address, first_name, unsubscribed, address))
            await self.rig.pool.run(_MEMBER, (self.account_id, self.segment_id, id_))
            found.append(id_)
        return found

    async def draft(self, **content: Any) -> UUID:
        given = {"name": "News", "segment_id": self.segment_id, "sender": f"Acme <news@{DOMAIN}>", "subject": "Our news", "html": HTML}
        added = await self.stored.add(self.account_id, Content(**given | content))
        assert isinstance(added, UUID)
        return added

    async def get(self, id_: UUID) -> Broadcast:
        found = await self.stored.get(self.account_id, id_)
        assert found is not None
        return found

    async def shown(self, id_: UUID, path: str = "") -> str:
        page = await self.browser.get(f"{HOME}/{id_}{path}")
        assert page.status == 200, (page.status, page.text)
        return page.text
