"""The pages of contacts: the list, adding one, and the page of a contact with its changes and its history."""

from __future__ import annotations

from urllib.parse import quote
from uuid import UUID

import pytest_twisted

from mailsvc.intake import Admitted, Content, Incoming
from mailsvc.mail.address import parse_mailbox
from mailsvc.store.audience.values import By, NewContact
from mailsvc.store.paging import ALL
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import Browser, DashboardRig
from tests.store.audience.rig import WORDING

AUDIENCE = "/dashboard/audience"
API = By("api")


async def started(pool: Pool) -> tuple[DashboardRig, UUID, Browser]:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id, "developer")
    ann = await rig.inside("ann@example.com")
    await ann.get(AUDIENCE)
    return rig, account_id, ann


async def added(rig: DashboardRig, account_id: UUID, email: str, **more: object) -> UUID:
    return (await rig.assembly.audience.contacts.create(account_id, NewContact(email, **more), API)).id  # type: ignore[arg-type]


@pytest_twisted.ensureDeferred
async def test_contacts_are_found_by_part_of_an_address_or_name_by_segment_and_by_status(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    assert "No contacts yet" in (await ann.get(AUDIENCE)).text
    audience = rig.assembly.audience
    friends = await audience.segments.add(account_id, "Friends & <family>")
    await added(rig, account_id, "ada@example.net", first_name="Ada", last_name="Lovelace", segments=[friends.id])
    await added(rig, account_id, "bob@example.net", unsubscribed=True)
    await added(rig, account_id, "carl@elsewhere.example", segments=[friends.id], unsubscribed=True)
    other = await rig.account("Other")
    await added(rig, other, "eve@example.net")
    foreign = await audience.segments.add(other, "Theirs")

    async def shown(query: str) -> set[str]:
        page = await ann.get(f"{AUDIENCE}?{query}")
        assert page.status == 200
        return {name for name in ("ada", "bob", "carl", "eve") if f">{name}@" in page.text}

    assert await shown("") == {"ada", "bob", "carl"}
    assert await shown("q=EXAMPLE.net") == {"ada", "bob"}
    assert await shown("q=love") == {"ada"}
    assert await shown("q=carl@elsewhere.example") == {"carl"}
    assert await shown(f"segment={friends.id}") == {"ada", "carl"}
    assert await shown("state=unsubscribed") == {"bob", "carl"}
    assert await shown("state=subscribed") == {"ada"}
    assert await shown(f"segment={friends.id}&state=unsubscribed&q=carl") == {"carl"}
    assert await shown("q=nobody") == set()
    await added(rig, account_id, "zoe@xn--bcher-kva.example", first_name="Éva")
    for text in ("zoe@bücher.example", "bücher.example", "éva"):
        assert ">zoe@" in (await ann.get(f"{AUDIENCE}?q={quote(text)}")).text, text
    assert (await ann.get(f"{AUDIENCE}?segment={foreign.id}")).status == 404
    assert "Friends &amp; &lt;family&gt;" in (await ann.get(AUDIENCE)).text


@pytest_twisted.ensureDeferred
async def test_the_list_has_pages_and_a_search_goes_on_where_it_stopped(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    for number in range(53):
        await added(rig, account_id, f"n{number:02}@example.net")
    first = await ann.get(AUDIENCE)
    assert first.text.count("n52@") and "n02@" not in first.text
    second = await ann.get(first.found(r'href="([^"]+)" rel="next"'))
    assert ">n02@" in second.text and ">n03@" not in second.text and 'rel="next"' not in second.text
    rig.assembly.audience.lists.searched = 5  # contacts that a search reads at a time
    assert ">n00@" in (await ann.get(f"{AUDIENCE}?q=N00@")).text  # by the beginning of the address
    stopped = await ann.get(f"{AUDIENCE}?q=00@e")
    assert "No results so far" in stopped.text
    for _ in range(11):
        if ">n00@" in stopped.text:
            break
        stopped = await ann.get(stopped.found(r'href="([^"]+)" rel="next"'))
    assert ">n00@" in stopped.text


@pytest_twisted.ensureDeferred
async def test_a_contact_is_added_once(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    segment = await rig.assembly.audience.segments.add(account_id, "Friends")
    wrong = await ann.post(f"{AUDIENCE}/new", {"email": "no address", "first_name": "x" * 256})
    assert wrong.status == 422 and "Enter a valid email address." in wrong.text and "This field can have at most 255" in wrong.text
    form = {"email": "Ada@example.net", "first_name": " Ada ", "segment": str(segment.id)}
    location = (await ann.post(f"{AUDIENCE}/new", form)).location
    page = await ann.get(location)
    assert "The contact was added." in page.text and 'value="Ada"' in page.text and ">Friends<" in page.text
    again = await ann.post(f"{AUDIENCE}/new", form)
    assert again.status == 422 and "already a contact" in again.text and location.partition("?")[0] in again.text
    contact = await rig.assembly.audience.contacts.get(account_id, "ada@example.net")
    assert contact is not None and ("contact saved", str(contact.id)) in await rig.audit(account_id)
    await rig.assembly.audience.segments.remove(account_id, segment.id)
    late = await ann.post(f"{AUDIENCE}/new", form | {"email": "bob@example.net"})
    assert late.status == 422 and "This segment no longer exists." in late.text
    assert await rig.assembly.audience.contacts.get(account_id, "bob@example.net") is None


@pytest_twisted.ensureDeferred
async def test_a_contact_is_changed_and_values_that_nobody_touched_stay(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    audience = rig.assembly.audience
    await audience.properties.add(account_id, "company", "string", None)
    await audience.properties.add(account_id, "note", "string", None)
    await audience.properties.add(account_id, "seats", "number", None)
    contact = await added(rig, account_id, "ada@example.net", first_name="Ada", properties={"note": "two\nlines ", "seats": 7})
    at = f"{AUDIENCE}/contacts/{contact}"
    page = await ann.get(at)
    assert "two\nlines </textarea>" in page.text
    form = {"first_name": "", "last_name": "King", "p:company": "Analytical <Ltd>", "p:note": "two\r\nlines ", "p:seats": "many"}
    wrong = await ann.post(f"{at}/change", form)
    assert wrong.status == 422 and "This value must be a number." in wrong.text and "Analytical &lt;Ltd&gt;" in wrong.text
    assert (await ann.post(f"{at}/change", form | {"p:seats": "12"})).query["done"] == "changed"
    found = await audience.contacts.get(account_id, contact)
    assert found is not None and (found.first_name, found.last_name) == (None, "King")
    assert sorted(map(str, found.properties.values())) == ["12", "Analytical <Ltd>", "two\nlines "]
    assert (await ann.post(f"{at}/change", {"p:company": ""})).status == 303
    found = await audience.contacts.get(account_id, contact)
    assert found is not None and len(found.properties) == 2


@pytest_twisted.ensureDeferred
async def test_subscriptions_topics_and_segments_of_a_contact_change_with_evidence(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    audience = rig.assembly.audience
    news = await audience.topics.add(account_id, "News", True)
    hints = await audience.topics.add(account_id, "Hints", False)
    friends = await audience.segments.add(account_id, "Friends")
    contact = await added(rig, account_id, "ada@example.net")
    at = f"{AUDIENCE}/contacts/{contact}"

    later = await audience.topics.add(account_id, "Later", True)  # not in the form that is sent
    form = {"offered": f"{news.id} {hints.id}", f"topic:{hints.id}": "on"}
    assert (await ann.post(f"{at}/topics", form)).query["done"] == "topics"
    topics, _ = await audience.lists.topics(account_id, contact, ALL)
    assert {each.name: each.subscribed for each in topics} == {"News": False, "Hints": True, "Later": True} and later
    assert (await ann.post(f"{at}/join", {"segment": str(friends.id)})).query["done"] == "joined"
    assert (await ann.post(f"{at}/leave", {"segment": str(friends.id)})).query["done"] == "left"
    assert (await ann.post(f"{at}/join", {"segment": str(UUID(int=7))})).status == 404
    assert (await ann.post(f"{at}/subscription", {"action": "unsubscribe"})).query["done"] == "unsubscribed"
    page = await ann.get(at)
    for sentence in ("Unsubscribed from everything", "Unsubscribed from topic “News”", "Subscribed to topic “Hints”", "192.0.2.1"):
        assert sentence in page.text, sentence
    assert (await ann.post(f"{at}/subscription", {"action": "subscribe"})).query["done"] == "subscribed"
    assert "Subscribed to everything" in (await ann.get(at)).text
    assert (await ann.post(f"{at}/delete")).location == f"{AUDIENCE}?done=deleted"
    assert (await ann.get(at)).status == 404 and (await ann.post(f"{at}/delete")).status == 404
    actions = [action for action, subject in await rig.audit(account_id) if subject == str(contact)]
    assert actions == [
        "topics of a contact changed", "contact added to a segment", "contact removed from a segment",
        "contact unsubscribed", "contact subscribed", "contact deleted",
    ]  # fmt: skip


@pytest_twisted.ensureDeferred
async def test_the_page_says_which_topics_the_contact_has_to_confirm(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    topic = await rig.assembly.audience.topics.add(account_id, "Hints", False, confirmation=WORDING)
    at = f"{AUDIENCE}/contacts/{await added(rig, account_id, 'ada@example.net')}"
    assert "Hints (asks for confirmation)" in (await ann.get(at)).text
    answer = await ann.post(f"{at}/topics", {"offered": str(topic.id), f"topic:{topic.id}": "on"})
    page = (await ann.get(answer.location)).text
    assert "Those that ask for confirmation take effect when the contact confirms them by email." in page


@pytest_twisted.ensureDeferred
async def test_the_page_shows_what_a_contact_received(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    await ann.post("/dashboard/domains", {"name": "acme.example", "region": "us-east-1"})
    await rig.assembly.domains.trust(account_id, "acme.example")
    contact = await added(rig, account_id, "bob@example.net")
    caller = Caller(account_id, None, "full_access", None, None)
    sent = {}
    for address in ("bob@example.net", "notbob@example.net"):
        incoming = Incoming(parse_mailbox("a@acme.example"), (parse_mailbox(address),), f"To {address}", Content(text="Hello."))
        match await rig.intake.submit(caller, [incoming]):
            case Admitted((UUID() as email_id,)):
                sent[address] = email_id
    await pool.run(
        "INSERT INTO broadcasts (account_id, id, name, sender, reply_to, subject, preview_text, status, created_at)"
        " VALUES (%s, %s, 'Spring news', 'a@acme.example', '{}', 'S', '', 'sent', now())",
        (account_id, UUID(int=5)),
    )
    values = (account_id, UUID(int=5), contact, sent["bob@example.net"])
    await pool.run(
        "INSERT INTO broadcast_recipients (account_id, broadcast_id, contact_id, email_id, marks) VALUES (%s, %s, %s, %s, 8)", values
    )
    page = await ann.get(f"{AUDIENCE}/contacts/{contact}")
    assert "To bob@example.net" in page.text and "To notbob@example.net" not in page.text
    assert "Spring news" in page.text and '<span class="badge warn">Unsubscribed</span>' in page.text
