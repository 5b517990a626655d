"""The content filter sees what the first contact will get, before anybody gets it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from email import message_from_bytes, policy

import attrs
import pytest_twisted

from mailsvc.broadcasts.fanout import POSTPONED
from mailsvc.broadcasts.sample import Sample
from mailsvc.policy import Refusal
from mailsvc.store.broadcasts.values import Broadcast
from mailsvc.store.postgres.pool import Pool
from tests.broadcasts.fixtures import BASE, NOW, BroadcastRig


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
