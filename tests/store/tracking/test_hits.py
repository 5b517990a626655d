"""Opens and clicks in the tables: each is an event, the first of an email is unique, and what programs do is counted apart."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.outcome import Delivered
from mailsvc.store.events.rollups import Rollups, Wanted
from mailsvc.store.ids import uuid7
from mailsvc.store.logs.retention import KINDS, Retention
from mailsvc.store.mail.values import Personal
from mailsvc.store.postgres.errors import Conflict
from mailsvc.store.tracking.hits import Hits, NewHit, target_of
from tests.store.fixtures import ACCOUNT, DAY, DOMAIN, NOW, OTHER, StoreRig, email, together

URL, OTHER_URL = "https://example.com/a", "https://example.com/b"
SECOND = timedelta(seconds=1)


def hit(email_id: UUID, url: str | None = None, **changes: Any) -> NewHit:
    return attrs.evolve(NewHit(ACCOUNT, email_id, uuid7(NOW.timestamp()), NOW, url, "GET", "192.0.2.0", "Mozilla/5.0 (X11)"), **changes)


async def stored(store: StoreRig, *hits: NewHit) -> None:
    found = Hits(store.pool)
    facts = await found.facts({(each.account_id, each.email_id) for each in hits})
    await found.write(
        [attrs.evolve(each, event_id=uuid7(NOW.timestamp())) for each in hits if (each.account_id, each.email_id) in facts], facts
    )


async def counts(store: StoreRig, **wanted: Any) -> dict[str, int]:
    while await store.ledger.number(1000):
        pass
    types = [f"email.{kind}{end}" for kind in ("opened", "clicked") for end in ("", ".machine", ".unique", ".unique.people")]
    question = Wanted(NOW - DAY, NOW + DAY, "day", "UTC", types, **wanted)
    found: Counter[str] = Counter()
    for count in await Rollups(store.pool).counts(ACCOUNT, question):
        if count.type in types:
            found[count.type.removeprefix("email.")] += count.count
    return dict(found)


@pytest_twisted.ensureDeferred
async def test_each_is_an_event_and_the_first_is_unique(store: StoreRig) -> None:
    mail = email(lease=store.lease)
    await store.accept(mail)
    await store.settle(mail, Delivered("250"))
    opened, clicked = hit(mail.email_id), hit(mail.email_id, URL)
    await stored(store, attrs.evolve(opened, machine="apple_privacy"), clicked, clicked)
    await stored(store, opened, opened, attrs.evolve(clicked, url=OTHER_URL, machine="soon"))
    assert Counter(await store.events(mail))["email.opened", None] == 3
    expected = {"opened": 2, "opened.machine": 1, "opened.unique": 1, "opened.unique.people": 1}
    expected |= {"clicked": 2, "clicked.machine": 1, "clicked.unique": 1, "clicked.unique.people": 1}
    assert await counts(store) == expected
    assert await counts(store, emails=[mail.email_id]) == expected
    rows = await store.pool.rows("SELECT kind, url, count, people FROM hits ORDER BY 1, 2", ())
    assert rows == [("clicked", None, 3, 2), ("link", URL, 2, 2), ("link", OTHER_URL, 1, 0), ("opened", None, 3, 2)]


@pytest_twisted.ensureDeferred
async def test_programs_make_an_email_unique_but_not_for_people(store: StoreRig) -> None:
    mail = email(lease=store.lease)
    await store.accept(mail)
    await store.settle(mail, Delivered("250"))
    await stored(store, hit(mail.email_id, machine="scanner"))
    assert await counts(store) == {"opened.machine": 1, "opened.unique": 1}


@pytest_twisted.ensureDeferred
async def test_several_processes_count_the_first_once(store: StoreRig) -> None:
    mails = [email(lease=store.lease) for _ in range(20)]
    await store.accept(*mails)
    for mail in mails:
        await store.settle(mail, Delivered("250"))
    batch = [hit(mail.email_id, url) for mail in mails for url in (None, URL, OTHER_URL)]
    await together(*(stored(store, *batch[:: 1 if n % 2 else -1]) for n in range(6)))
    assert await counts(store) == {
        "opened": 120, "opened.unique": 20, "opened.unique.people": 20, "clicked": 240, "clicked.unique": 20, "clicked.unique.people": 20,
    }  # fmt: skip


@pytest_twisted.ensureDeferred
async def test_facts_are_of_the_account_s_own_emails(store: StoreRig) -> None:
    mail, foreign = email(lease=store.lease), email(account=OTHER, lease=store.lease)
    await store.accept(mail, foreign)
    await store.settle(mail, Delivered("250"))
    await store.settle(foreign, Delivered("250"))
    facts = await Hits(store.pool).facts([(ACCOUNT, mail.email_id), (ACCOUNT, foreign.email_id), (ACCOUNT, UUID(int=7))])
    assert [(key, each.domain_id, each.delivered_at, each.hits) for key, each in facts.items()] == [
        ((ACCOUNT, mail.email_id), DOMAIN, NOW, 0)
    ]
    await stored(store, hit(mail.email_id), hit(mail.email_id, URL))
    facts = await Hits(store.pool).facts([(ACCOUNT, mail.email_id)])
    assert [each.hits for each in facts.values()] == [2]


@pytest_twisted.ensureDeferred
async def test_emails_of_an_account_that_has_left_for_another_cell_count_as_deleted(store: StoreRig) -> None:
    mail = email()
    await store.accept(mail)
    key = (ACCOUNT, mail.email_id)
    await store.pool.run("INSERT INTO account_moves (account_id, phase, cell, begun_at) VALUES (%s, 'leaving', 'blue', now())", (ACCOUNT,))
    assert await Hits(store.pool).facts([key])
    await store.pool.run("UPDATE account_moves SET phase = 'left'")
    assert not await Hits(store.pool).facts([key])


@pytest_twisted.ensureDeferred
async def test_links_of_a_broadcast(store: StoreRig) -> None:
    broadcast = UUID(int=0xB1)
    first, second = (email(lease=store.lease, personal=Personal(broadcast, UUID(int=n), {}, 100)) for n in (1, 2))
    await store.accept(first, second)
    for mail in (first, second):
        await store.settle(mail, Delivered("250"))
    await stored(store, hit(first.email_id, URL), hit(first.email_id, URL), hit(second.email_id, URL, machine="soon"), hit(second.email_id))
    await stored(store, hit(second.email_id, URL), hit(second.email_id, OTHER_URL))
    columns = "target, url, clicks, unique_clicks, people_clicks, unique_people"
    rows = await store.pool.rows(f"SELECT {columns} FROM broadcast_links WHERE broadcast_id = %s ORDER BY url", (broadcast,))
    assert rows == [(target_of(URL), URL, 4, 2, 3, 2), (target_of(OTHER_URL), OTHER_URL, 1, 1, 1, 1)]


@pytest_twisted.ensureDeferred
async def test_a_batch_is_stored_once(store: StoreRig) -> None:
    mail = email(lease=store.lease)
    await store.accept(mail)
    await store.settle(mail, Delivered("250"))
    found, batch = Hits(store.pool), [hit(mail.email_id), hit(mail.email_id, URL)]
    facts = await found.facts([(ACCOUNT, mail.email_id)])
    await found.write(batch, facts)
    with pytest.raises(Conflict):
        await found.write(batch, facts)
    assert await counts(store) == {"opened": 1, "clicked": 1} | {
        f"{kind}.unique{end}": 1 for kind in ("opened", "clicked") for end in ("", ".people")
    }


@pytest_twisted.ensureDeferred
async def test_they_go_with_their_email(store: StoreRig) -> None:
    mail = email(lease=store.lease)
    await store.accept(mail)
    await store.settle(mail, Delivered("250"))
    await stored(store, hit(mail.email_id), hit(mail.email_id, URL))
    await counts(store)
    retention = Retention(store.pool)
    await retention.sweep_account(ACCOUNT, {"emails": 1}, NOW)
    assert await store.count("hits") == 3
    await retention.sweep_account(ACCOUNT, {"emails": 1}, NOW + 2 * DAY)
    assert [await store.count(table) for table in ("hits", "events", "emails")] == [0, 0, 0]
    assert "hits" in KINDS["emails"].drops
    await stored(store, hit(mail.email_id))  # changes nothing
    assert await store.count("events") == 0
