"""The content filter sees what the first contact will get, before anybody gets it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from email import message_from_bytes, policy
from typing import Literal

import attrs
import pytest
import pytest_twisted

from mailsvc.broadcasts.fanout import POSTPONED, SCREENING
from mailsvc.broadcasts.sample import Sample
from mailsvc.policy import Refusal
from mailsvc.store.broadcasts.values import Broadcast
from mailsvc.store.postgres.pool import Pool
from tests.broadcasts.fixtures import ACCOUNT, BASE, NOW, BroadcastRig


@attrs.define
class Filter:
    """Answers with `refusal`; `asked` are the messages."""

    refusal: Refusal | None = None
    asked: list[Sample] = attrs.field(factory=list)

    async def __call__(self, found: Broadcast, sample: Sample) -> Refusal | None:
        self.asked.append(sample)
        return self.refusal


@pytest_twisted.async_yield_fixture
async def rig(pool: Pool) -> AsyncIterator[BroadcastRig]:
    from twisted.internet import reactor

    rig = BroadcastRig(pool, reactor)
    await rig.start()
    yield rig


@pytest_twisted.ensureDeferred
async def test_the_filter_sees_the_message_of_the_first_contact_once(rig: BroadcastRig) -> None:
    await rig.contact("ada@example.net", "Ada & Co")
    await rig.contact("bob@example.net")
    filter = Filter()
    await rig.send(preview_text="For {{{FIRST_NAME}}}")
    await rig.engine(filter).run()
    [sample] = filter.asked
    assert (sample.sender, sample.to) == ("news@example.com", "ada@example.net")
    message = message_from_bytes(sample.message, policy=policy.default)
    assert (message["Subject"], message["To"]) == ("Hi Ada & Co", "ada@example.net")
    html = message.get_body(("html",))
    assert html is not None and "Hi Ada &amp; Co" in html.get_content() and f'"{BASE}/unsubscribe"' in html.get_content()
    assert await rig.addresses() == ["ada@example.net", "bob@example.net"]


@pytest_twisted.ensureDeferred
async def test_a_refused_broadcast_fails_with_the_reason_and_nobody_gets_it(rig: BroadcastRig) -> None:
    await rig.contacts(3)
    id_ = await rig.send()
    await rig.engine(Filter(Refusal("filter", None, "The content filter refused this email. A bad link."))).run()
    found = await rig.get(id_)
    assert (found.status, found.reason) == ("failed", "The content filter refused this email. A bad link.")
    rig.clock.advance(1000)
    await rig.engine(Filter()).run()
    assert not await rig.addresses()


@pytest_twisted.ensureDeferred
async def test_a_postponed_broadcast_is_asked_about_again(rig: BroadcastRig) -> None:
    await rig.contacts(3)
    filter = Filter(Refusal("later", None, "The content filter is not available."))
    id_ = await rig.send()
    await rig.engine(filter).run()
    found = await rig.get(id_)
    assert (found.status, found.reason) == ("queued", "The content filter is not available.")
    assert found.next_at == NOW + timedelta(seconds=POSTPONED) and not await rig.addresses()
    filter.refusal = None
    rig.clock.advance(POSTPONED)
    await rig.engine(filter).run()
    found = await rig.get(id_)
    assert (found.queued, found.reason, len(filter.asked)) == (3, None, 2)


@pytest_twisted.ensureDeferred
async def test_an_empty_segment_is_checked_too(rig: BroadcastRig) -> None:
    filter = Filter()
    await rig.send()
    await rig.engine(filter).run()
    assert [sample.to for sample in filter.asked] == ["news@example.com"]


@attrs.define
class Meanwhile(Filter):
    """Runs `change` while it is asked the first time."""

    change: Callable[[], Awaitable[object]] | None = None

    async def __call__(self, found: Broadcast, sample: Sample) -> Refusal | None:
        change, self.change = self.change, None
        if change is not None:
            await change()
        return await Filter.__call__(self, found, sample)


@pytest.mark.parametrize("refused", [None, "later", "content"])
@pytest_twisted.ensureDeferred
async def test_a_process_that_hung_while_the_filter_was_asked_does_not_begin_again(
    rig: BroadcastRig, refused: Literal["later", "content"] | None
) -> None:
    await rig.contacts(5)
    id_, began = await rig.send(), list[Broadcast]()

    async def hang() -> None:
        rig.clock.advance(SCREENING + 1)
        await rig.engine(Filter(), ahead=2).run()  # another process takes over
        began.append(await rig.get(id_))
        rig.clock.advance(0.5)

    refusal = None if refused is None else Refusal(refused, None, "A bad link.")
    await rig.engine(Meanwhile(refusal, change=hang)).run()
    assert began[0].queued == 2
    assert await rig.get(id_) == began[0]


@pytest.mark.parametrize("changes", [{"subject": "Other"}, {"html": "<p>Other"}, {"text": "Other"}, {"sender": "other@example.com"}])
@pytest_twisted.ensureDeferred
async def test_a_broadcast_that_is_changed_while_the_filter_is_asked_is_filtered_again(rig: BroadcastRig, changes: dict[str, str]) -> None:
    await rig.contacts(3)
    id_ = await rig.schedule()
    filter = Meanwhile(change=lambda: rig.broadcasts.update(ACCOUNT, id_, changes))
    await rig.engine(filter).run()
    first, second = filter.asked
    assert first.message != second.message and (b"Other" in second.message or b"other@example.com" in second.message)
    found = await rig.get(id_)
    assert (found.status, found.queued, found.reason) == ("queued", 3, None)


@pytest_twisted.ensureDeferred
async def test_a_broadcast_that_is_made_incomplete_while_the_filter_is_asked_fails(rig: BroadcastRig) -> None:
    await rig.contacts(3)
    for changes, reason in (
        ({"html": None}, "The broadcast has no content."),
        ({"subject": " "}, "The subject is empty."),
        ({"sender": ""}, "The broadcast has no valid From address."),
        ({"sender": "a@unverified.test"}, "unverified.test"),
    ):
        id_ = await rig.schedule()
        await rig.engine(Meanwhile(change=lambda id_=id_, changes=changes: rig.broadcasts.update(ACCOUNT, id_, changes))).run()  # type: ignore[misc]
        found = await rig.get(id_)
        assert found.status == "failed" and reason in (found.reason or ""), (changes, found.reason)
    assert not await rig.addresses()


@pytest_twisted.ensureDeferred
async def test_a_broadcast_that_is_scheduled_for_later_while_the_filter_is_asked_waits(rig: BroadcastRig) -> None:
    await rig.contacts(3)
    id_, later = await rig.schedule(), NOW + timedelta(hours=2)

    async def change() -> None:
        await rig.broadcasts.cancel(ACCOUNT, id_)
        await rig.broadcasts.send(ACCOUNT, id_, None, later)

    filter = Meanwhile(change=change)
    await rig.engine(filter).run()
    found = await rig.get(id_)
    assert (found.status, found.next_at) == ("scheduled", later) and not await rig.addresses()
    rig.clock.advance(7200)
    await rig.engine(filter).run()
    assert len(await rig.addresses()) == 3
