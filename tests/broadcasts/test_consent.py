"""Who gets a broadcast: decided when it is queued, and again when it is handed over. And how long a link to leave works."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.accounts.retention import RetentionSweep
from mailsvc.broadcasts.consent import REASONS, SUPPRESSED, OnHold
from mailsvc.broadcasts.links import Source, UnsubscribeLinks
from mailsvc.settings.retention import Retention
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.audience.preferences import Preferences
from mailsvc.store.audience.values import By
from mailsvc.store.encryption import rotation
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.postgres.pool import Pool
from tests.broadcasts.fixtures import ACCOUNT, BASE, NOW, BroadcastRig

# unsubscribed, the default of the broadcast's topic, the contact's own choice, what happens to the email. Without a topic: the last row.
CASES = [
    (False, True, True, "sent"),
    (False, True, False, "topic"),
    (False, True, None, "sent"),
    (False, False, True, "sent"),
    (False, False, False, "topic"),
    (False, False, None, "topic"),
    (True, True, True, "unsubscribed"),
    (True, True, False, "unsubscribed"),
    (True, True, None, "unsubscribed"),
    (True, False, True, "unsubscribed"),
    (True, False, False, "unsubscribed"),
    (True, False, None, "unsubscribed"),
    (False, None, False, "sent"),  # opted out of every topic
]
CHOOSE = """
INSERT INTO contact_topics VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (account_id, contact_id, topic_id) DO UPDATE SET subscribed = excluded.subscribed
"""


@pytest_twisted.async_yield_fixture
async def rig(pool: Pool) -> AsyncIterator[BroadcastRig]:
    from twisted.internet import reactor

    rig = BroadcastRig(pool, reactor)
    await rig.start()
    yield rig


async def choose(rig: BroadcastRig, contact: UUID, topic: UUID, choice: bool | None) -> None:
    if choice is None:
        await rig.pool.run("DELETE FROM contact_topics WHERE contact_id = %s AND topic_id = %s", (contact, topic))
    else:
        await rig.pool.run(CHOOSE, (ACCOUNT, contact, topic, choice, NOW))


@pytest_twisted.ensureDeferred
async def test_the_thirteen_cases_when_the_email_is_queued(rig: BroadcastRig) -> None:
    topics = {True: await rig.topic(True), False: await rig.topic(False)}
    for default in (True, False, None):
        cases = {f"c{n}@example.net": case for n, case in enumerate(CASES) if case[1] is default}
        await rig.pool.run("DELETE FROM contacts")
        for address, (unsubscribed, _, choice, _) in cases.items():
            contact = await rig.contact(address, unsubscribed=unsubscribed)
            for topic in topics.values():
                await choose(rig, contact, topic, choice)
        await rig.send(topic_id=None if default is None else topics[default])
        await rig.fanout.run()
        assert set(await rig.addresses()) == {address for address, case in cases.items() if case[-1] == "sent"}
        await rig.pool.run("DELETE FROM queue")


@pytest_twisted.ensureDeferred
async def test_the_thirteen_cases_between_the_queue_and_the_hand_over(rig: BroadcastRig) -> None:
    """Everybody wants it when it is queued, and then changes their mind."""
    topics = {True: await rig.topic(True), False: await rig.topic(False)}
    for default in (True, False, None):
        topic = None if default is None else topics[default]
        cases = {f"c{n}@example.net": case for n, case in enumerate(CASES) if case[1] is default}
        await rig.pool.run("DELETE FROM contacts")
        contacts = {address: await rig.contact(address) for address in cases}
        for contact in contacts.values():
            for each in topics.values():
                await choose(rig, contact, each, True)
        broadcast = await rig.send(topic_id=topic)
        await rig.fanout.run()
        assert set(await rig.addresses()) == set(cases)
        for address, (unsubscribed, _, choice, _) in cases.items():
            for each in topics.values():
                await choose(rig, contacts[address], each, choice)
            await rig.pool.run("UPDATE contacts SET unsubscribed = %s WHERE address = %s", (unsubscribed, address))
        found = await rig.consent.unwanted(ACCOUNT, broadcast, topic, [address.upper() for address in cases])
        assert {address.lower(): reason for address, reason in found.items()} == {
            address: REASONS[case[-1]] for address, case in cases.items() if case[-1] != "sent"
        }
        await rig.pool.run("DELETE FROM queue")


@pytest_twisted.ensureDeferred
async def test_mail_about_a_deleted_topic_reaches_only_those_who_chose_it(rig: BroadcastRig) -> None:
    """Otherwise, deleting a topic would send its mail to everybody who opted out of it."""
    for default in (True, False):
        topic = await rig.topic(default)
        people = {f"{choice}-{default}@example.net".lower(): choice for choice in (True, False, None)}
        for address, choice in people.items():
            await choose(rig, await rig.contact(address), topic, choice)
        await rig.pool.run("UPDATE topics SET deleted_at = %s", (NOW,))
        found = await rig.consent.unwanted(ACCOUNT, None, topic, list(people))
        reasons = {False: REASONS["topic"], None: REASONS["topic deleted"]}
        assert found == {address: reasons[choice] for address, choice in people.items() if not choice}
        await rig.pool.run("DELETE FROM topics")
        assert await rig.consent.unwanted(ACCOUNT, None, topic, list(people)) == found


@pytest_twisted.ensureDeferred
async def test_emails_of_a_broadcast_wait_while_its_topic_is_deleted(rig: BroadcastRig) -> None:
    """It is paused a moment later. Whoever restores the topic continues it, and nobody has been left out."""
    topic = await rig.topic(True)
    people = {f"{choice}@example.net".lower(): await rig.contact(f"{choice}@example.net") for choice in (True, None)}
    await choose(rig, people["true@example.net"], topic, True)
    broadcast = await rig.send(topic_id=topic)
    await rig.fanout.run()
    await choose(rig, await rig.contact("false@example.net"), topic, False)
    await rig.pool.run("UPDATE topics SET deleted_at = %s", (NOW,))
    with pytest.raises(OnHold, match="The topic was deleted"):
        await rig.consent.unwanted(ACCOUNT, broadcast, topic, ["none@example.net"])
    others = ["true@example.net", "false@example.net"]
    assert await rig.consent.unwanted(ACCOUNT, broadcast, topic, others) == {"false@example.net": REASONS["topic"]}
    await rig.pool.run("UPDATE topics SET deleted_at = NULL")
    assert await rig.consent.unwanted(ACCOUNT, broadcast, topic, ["none@example.net"]) == {}
    await rig.pool.run("UPDATE topics SET deleted_at = %s", (NOW,))
    await rig.pool.run("UPDATE broadcasts SET status = 'sent'")  # nobody can continue it
    assert await rig.consent.unwanted(ACCOUNT, broadcast, topic, ["none@example.net"]) == {"none@example.net": REASONS["topic deleted"]}


@pytest_twisted.ensureDeferred
async def test_an_unsubscribe_outlives_the_contact(rig: BroadcastRig) -> None:
    await rig.contact("ada@example.net")
    broadcast = await rig.send()
    await rig.fanout.run()
    await rig.pool.run("DELETE FROM contacts")
    assert not await rig.consent.unwanted(ACCOUNT, broadcast, None, ["ada@example.net"])
    hash_ = (await rig.keys.of(ACCOUNT)).hash("ada@example.net")
    await rig.pool.run("INSERT INTO unsubscribes VALUES (%s, %s, '00000000-0000-0000-0000-000000000000', %s)", (ACCOUNT, hash_, NOW))
    assert await rig.consent.unwanted(ACCOUNT, broadcast, None, ["ada@example.net"])


@pytest_twisted.ensureDeferred
async def test_an_address_that_was_suppressed_meanwhile_gets_nothing(rig: BroadcastRig) -> None:
    """For example by a complaint about another email, while the broadcast was paused for a week."""
    await rig.contact("Ada@example.net")
    broadcast, topic = await rig.send(), await rig.topic(True)
    await rig.fanout.run()
    sql = "INSERT INTO suppressions (id, account_id, address, email, origin, created_at) VALUES (%s, %s, %s, '', 'complaint', %s)"
    await rig.pool.run(sql, (ACCOUNT, ACCOUNT, "ada@example.net", NOW))
    asked = ["Ada@example.net", "bob@example.net"]
    assert await rig.consent.unwanted(ACCOUNT, broadcast, None, asked) == {"Ada@example.net": SUPPRESSED}
    assert await rig.consent.unwanted(ACCOUNT, None, topic, asked) == {"Ada@example.net": SUPPRESSED}


@pytest_twisted.ensureDeferred
async def test_a_link_works_after_a_key_rotation_the_deletion_of_the_contact_and_more_than_a_year(pool: Pool) -> None:
    from twisted.internet import reactor

    rig = BroadcastRig(pool, reactor)
    await rig.start()
    await rig.contact("ada@example.net")
    broadcast = await rig.send()
    await rig.fanout.run()
    link = await rig.links.make(BASE, Source(ACCOUNT, broadcast_id=broadcast), "ada@example.net")
    await rig.pool.run("DELETE FROM contacts")
    await rig.pool.run("DELETE FROM queue")
    rig.clock.advance(2)
    await rig.fanout.run()
    assert (await rig.get(broadcast)).status == "sent"

    old = "1 " + "A" * 43 + "="
    assert (await rotation.reencrypt(pool, Encryption.read(f"{old}\n2 {'B' * 43}=", "the test"))).done == 1
    clock = Clock()
    clock.advance((NOW + timedelta(days=400)).timestamp())
    await RetentionSweep(pool, clock, Retention()).sweep()
    assert not await pool.rows("SELECT FROM broadcast_recipients")

    keys = AudienceKeys(pool, Encryption.read("2 " + "B" * 43 + "=", "the test"))  # a new process, without the old key
    found = await UnsubscribeLinks(keys).read(link.partition("=")[2])
    assert found is not None and found.source.broadcast_id == broadcast
    assert await Preferences(pool, clock).unsubscribe(ACCOUNT, found.hash, None, By("one_click", {}))
    again = await rig.contact("ADA@example.net")
    assert again and found.hash == (await keys.of(ACCOUNT)).hash("Ada@example.net")
    assert await pool.rows("SELECT hash FROM unsubscribes") == [(found.hash,)]
