"""A key is shown once, found by its hash, and worth nothing from the moment that it is revoked."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from mailsvc.store.cache import CHANNEL, MAX_AGE
from mailsvc.store.domains.domains import Domains
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.people.accounts import Account, Accounts
from mailsvc.store.people.api_keys import Caller, Keys, Moved, digest, hint, is_well_formed, new_token
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.pool import Pool
from tests.store.fixtures import NOW

ENCRYPTION = Encryption.read("1 " + "A" * 43 + "=", "the test")


class SharedNotifications:
    """Notifications shared by several processes."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def listen(self, channel: str, callback: Callable[[], None]) -> None:
        assert channel == CHANNEL
        self.callbacks.append(callback)

    def notify(self, channel: str) -> None:
        for callback in self.callbacks:
            callback()


class KeyPair:
    def __init__(self, selector: str, algorithm: str) -> None:
        self.selector, self.algorithm, self.public, self.der = selector, algorithm, "cHVi", b"private " + selector.encode()


def clock() -> Clock:
    clock = Clock()
    clock.advance(NOW.timestamp())
    return clock


async def account(pool: Pool, name: str = "Acme", rate_limit: int | None = None) -> Account:
    return await Accounts(pool, clock()).create(name, rate_limit)


@pytest_twisted.ensureDeferred
async def test_a_key_finds_its_account(pool: Pool) -> None:
    keys, owner = Keys(pool, clock()), await account(pool, rate_limit=7)
    key_id, token = await keys.create(owner.id, "first", "full_access")
    assert await keys.find(digest(token)) == Caller(owner.id, key_id, "full_access", None, 7, False)
    assert await keys.find(digest(new_token())) is None
    stored = str(await pool.rows("SELECT api_keys::text FROM api_keys"))
    assert token not in stored and token[:9] in stored and token[9:15] not in stored


@pytest_twisted.ensureDeferred
async def test_a_key_may_be_for_one_domain_and_an_account_may_be_suspended(pool: Pool) -> None:
    notifications, time = SharedNotifications(), clock()
    owner = await account(pool)
    domain = await Domains(pool, time, ENCRYPTION, notifications).add(owner.id, "example.com", "r1", [])
    keys = Keys(pool, time, notifications)
    _, token = await keys.create(owner.id, "one", "sending_access", domain.id)
    found = await keys.find(digest(token))
    assert found is not None and (found.domain_id, found.permission, found.suspended) == (domain.id, "sending_access", False)
    assert await Accounts(pool, time, notifications).suspend(owner.id)
    found = await keys.find(digest(token))
    assert found is not None and found.suspended
    assert not await Accounts(pool, time, notifications).suspend(UUID(int=0))
    with pytest.raises(ValueError, match="cannot be restricted"):
        await keys.create(owner.id, "all", "full_access", domain.id)


@pytest_twisted.ensureDeferred
async def test_a_revoked_key_is_forgotten_at_once_with_notifications_and_within_two_seconds_without(pool: Pool) -> None:
    time, notifications = clock(), SharedNotifications()
    ours, near, far = Keys(pool, time, notifications), Keys(pool, time, notifications), Keys(pool, time)
    owner = await account(pool)
    key_id, token = await ours.create(owner.id, "k", "full_access")
    for keys in (ours, near, far):
        assert await keys.find(digest(token)) is not None
    assert not await ours.revoke(UUID(int=0), key_id)
    assert await ours.revoke(owner.id, key_id)
    assert await ours.find(digest(token)) is None
    assert await near.find(digest(token)) is None
    assert await far.find(digest(token)) is not None
    time.advance(2.0)
    assert await far.find(digest(token)) is None
    assert not await ours.revoke(owner.id, key_id)


@pytest_twisted.ensureDeferred
async def test_a_key_is_found_by_its_id_under_the_same_rules(pool: Pool) -> None:
    time, notifications = clock(), SharedNotifications()
    keys, far, owner = Keys(pool, time, notifications), Keys(pool, time), await account(pool)
    key_id, token = await keys.create(owner.id, "k", "sending_access")
    caller = await keys.find(digest(token))
    assert caller is not None and await keys.find_by_id(key_id) == await far.find_by_id(key_id) == caller
    assert await keys.find_by_id(owner.id) is None
    before = pool.statements
    assert await keys.find_by_id(key_id) == caller and pool.statements == before
    await keys.revoke(owner.id, key_id)
    assert await keys.find_by_id(key_id) is None and await far.find_by_id(key_id) == caller
    time.advance(2.0)
    assert await far.find_by_id(key_id) is None


