"""A suppression outlives the erasure of its address, as a keyed hash."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest_twisted

from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.events.suppressions import Suppressions
from mailsvc.store.mail.accept import Acceptance, Accepted
from mailsvc.store.mail.values import Submission
from mailsvc.store.privacy.keyed_hash import keyed_hashes
from tests.store.fixtures import ACCOUNT, NOW, StoreRig, email
from tests.store.privacy.filling import KEYS
from tests.store.privacy.test_eraser import eraser

ANN = "Ann@example.net"
ROTATED = Encryption.read("1 " + "QUFB" * 10 + "QUE=\n2 " + "A" * 43 + "=", "the test")


async def erase(store: StoreRig, address: str, *, suppress: bool = False) -> None:
    await store.pool.run("INSERT INTO accounts (id, name, created_at) VALUES (%s, 'a', now()) ON CONFLICT DO NOTHING", (ACCOUNT,))
    one = eraser(store.pool)
    await one.run(await one.erasures.begin(ACCOUNT, one.erasures.new_id(), address, suppress, "command"), address)


async def suppressed(store: StoreRig, *addresses: str, keys: Encryption = KEYS, **changes: object) -> set[int]:
    acceptance = Acceptance(store.pool, store.clock, hashes=partial(keyed_hashes, keys))
    mail = email(*addresses, **changes)
    answer = await acceptance.accept(Submission(ACCOUNT, (mail,)))
    assert isinstance(answer, Accepted)
    return set(answer.suppressed.get(mail.email_id, ()))


@pytest_twisted.ensureDeferred
async def test_mail_is_still_refused(store: StoreRig) -> None:
    await Suppressions(store.pool, store.clock).add(ACCOUNT, [ANN])
    await erase(store, ANN)
    assert await store.count("suppressions") == 0
    assert await suppressed(store, "bob@example.net", ANN, "ann@example.net") == {1, 2}
    assert await suppressed(store, ANN, scheduled_at=NOW + timedelta(hours=1)) == {0}
    assert await suppressed(store, ANN, keys=ROTATED) == {0}  # while the former key is in the file


@pytest_twisted.ensureDeferred
async def test_without_a_suppression_mail_is_accepted_unless_one_is_wanted(store: StoreRig) -> None:
    await erase(store, ANN)
    assert await suppressed(store, ANN) == set()
    await erase(store, ANN, suppress=True)
    assert await suppressed(store, ANN) == {0}
    assert await store.pool.rows("SELECT count(*) FROM queue") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_it_is_found_and_removed_by_the_address(store: StoreRig) -> None:
    await erase(store, ANN, suppress=True)
    suppressions = Suppressions(store.pool, store.clock, partial(keyed_hashes, KEYS))
    assert (await suppressions.list(ACCOUNT, 10))[0] == []
    found = await suppressions.named(ACCOUNT, "ANN@example.net")
    assert found is not None and (found.email, found.origin) == ("ANN@example.net", "manual")
    assert [each.id for each in await suppressions.remove(ACCOUNT, emails=[ANN])] == [found.id]
    assert await suppressed(store, ANN) == set() and await suppressions.named(ACCOUNT, ANN) is None


@pytest_twisted.ensureDeferred
async def test_an_address_that_was_erased_and_added_again_is_removed_completely(store: StoreRig) -> None:
    suppressions = Suppressions(store.pool, store.clock, partial(keyed_hashes, KEYS))
    for by_id in (True, False):
        await erase(store, ANN, suppress=True)
        [added] = await suppressions.add(ACCOUNT, [ANN])
        removed = await suppressions.remove(ACCOUNT, *(([added.id],) if by_id else ((), [ANN.lower()])))
        assert [each.id for each in removed] == [added.id], "once"
        assert await suppressed(store, ANN) == set() and await suppressions.named(ACCOUNT, ANN) is None, by_id
