"""Broadcasts whose opens and clicks are tracked: what is fixed when sending starts, and who is not tracked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import attrs
import pytest_twisted as pt

from mailsvc.broadcasts.personal import LINKS
from mailsvc.mail import mime
from mailsvc.mail.tracking import token
from mailsvc.mail.tracking.token import Tracked, day_of
from mailsvc.store.audience.objections import Objections
from mailsvc.store.domains.domains import Domain
from mailsvc.tracking.outgoing import OutgoingTracking
from tests.broadcasts.fixtures import ACCOUNT, DOMAIN, NOW, SECRETS, BroadcastRig, at_once

HOST = "track.example.net"
HTML = (
    '<p>Hi {{{FIRST_NAME|you}}} <a href="https://shop.example/?n={{{FIRST_NAME}}}">Shop</a> '
    '<a href="{{{RESEND_UNSUBSCRIBE_URL}}}">Leave</a>'
)


def tracking_of(rig: BroadcastRig, secrets: dict[int, bytes] = SECRETS) -> OutgoingTracking:
    return OutgoingTracking(HOST, lambda: secrets, Objections(rig.keys), at_once, frozenset({"private.example"}))


async def started(pool: Any, domain: Domain) -> BroadcastRig:
    from twisted.internet import reactor

    rig = BroadcastRig(pool, reactor)
    await rig.start()
    rig.domains.domain = domain
    rig.fanout = rig.engine(tracking=tracking_of(rig))
    return rig


async def html_of(rig: BroadcastRig, address: str) -> tuple[UUID, str]:
    [(email_id,)] = await rig.pool.rows("SELECT email_id FROM emails WHERE to_ = %s", ([address],))
    message = await rig.composer.message(ACCOUNT, email_id)
    assert message is not None and message == await rig.composer.message(ACCOUNT, email_id)
    html = mime.parse(message).html
    assert html is not None
    return email_id, html


TRACKING = attrs.evolve(DOMAIN, open_tracking=True, click_tracking=True)


@pt.ensureDeferred
async def test_links_name_the_broadcast_and_the_contact(pool: Any) -> None:
    rig = await started(pool, TRACKING)
    contact_id = await rig.contact("ada@example.net", "Ada")
    broadcast_id = await rig.send(html=HTML, preview_text="Look")
    await rig.fanout.run()
    email_id, html = await html_of(rig, "ada@example.net")
    email = Tracked(ACCOUNT, email_id, day_of(NOW.timestamp()), 0, None, broadcast_id, contact_id)
    clicks, opens = (re.findall(rf"https://{HOST}/{path}/([A-Za-z0-9_-]+)", html) for path in "co")
    assert [token.read(each, SECRETS) for each in clicks] == [attrs.evolve(email, link=1, url="https://shop.example/?n=Ada")]
    assert [token.read(each, SECRETS) for each in opens] == [email]
    assert "Look" in html and 'href="https://mail.example/unsubscribe?token=' in html
    assert (await rig.pool.rows("SELECT tracking FROM broadcasts"))[0][0] == {"host": HOST, "opens": True, "clicks": True, "key": 2}


@pt.ensureDeferred
async def test_many_links_are_tracked_in_a_thread(pool: Any) -> None:
    rig = await started(pool, TRACKING)
    await rig.contact("ada@example.net", "Ada")
    await rig.send(html='<a href="https://shop.example/">1</a>' * (LINKS + 1))
    await rig.fanout.run()
    threads = []

    async def in_thread(work: Callable[[], Any]) -> Any:
        threads.append(work)
        return work()

    rig.composer.in_thread = in_thread
    _, html = await html_of(rig, "ada@example.net")
    assert len(threads) == 2 and html.count(f"https://{HOST}/c/") == LINKS + 1


@pt.ensureDeferred
async def test_tracking_stays_as_it_was_when_sending_started(pool: Any) -> None:
    """The bytes of a message are signed at its first attempt."""
    rig = await started(pool, TRACKING)
    await rig.contact("ada@example.net", "Ada")
    await rig.send(html=HTML)
    await rig.fanout.run()
    _, before = await html_of(rig, "ada@example.net")
    rig.domains.domain = DOMAIN
    rig.composer._prepared.clear()
    rig.composer.secrets = lambda: {3: b"x" * 32, **SECRETS}
    assert (await html_of(rig, "ada@example.net"))[1] == before
    rig.composer.secrets = lambda: {3: b"x" * 32}  # without the key, no link could be followed
    assert HOST not in (await html_of(rig, "ada@example.net"))[1]


@pt.ensureDeferred
async def test_who_must_not_be_tracked_gets_the_links_as_they_are(pool: Any) -> None:
    rig = await started(pool, TRACKING)
    for name in "ada@example.net", "eve@example.net", "bob@private.example":
        await rig.contact(name, "Ada")
    await rig.pool.run("UPDATE contacts SET untracked = true WHERE address = 'eve@example.net'")
    await rig.send(html=HTML)
    await rig.fanout.run()
    tracked = {name: HOST in (await html_of(rig, name))[1] for name in ("ada@example.net", "eve@example.net", "bob@private.example")}
    assert tracked == {"ada@example.net": True, "eve@example.net": False, "bob@private.example": False}
    assert '<a href="https://shop.example/?n=Ada">' in (await html_of(rig, "eve@example.net"))[1]


@pt.ensureDeferred
async def test_nothing_is_tracked_by_default_or_without_a_verified_host(pool: Any) -> None:
    for domain in DOMAIN, attrs.evolve(TRACKING, tracking_subdomains=("links",)):
        rig = await started(pool, domain)
        await rig.contact("ada@example.net", "Ada")
        await rig.send(html=HTML)
        await rig.fanout.run()
        assert await rig.pool.rows("SELECT tracking FROM broadcasts") == [(None,)]
        await rig.pool.run("DELETE FROM broadcasts")
        for table in "contacts", "contact_segments", "segments", "accounts":
            await rig.pool.run(f"DELETE FROM {table}")