@pytest_twisted.ensureDeferred
async def test_answers_are_kept_for_two_seconds(pool: Pool) -> None:
    time = clock()
    keys, owner = Keys(pool, time), await account(pool)
    _, token = await keys.create(owner.id, "k", "full_access")
    await keys.find(digest(token))
    before = pool.statements
    for _ in range(5):
        await keys.find(digest(token))
    assert pool.statements == before
    time.advance(2.0)
    await keys.find(digest(token))
    assert pool.statements == before + 1


@pytest_twisted.ensureDeferred
async def test_an_account_lists_its_own_keys_without_the_secret(pool: Pool) -> None:
    keys, mine, other = Keys(pool, clock()), await account(pool), await account(pool, "Other")
    first, _ = await keys.create(mine.id, "first", "full_access")
    second, token = await keys.create(mine.id, "second", "sending_access")
    await keys.create(other.id, "theirs", "full_access")
    assert [(k.id, k.name) for k in (await keys.list(mine.id))[0]] == [(second, "second"), (first, "first")]
    assert (await keys.list(mine.id))[0][0].hint == token[:9]
    await keys.revoke(mine.id, first)
    assert [k.id for k in (await keys.list(mine.id))[0]] == [second]


@pytest_twisted.ensureDeferred
async def test_accounts_have_numbers(pool: Pool) -> None:
    accounts = Accounts(pool, clock())
    one, two = await accounts.create("One"), await accounts.create("Two", 5)
    assert one.number != two.number and two.rate_limit == 5
    assert await accounts.get(one.id) == await accounts.numbered(one.number) == one
    assert await accounts.list() == [one, two]
    assert await accounts.get(UUID(int=0)) is await accounts.numbered(9999) is None


@pytest_twisted.ensureDeferred
async def test_a_domain_belongs_to_its_account_and_may_send_once_trusted(pool: Pool) -> None:
    domains, mine, other = Domains(pool, clock(), ENCRYPTION), await account(pool), await account(pool, "Other")
    added = await domains.add(mine.id, "example.com", "r1", [])
    assert not added.may_send and added == await domains.find(mine.id, "example.com") == await domains.get(added.id)
    theirs = await domains.add(other.id, "example.com", "r1", [])  # an unverified name excludes nobody
    assert not theirs.may_send and await domains.delete(other.id, theirs.id)
    assert await domains.find(other.id, "example.com") is None
    assert not await domains.trust(other.id, "example.com")
    assert await domains.trust(mine.id, "example.com")
    found = await domains.find(mine.id, "example.com")
    assert found is not None and found.may_send and found.trusted
    await domains.trust(mine.id, "example.com", False)
    await pool.run("UPDATE domains SET status = 'verified'")
    domains.changed()
    found = await domains.find(mine.id, "example.com")
    assert found is not None and found.may_send and not found.trusted
    assert await domains.list(mine.id) == ([found], False) and await domains.list(other.id) == ([], False)


@pytest_twisted.ensureDeferred
async def test_dkim_keys_are_encrypted_and_returned_in_signing_order(pool: Pool) -> None:
    domains, owner = Domains(pool, clock(), ENCRYPTION), await account(pool)
    domain = await domains.add(owner.id, "example.com", "r1", [KeyPair("e1", "ed25519"), KeyPair("r1", "rsa")])
    assert [(k.selector, k.der) for k in await domains.signing_keys(domain.id)] == [("r1", b"private r1"), ("e1", b"private e1")]
    assert [(k.selector, k.algorithm, k.public) for k in await domains.published_keys(domain.id)] == [
        ("e1", "ed25519", "cHVi"),
        ("r1", "rsa", "cHVi"),
    ]
    assert b"private" not in b"".join(encrypted for (encrypted,) in await pool.rows("SELECT sealed_key FROM dkim_keys"))
    assert "private" not in repr(await domains.signing_keys(domain.id))
    await pool.run("UPDATE domains SET signs_with = '{rsa}'")
    domains = Domains(pool, clock(), ENCRYPTION)
    assert [k.selector for k in await domains.signing_keys(domain.id)] == ["r1"]


