"""Opens and clicks wait in memory, are stored in batches and judged with what is known then."""

from __future__ import annotations

import tracemalloc
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.mail.tracking.token import Tracked
from mailsvc.store.postgres.errors import Conflict, DataRejected, Unavailable
from mailsvc.store.tracking.hits import Email, Facts, NewHit
from mailsvc.tracking import hits
from mailsvc.tracking.hits import HitRecorder, Seen
from tests.http.rig import ACCOUNT, NOW

AGENT = "Mozilla/5.0 (X11) Firefox/140.0"


class Store:
    """Knows all emails but those in `gone`. `failures` are raised by the next writes; `stored` says what happens before."""

    def __init__(self) -> None:
        self.batches: list[list[NewHit]] = []
        self.failures: list[Exception] = []
        self.gone: set[UUID] = set()
        self.bad: dict[UUID, Exception] = {}  # by email
        self.facts_of = Facts(UUID(int=5), None, NOW - timedelta(hours=1), 0, ("ada@example.net", "bob@example.net"))
        self.objected: set[tuple[UUID, str]] = set()

    async def facts(self, emails: Collection[Email]) -> Mapping[Email, Facts]:
        return {email: self.facts_of for email in emails if email[1] not in self.gone}

    async def among(self, people: Collection[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
        return self.objected & set(people)

    async def write(self, found: Sequence[NewHit], facts: Mapping[Email, Facts]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        for hit in found:
            if hit.email_id in self.bad:
                raise self.bad[hit.email_id]
        self.batches.append(list(found))

    @property
    def hits(self) -> list[NewHit]:
        return [hit for batch in self.batches for hit in batch]


def seen(email: int = 1, url: str | None = None, seconds: float = 0, **changes: Any) -> Seen:
    tracked = Tracked(ACCOUNT, UUID(int=email), 0, 0, url)
    return Seen(tracked, NOW + timedelta(seconds=seconds), **{"method": "GET", "address": "192.0.2.77", "agent": AGENT} | changes)


def recorder(store: Any, most: int = 1000, **options: Any) -> HitRecorder:
    return HitRecorder(store, store, Clock(), lambda: None, most, **options)


@pytest_twisted.ensureDeferred
async def test_they_are_stored_in_batches() -> None:
    store, woken = Store(), []
    collected = HitRecorder(store, store, Clock(), lambda: woken.append(1), 1000)  # type: ignore[arg-type]
    for n in range(450):
        collected.add(seen(n))
    assert len(collected) == 450
    await collected.store_pending()
    assert [len(batch) for batch in store.batches] == [100, 100, 100, 100, 50]
    assert (len(collected), len(woken), collected.recorded) == (0, 5, {("opened", "person"): 450})
    first = store.hits[0]
    assert (first.kind, first.url, first.address, first.machine, first.at) == ("opened", None, "192.0.2.0", None, NOW)


@pytest_twisted.ensureDeferred
async def test_those_beyond_the_limit_are_counted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    collected = recorder(Store(), 3)
    for _ in range(5):
        collected.add(seen())
    assert (len(collected), collected.dropped) == (3, {"full": 2})
    monkeypatch.setattr(hits, "MOST_BYTES", 2500)
    bytes_limited = recorder(Store())
    for _ in range(5):
        bytes_limited.add(seen(url="https://example.com/" + "x" * 1000))
    assert (len(bytes_limited), bytes_limited.dropped) == (1, {"full": 4})
    await bytes_limited.store_pending()
    bytes_limited.add(seen(url="https://example.com/" + "x" * 1000))
    assert len(bytes_limited) == 1


@pytest_twisted.ensureDeferred
async def test_one_email_leaves_room_for_others() -> None:
    collected = recorder(Store())
    for _ in range(600):
        collected.add(seen(1))
    collected.add(seen(2))
    assert (len(collected), collected.dropped) == (501, {"repeated": 100})
    await collected.store_pending()
    assert not collected._by_email
    collected.add(seen(1))
    assert len(collected) == 1


@pytest_twisted.ensureDeferred
async def test_nothing_is_lost_or_stored_twice_while_the_database_is_down() -> None:
    store = Store()
    collected = recorder(store)
    collected.add(seen(1))
    store.failures = [Unavailable("down", unknown=True)]
    with pytest.raises(Unavailable):
        await collected.store_pending()
    [first] = [each.id for each in collected._taken]
    collected.add(seen(2))
    assert len(collected) == 2
    store.failures = [Conflict("events_pkey", "events", "23505")]  # the first batch had been stored
    await collected.store_pending()
    assert [hit.email_id for hit in store.hits] == [UUID(int=2)]
    assert (len(collected), collected.dropped) == (0, {})
    assert first != store.hits[0].event_id


@pytest_twisted.ensureDeferred
async def test_the_same_batch_is_stored_after_a_failure() -> None:
    store = Store()
    collected = recorder(store)
    collected.add(seen(1))
    store.failures = [Unavailable("down")]
    with pytest.raises(Unavailable):
        await collected.store_pending()
    ids = [each.id for each in collected._taken]
    collected.add(seen(2))
    await collected.store_pending()
    assert [len(batch) for batch in store.batches] == [1, 1]
    assert [hit.event_id for hit in store.batches[0]] == ids


@pytest.mark.parametrize("failure", [DataRejected("22P05"), ValueError("not expected"), Conflict(None, "events", "23503")])
@pytest_twisted.ensureDeferred
async def test_one_that_is_refused_does_not_stop_the_others(failure: Exception) -> None:
    store = Store()
    store.bad = {UUID(int=7): failure}
    collected = recorder(store)
    for n in range(101):
        collected.add(seen(n))
    await collected.store_pending()
    assert sorted(hit.email_id.int for hit in store.hits) == [n for n in range(101) if n != 7]
    assert (len(collected), collected.dropped) == (0, {"failed": 1})


@pytest_twisted.ensureDeferred
async def test_a_batch_that_was_stored_in_part_is_completed() -> None:
    store = Store()
    store.bad = {UUID(int=1): Conflict("events_pkey", "events", "23505")}
    collected = recorder(store)
    for n in range(3):
        collected.add(seen(n))
    await collected.store_pending()
    assert sorted(hit.email_id.int for hit in store.hits) == [0, 2]
    assert (len(collected), collected.dropped) == (0, {})


@pytest_twisted.ensureDeferred
async def test_deleted_emails_and_endless_repeats_are_not_stored() -> None:
    store = Store()
    store.gone = {UUID(int=2)}
    collected = recorder(store)
    collected.add(seen(1))
    collected.add(seen(2))
    await collected.store_pending()
    assert (len(store.hits), collected.dropped["deleted"]) == (1, 1)
    store.facts_of = attrs.evolve(store.facts_of, hits=10_000)
    collected.add(seen(1))
    await collected.store_pending()
    assert (len(store.hits), collected.dropped["repeated"]) == (1, 1)


@pytest_twisted.ensureDeferred
async def test_nothing_is_recorded_of_people_who_objected_since() -> None:
    store = Store()
    store.objected = {(UUID(int=0xB2), "ada@example.net")}  # another account's contact
    collected = recorder(store)
    collected.add(seen(1))
    await collected.store_pending()
    assert len(store.hits) == 1
    store.objected = {(ACCOUNT, "bob@example.net")}
    collected.add(seen(1))
    await collected.store_pending()
    assert (len(store.hits), collected.dropped) == (1, {"objected": 1})


@pytest_twisted.ensureDeferred
async def test_programs_are_recognised_by_the_time_and_by_other_clicks() -> None:
    store = Store()
    collected = recorder(store)
    for n in range(4):
        collected.add(seen(1, f"https://example.com/{n}", n / 2))
    for n in range(4):  # the same link, or slower
        collected.add(seen(2, "https://example.com/", n / 2))
        collected.add(seen(3, f"https://example.com/{n}", 5 * n))
    collected.add(seen(1))
    await collected.store_pending()
    assert [(hit.email_id.int, hit.machine) for hit in store.hits if hit.machine] == [(1, "burst")] * 4
    store.facts_of = attrs.evolve(store.facts_of, delivered_at=NOW - timedelta(seconds=3))
    collected.add(seen(4, "https://example.com/"))
    collected.add(seen(4))
    await collected.store_pending()
    assert [hit.machine for hit in store.hits[-2:]] == ["soon", None]


@pytest_twisted.ensureDeferred
async def test_addresses_are_stored_whole_if_the_operator_wants() -> None:
    store = Store()
    collected = recorder(store, truncate=False)
    collected.add(seen(1))
    collected.add(seen(1, address="2001:db8:1:2::/64"))
    await collected.store_pending()
    assert [hit.address for hit in store.hits] == ["192.0.2.77", "2001:db8:1:2::"]


@pytest_twisted.ensureDeferred
async def test_an_account_can_refuse_to_have_them_or_whole_addresses() -> None:
    store = Store()
    store.facts_of = attrs.evolve(store.facts_of, minimized=["addresses"])
    collected = recorder(store, truncate=False)
    collected.add(seen())
    await collected.store_pending()
    assert [hit.address for hit in store.hits] == ["192.0.2.0"]
    store.facts_of = attrs.evolve(store.facts_of, minimized=["tracking"])
    collected.add(seen())
    await collected.store_pending()
    assert len(store.hits) == 1 and collected.dropped == {"off": 1}


@pytest_twisted.ensureDeferred
async def test_what_is_remembered_of_an_email_is_small_however_many_links_are_followed() -> None:
    collected = recorder(Store(), 1_000_000)
    tracemalloc.start()
    for email in range(20):
        for number in range(400):
            collected.add(seen(email, f"https://example.com/{number:04}{'x' * 1900}"))
        await collected.store_pending()
        collected.stored.batches.clear()  # type: ignore[attr-defined]
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(collected) == 0 and kept < 1_000_000
