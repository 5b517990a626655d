"""Contacts: what creating, changing and deleting one does, and that nobody is subscribed again without their own doing."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from mailsvc.store.audience.confirmations import Request, request
from mailsvc.store.audience.contacts import lock
from mailsvc.store.audience.values import Choice, NewContact, Unknown, WrongProperty
from mailsvc.store.postgres.pool import Transaction
from tests.store.audience.rig import API, CONFIRMED, NOW, PAGE, WORDING, Audience
from tests.store.fixtures import together

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest_twisted.ensureDeferred
async def test_same_address_is_the_same_contact_however_it_is_written(audience: Audience) -> None:
    first = await audience.add("Ada@Example.net", first_name="Ada", last_name="Lovelace")
    second = await audience.add("ada@example.NET", first_name="Augusta")
    assert second.id == first.id
    assert (second.email, second.first_name, second.last_name) == ("Ada@Example.net", "Augusta", "Lovelace")
    assert [kind for kind, _ in await audience.events()] == ["contact.created", "contact.updated"]


@pytest_twisted.ensureDeferred
async def test_concurrent_creations_make_one_contact(audience: Audience) -> None:
    for address in (f"ada{number}@example.net" for number in range(100)):  # the order of the unique indexes matters in few of them
        found = await together(*(audience.add(address, first_name=str(n)) for n in range(8)))
        assert len({contact.id for contact in found}) == 1
    assert [kind for kind, _ in await audience.events()].count("contact.created") == 100


@pytest_twisted.ensureDeferred
async def test_event_has_the_segments(audience: Audience) -> None:
    one, two = await audience.segments.add(audience.account, "one"), await audience.segments.add(audience.account, "two")
    contact = await audience.add(segments=[one.id, two.id], first_name="Ada")
    [(kind, data)] = await audience.events()
    assert kind == "contact.created"
    assert data == {
        "id": str(contact.id), "audience_id": str(one.id), "segment_ids": [str(one.id), str(two.id)], "email": "ada@example.net",
        "first_name": "Ada", "last_name": None, "unsubscribed": False,
        "created_at": NOW.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "updated_at": NOW.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }  # fmt: skip
    await audience.contacts.delete(audience.account, contact.id)
    assert (await audience.events())[-1] == ("contact.deleted", data)


@pytest_twisted.ensureDeferred
async def test_change_without_effect_has_no_event(audience: Audience) -> None:
    await audience.add(first_name="Ada")
    await audience.contacts.update(audience.account, "ada@example.net", {"first_name": "Ada"}, API)
    await audience.add(first_name="Ada", unsubscribed=False)
    assert [kind for kind, _ in await audience.events()] == ["contact.created"]


@pytest_twisted.ensureDeferred
async def test_creating_again_never_subscribes(audience: Audience) -> None:
    topic = await audience.topics.add(audience.account, "News", True)
    contact = await audience.add(unsubscribed=True)
    await audience.choose(contact.id, topic.id, False)
    again = await audience.add(unsubscribed=False, topics=[Choice(topic.id, True)])
    assert again.unsubscribed
    assert await audience.chosen(contact) == {topic.id: False}


@pytest_twisted.ensureDeferred
async def test_update_subscribes_again_because_it_is_explicit(audience: Audience) -> None:
    contact = await audience.add(unsubscribed=True)
    updated = await audience.contacts.update(audience.account, contact.id, {"unsubscribed": False}, API)
    assert updated is not None
    assert not updated.unsubscribed
    assert await audience.acts() == [("all", "subscribed", "api"), ("all", "unsubscribed", "api")]


@pytest_twisted.ensureDeferred
async def test_unsubscribe_outlives_the_contact(audience: Audience) -> None:
    topic = await audience.topics.add(audience.account, "News", True)
    other = await audience.topics.add(audience.account, "Other", True)
    contact = await audience.add()
    await audience.preferences.unsubscribe(audience.account, contact.hash, None, PAGE)
    await audience.preferences.unsubscribe(audience.account, contact.hash, topic.id, PAGE)
    await audience.contacts.delete(audience.account, contact.id)
    again = await audience.add("ADA@example.net", topics=[Choice(topic.id, True), Choice(other.id, True)])
    assert again.id != contact.id
    assert again.unsubscribed
    assert await audience.chosen(again) == {topic.id: False, other.id: True}
    # By the account it stays remembered, until the person subscribes.
    await audience.contacts.update(audience.account, again.id, {"unsubscribed": False}, API)
    await audience.contacts.delete(audience.account, again.id)
    assert (await audience.add()).unsubscribed
    await audience.preferences.change(audience.account, contact.hash, [Choice(topic.id, True)], False, PAGE)
    await audience.contacts.delete(audience.account, "ada@example.net")
    last = await audience.add()
    assert not last.unsubscribed
    assert await audience.chosen(last) == {}


@pytest_twisted.ensureDeferred
async def test_unsubscribe_by_the_account_outlives_the_contact(audience: Audience) -> None:
    topic = await audience.topics.add(audience.account, "News", True)
    contact = await audience.add(unsubscribed=True, topics=[Choice(topic.id, False)])
    await audience.contacts.delete(audience.account, contact.id)
    again = await audience.add()
    assert again.unsubscribed
    assert await audience.chosen(again) == {topic.id: False}


@pytest_twisted.ensureDeferred
async def test_unsubscribe_finds_a_contact_that_was_deleted_and_added_again(audience: Audience) -> None:
    """The link in an old email has the hash."""
    contact = await audience.add()
    await audience.contacts.delete(audience.account, contact.id)
    await audience.add()
    assert await audience.preferences.unsubscribe(audience.account, contact.hash, None, PAGE)
    assert not await audience.preferences.unsubscribe(audience.account, contact.hash, None, PAGE)
    assert (await audience.find()).unsubscribed


@pytest_twisted.ensureDeferred
async def test_unsubscribe_of_an_address_that_is_no_contact_is_remembered(audience: Audience) -> None:
    topic = await audience.topics.add(audience.account, "News", True, public=True)
    hash = await audience.hash()
    assert await audience.preferences.unsubscribe(audience.account, hash, topic.id, PAGE)
    assert not await audience.preferences.unsubscribe(audience.account, hash, topic.id, PAGE)
    standing = await audience.preferences.standing(audience.account, hash)
    assert (standing.contact, standing.unsubscribed) == (None, False)
    assert [(each.id, each.subscribed) for each in standing.topics] == [(topic.id, False)]
    assert await audience.chosen(await audience.add()) == {topic.id: False}
    assert await audience.acts() == [("topic", "unsubscribed", "preferences")]


@pytest_twisted.ensureDeferred
async def test_unsubscribe_is_not_missed_by_a_concurrent_creation(audience: Audience) -> None:
    hash = await audience.hash()
    for n in range(20):
        first, second = audience.add(), audience.preferences.unsubscribe(audience.account, hash, None, PAGE)
        await together(*((first, second) if n % 2 else (second, first)))
        assert (await audience.find()).unsubscribed
        await audience.preferences.change(audience.account, hash, (), False, PAGE)
        await audience.contacts.delete(audience.account, "ada@example.net")


@pytest_twisted.ensureDeferred
async def test_hashes_of_accounts_differ_and_hold_no_address(audience: Audience) -> None:
    other = await Audience.of(audience.pool)
    assert await audience.hash() != await other.hash()
    contact = await audience.add()
    await audience.preferences.unsubscribe(audience.account, contact.hash, None, PAGE)
    await audience.contacts.delete(audience.account, contact.id)
    for table in ("contacts", "unsubscribes", "consents", "contact_segments", "contact_topics", "confirmations", "consent_texts"):
        assert "ada@" not in repr(await audience.pool.rows(f"SELECT to_jsonb(t) FROM {table} t")), table
    await other.contacts.create(other.account, NewContact("ada@example.net"), API)
    assert not (await other.find()).unsubscribed


@pytest_twisted.ensureDeferred
async def test_nothing_is_stored_if_a_segment_topic_or_property_is_unknown(audience: Audience) -> None:
    segment = await audience.segments.add(audience.account, "one")
    await audience.properties.add(audience.account, "seats", "number", None)
    with pytest.raises(Unknown, match="segment"):
        await audience.add(segments=[segment.id, UUID(int=1)])
    with pytest.raises(Unknown, match="topic"):
        await audience.add(topics=[Choice(UUID(int=1), True)])
    with pytest.raises(WrongProperty, match="not a contact property"):
        await audience.add(properties={"company": "Acme"})
    with pytest.raises(WrongProperty, match="must be a number"):
        await audience.add(properties={"seats": "twelve"})
    await audience.segments.remove(audience.account, segment.id)
    with pytest.raises(Unknown, match="segment"):
        await audience.add(segments=[segment.id])
    assert await audience.pool.rows("SELECT FROM contacts") == []


@pytest_twisted.ensureDeferred
async def test_values_of_a_deleted_property_do_not_come_back(audience: Audience) -> None:
    before = await audience.properties.add(audience.account, "plan", "string", None)
    contact = await audience.add(
        properties={
            "plan": "free",
        }
    )
    assert contact.properties == {str(before.number): "free"}
    await audience.properties.remove(audience.account, before.id)
    after = await audience.properties.add(audience.account, "plan", "string", None)
    assert str(after.number) not in (await audience.find()).properties


@pytest_twisted.ensureDeferred
async def test_double_opt_in_of_a_segment(audience: Audience) -> None:
    segment = await audience.segments.add(audience.account, "Newsletter", WORDING)
    contact = await audience.add(segments=[segment.id])
    assert await audience.members(segment.id) == set()
    [asked] = await audience.confirmations.due(NOW)
    assert (asked.contact_id, asked.kind, asked.target_id, asked.name, asked.wording) == (
        contact.id, "segment", segment.id, "Newsletter", WORDING,
    )  # fmt: skip
    await audience.contacts.join(audience.account, contact.id, segment.id, API)
    assert len(await audience.confirmations.due(NOW)) == 1, "nobody is asked twice"
    confirmed = await audience.preferences.confirm(audience.account, asked.id, CONFIRMED)
    assert confirmed is not None
    assert await audience.members(segment.id) == {contact.id}
    assert await audience.acts() == [("segment", "subscribed", "confirmation"), ("segment", "requested", "api")]
    [newest, _] = await audience.evidence.of(audience.account, contact.hash)
    assert (newest.text, newest.details, newest.target_name, newest.at) == (CONFIRMED.text, {"ip": "192.0.2.1"}, "Newsletter", NOW)


@pytest_twisted.ensureDeferred
async def test_double_opt_in_of_a_topic(audience: Audience) -> None:
    topic = await audience.topics.add(audience.account, "News", False, confirmation=WORDING)
    contact = await audience.add(topics=[Choice(topic.id, True)], unsubscribed=True)
    assert await audience.chosen(contact) == {}
    [asked] = await audience.confirmations.due(NOW)
    await audience.preferences.confirm(audience.account, asked.id, CONFIRMED)
    assert await audience.chosen(contact) == {topic.id: True}
    assert not (await audience.find()).unsubscribed, "who confirms wants the mail"
    # Leaving and joining again asks again.
    await audience.choose(contact.id, topic.id, False)
    await audience.choose(contact.id, topic.id, True)
    assert await audience.chosen(contact) == {topic.id: False}
    assert len(await audience.confirmations.due(NOW)) == 1


@pytest_twisted.ensureDeferred
async def test_confirmation_expires_and_can_be_requested_again(audience: Audience) -> None:
    segment = await audience.segments.add(audience.account, "Newsletter", WORDING)
    contact = await audience.add(segments=[segment.id])
    [first] = await audience.confirmations.due(NOW)
    audience.clock.advance(8 * 86400)
    await audience.preferences.confirm(audience.account, first.id, CONFIRMED)
    assert await audience.members(segment.id) == set()
    await audience.contacts.join(audience.account, contact.id, segment.id, API)
    assert await audience.preferences.confirm(audience.account, first.id, CONFIRMED) is None
    [second] = await audience.confirmations.due(first.expires_at.replace(year=2100))
    await audience.preferences.confirm(audience.account, second.id, CONFIRMED)
    assert await audience.members(segment.id) == {contact.id}


@pytest_twisted.ensureDeferred
async def test_confirming_waits_for_a_contact_that_is_being_changed(audience: Audience) -> None:
    """Both locked what the other one needed, and the person got an error."""
    segment = await audience.segments.add(audience.account, "Newsletter", WORDING)
    contact = await audience.add(segments=[segment.id])
    [asked] = await audience.confirmations.due(NOW)

    async def change(tx: Transaction) -> Deferred[Request | None]:
        await lock(tx, audience.account, contact.id)
        confirming = Deferred.fromCoroutine(audience.preferences.confirm(audience.account, asked.id, CONFIRMED))
        while not confirming.called and await audience.pool.rows(WAITING) == [(0,)]:
            pass
        await request(tx, audience.account, contact.id, "segment", segment.id, NOW, timedelta(days=7))
        return confirming

    assert await (await audience.pool.transact(change)) is not None
    assert await audience.members(segment.id) == {contact.id}


@pytest_twisted.ensureDeferred
async def test_choices_report_only_what_changed(audience: Audience) -> None:
    one = await audience.topics.add(audience.account, "one", True)
    two = await audience.topics.add(audience.account, "two", False)
    contact = await audience.add(topics=[Choice(one.id, False)])
    await audience.contacts.choose(audience.account, contact.id, [Choice(one.id, False), Choice(two.id, True)], API)
    changes = [data for kind, data in await audience.events() if kind == "contact.topics.updated"]
    assert changes == [
        {"email": "ada@example.net", "topics": [{"id": str(one.id), "subscription": "opt_out"}]},
        {"email": "ada@example.net", "topics": [{"id": str(two.id), "subscription": "opt_in"}]},
    ]


@pytest_twisted.ensureDeferred
async def test_private_topics_are_shown_to_subscribers_only(audience: Audience) -> None:
    public = await audience.topics.add(audience.account, "public", False, public=True)
    private = await audience.topics.add(audience.account, "private", False)
    contact = await audience.add()
    shown = (await audience.preferences.standing(audience.account, contact.hash)).topics
    assert [each.id for each in shown] == [public.id]
    await audience.choose(contact.id, private.id, True)
    shown = (await audience.preferences.standing(audience.account, contact.hash)).topics
    assert [(each.id, each.subscribed) for each in shown] == [(public.id, False), (private.id, True)]