@pytest_twisted.ensureDeferred
async def test_a_domain_whose_keys_cannot_be_stored_is_not_there(pool: Pool) -> None:
    domains, owner = Domains(pool, clock(), ENCRYPTION), await account(pool)
    with pytest.raises(StoreError):
        await domains.add(owner.id, "example.com", "r1", [KeyPair("s", "rsa"), KeyPair("s", "rsa")])
    assert await domains.find(owner.id, "example.com") is None


def test_keys_are_well_formed_and_all_different() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100 and all(re.fullmatch("ms_[0-9A-Za-z]{38}", token) and is_well_formed(token) for token in tokens)


@given(st.integers(3, 40), st.characters())
def test_a_mistyped_key_is_known_as_such(place: int, letter: str) -> None:
    token = new_token()
    mistyped = token[:place] + letter + token[place + 1 :]
    assert is_well_formed(mistyped) == (mistyped == token)


@given(st.text())
def test_anything_may_be_asked_to_be_a_key(text: str) -> None:
    assert not is_well_formed(text) and not is_well_formed("ms_" + text)


@pytest_twisted.ensureDeferred
async def test_an_expired_key_no_longer_works(pool: Pool) -> None:
    clock = Clock()
    clock.advance(1_700_000_000)
    keys, owner = Keys(pool, clock), await Accounts(pool, clock).create("One")
    until = datetime.fromtimestamp(1_700_000_060, UTC)
    key_id, token = await keys.create(owner.id, "k", "full_access", expires_at=until)
    assert await keys.find(digest(token)) is not None and await keys.find_by_id(key_id) is not None
    clock.advance(59)
    assert await keys.find(digest(token)) is not None
    clock.advance(1 + 2)  # cached for at most two seconds
    assert await keys.find(digest(token)) is None and await keys.find_by_id(key_id) is None
    [shown] = (await keys.list(owner.id))[0]
    assert shown.expires_at == until


def test_a_key_of_a_cell_begins_with_its_name() -> None:
    token = new_token("eu_1")
    assert token.startswith("ms_eu_1_")
    assert is_well_formed(token)
    assert not is_well_formed(token[:-1] + ("a" if token[-1] != "a" else "b"))
    assert hint(token) == token[: len("ms_eu_1_") + 6]
    assert hint(new_token()).count("_") == 1


@pytest_twisted.ensureDeferred
async def test_the_cell_of_an_account_that_has_moved_is_known_by_its_keys(pool: Pool) -> None:
    now, token = clock(), new_token("us_1")
    keys = Keys(pool, now)
    assert await keys.moved(digest(token)) is None
    now.advance(MAX_AGE)
    values = (digest(token), UUID(int=1), UUID(int=2), "eu_1")
    await pool.run("INSERT INTO account_move_keys (hash, key_id, account_id, cell) VALUES (%s, %s, %s, %s)", values)
    assert await keys.moved(digest(token)) == await keys.moved(UUID(int=1)) == Moved("eu_1")
    assert await keys.moved(UUID(int=3)) is None
    assert await keys.moved(digest(new_token("us_1"))) is None
    assert await keys.find(digest(token)) is None


@pytest_twisted.ensureDeferred
async def test_the_keys_of_an_account_that_is_about_to_arrive_are_known(pool: Pool) -> None:
    """Also if it has been here before. Its rows are staged as an account's move stages them."""
    keys, owner = Keys(pool, clock()), await account(pool)
    key_id, token = await keys.create(owner.id, "k", "full_access")
    await pool.run(
        "INSERT INTO account_arrivals (account_id, number, name, content)"
        " SELECT account_id, 1, 'api_keys', to_jsonb(k) FROM api_keys k WHERE id = %s",
        (key_id,),
    )
    await pool.run("DELETE FROM api_keys")
    values = (digest(token), key_id, UUID(int=2), "eu_1")
    await pool.run("INSERT INTO account_move_keys (hash, key_id, account_id, cell) VALUES (%s, %s, %s, %s)", values)
    assert await keys.moved(digest(token)) == await keys.moved(key_id) == Moved(None)
