"""Compressed messages: what goes in comes out, wherever it is read. With Postgres, except the format."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import suppress
from uuid import UUID

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.store.mail.accept import Acceptance, Submission
from mailsvc.store.mail.compression import SMALLEST, compressed, original
from mailsvc.store.mail.inserts import SMALL
from mailsvc.store.postgres.errors import Damaged
from mailsvc.store.privacy.finding import Finder, Message
from mailsvc.store.queue.claims import Queue
from tests.store.encryption.test_body_keys import Piecemeal
from tests.store.fixtures import ACCOUNT, NOW, REGION, StoreRig, email
from tests.store.privacy.test_eraser import at_once

HEAD = b"From: a@mailsvc.example\r\nTo: zoe@person.example\r\nSubject: hello\r\n\r\n"
TEXT = HEAD + b"Your order has been shipped.\r\n" * 100
RANDOM = HEAD + random.Random(1).randbytes(3000)


@given(st.binary(max_size=2000), st.integers(1, 50))
def test_what_is_compressed_comes_out_again(text: bytes, times: int) -> None:
    message = text * times
    block = compressed(message)
    if block is not None:
        assert len(block) < len(message) and original(block, len(message)) == message


def test_only_what_becomes_smaller_is_compressed() -> None:
    assert compressed(TEXT) is not None
    assert compressed(RANDOM) is None and compressed(b"x" * (SMALLEST - 1)) is None


@given(st.binary(max_size=200), st.integers(0, SMALL))
def test_a_damaged_block_is_never_taken_for_a_message(block: bytes, size: int) -> None:
    with suppress(Damaged):
        assert len(original(block, size)) == size


def test_a_block_of_another_size_is_damaged() -> None:
    block = compressed(TEXT)
    assert block is not None
    for size in (len(TEXT) - 1, len(TEXT) + 1, 0):
        with pytest.raises(Damaged):
            original(block, size)


MAILS = (
    email("text@example.org", message=TEXT),
    email("pieces@example.org", message=Piecemeal(TEXT)),
    email("random@example.org", message=RANDOM),
    email("short@example.org", message=HEAD),
    email("large@example.org", message=TEXT + b"x" * SMALL),
)


@pytest_twisted.async_yield_fixture()
async def stored(store: StoreRig) -> AsyncIterator[dict[UUID, bytes]]:
    """The messages that are stored, together in one commit."""
    acceptance = Acceptance(store.pool, store.clock, compress=True)
    await acceptance.accept(Submission(ACCOUNT, MAILS))
    yield {each.email_id: b"".join(each.message) if isinstance(each.message, Piecemeal) else each.message for each in MAILS}


@pytest_twisted.ensureDeferred
async def test_what_becomes_smaller_is_stored_compressed(store: StoreRig, stored: dict[UUID, bytes]) -> None:
    sql = "SELECT recipients[1], size, compressed, length(bytes) FROM emails JOIN messages USING (email_id) WHERE piece = 0"
    rows = {name.partition("@")[0]: row for name, *row in await store.pool.rows(sql)}
    block = compressed(TEXT)
    assert block is not None
    assert rows["text"] == rows["pieces"] == [len(TEXT), True, len(block)]
    assert rows["random"] == [len(RANDOM), None, len(RANDOM)] and rows["short"] == [len(HEAD), None, len(HEAD)]
    assert rows["large"][1] is None


@pytest_twisted.ensureDeferred
async def test_every_reader_gets_the_message(store: StoreRig, stored: dict[UUID, bytes]) -> None:
    for id_, content in stored.items():
        found = await store.messages.load(ACCOUNT, id_)
        assert found is not None and found.body == content
    claimed = await Queue(store.pool).claim(REGION, {"example.org": 50}, NOW, store.lease, 1 << 20)
    small = {id_: content for id_, content in stored.items() if len(content) <= SMALL}
    assert {id_: claimed.messages[id_][0] for id_ in small} == small
    archived = [each async for each in Finder(store.pool, "zoe@person.example", ACCOUNT, at_once).archive()]
    assert sorted(each.content for each in archived if isinstance(each, Message)) == sorted(stored.values())


@pytest_twisted.ensureDeferred
async def test_a_damaged_message_hinders_no_other(store: StoreRig, stored: dict[UUID, bytes]) -> None:
    broken = MAILS[0].email_id
    await store.pool.run("UPDATE messages SET bytes = 'x' || bytes WHERE email_id = %s", (broken,))
    claimed = await Queue(store.pool).claim(REGION, {"example.org": 50}, NOW, store.lease, 1 << 20)
    assert len(claimed.rows) == len(MAILS) and broken not in claimed.messages
    assert claimed.messages[MAILS[1].email_id][0] == stored[MAILS[1].email_id]
    with pytest.raises(Damaged):
        await store.messages.load(ACCOUNT, broken)
    found = await Finder(store.pool, "zoe@person.example", ACCOUNT, at_once).find()
    assert dict(found.counts)["messages.bytes"] == len(MAILS) - 1
