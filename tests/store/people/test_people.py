"""Users, sessions, links, the audit log and searches, over Postgres."""

from __future__ import annotations

from datetime import timedelta

import attrs
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.ids import uuid7
from mailsvc.store.mail import search
from mailsvc.store.mail.accept import Submission
from mailsvc.store.mail.search import Filters, Search
from mailsvc.store.people import passkeys
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.audit import Audit
from mailsvc.store.people.sessions import Sessions, digest
from mailsvc.store.people.users import Users
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.pool import Pool
from tests.store.fixtures import ACCOUNT, NOW, OTHER, StoreRig, email

ENCRYPTION = Encryption.read(f"1 {'A' * 43}=", "here")


@attrs.define
class People:
    pool: Pool
    clock: Clock
    users: Users
    sessions: Sessions
    accounts: Accounts

    @classmethod
    def of(cls, pool: Pool) -> People:
        clock = Clock()
        clock.advance(NOW.timestamp())
        return cls(pool, clock, Users(pool, clock, ENCRYPTION), Sessions(pool, clock), Accounts(pool, clock))


@pytest_twisted.ensureDeferred
async def test_a_session_ends_by_silence_by_age_and_by_hand(pool: Pool) -> None:
    people = People.of(pool)
    user = await people.users.create("Ann@Example.com")
    secret = await people.sessions.begin(user, None, "whole", "192.0.2.1", "Firefox")
    assert (await people.sessions.find(secret)).email == "ann@example.com"  # type: ignore[union-attr]
    assert await people.sessions.find(secret + "x") is None
    for _ in range(29 * 2):
        people.clock.advance(12 * 3600)
        assert await people.sessions.find(secret) is not None
    people.clock.advance(26 * 3600)
    assert await people.sessions.find(secret) is None  # its silence was too long
    secret = await people.sessions.begin(user, None, "whole", "", "")
    for _ in range(61):
        people.clock.advance(12 * 3600)
        found = await people.sessions.find(secret)
    assert found is None  # it was too old, although it was used
    secret = await people.sessions.begin(user, None, "whole", "", "")
    await people.sessions.end(digest(secret))
    assert await people.sessions.find(secret) is None
    await people.sessions.sweep()
    assert await pool.rows("SELECT count(*) FROM sessions") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_no_session_begins_with_a_password_that_was_changed_meanwhile(pool: Pool) -> None:
    """It would outlive the change, which ends all others. Nor is the old password stored again."""
    people = People.of(pool)
    ann = await people.users.create("ann@example.com", password="old")
    assert (await people.users.hash_again(ann, "old, with other parameters")).password == "old, with other parameters"
    ann = await people.users.create("ann@example.com")
    await people.users.set_password(ann.id, "new", keep=b"")
    assert await people.sessions.begin(ann, None, "whole", "", "") is None
    assert (await people.users.hash_again(ann, "old again")).password == ann.password
    assert await pool.rows("SELECT password, (SELECT count(*) FROM sessions) FROM users") == [("new", 0)]
    again = await people.users.get(ann.id)
    assert again is not None and await people.sessions.begin(again, None, "whole", "", "") is not None


@pytest_twisted.ensureDeferred
async def test_only_hashes_are_stored(pool: Pool) -> None:
    people = People.of(pool)
    user = await people.users.create("ann@example.com")
    session = await people.sessions.begin(user, None, "whole", "", "")
    link = await people.sessions.make_link("reset", user.email, timedelta(hours=1))
    await people.users.propose_totp(user.id, b"the secret of an app")
    tables = [await pool.rows(f"SELECT row_to_json(t)::text FROM {table} t") for table in ("sessions", "links", "users")]
    rows = [row for table in tables for row in table]
    text = " ".join(row[0] for row in rows)
    assert session not in text and link not in text and b"the secret of an app".hex() not in text


@pytest_twisted.ensureDeferred
async def test_a_link_works_once_for_its_purpose_and_for_its_time(pool: Pool) -> None:
    people = People.of(pool)
    first = await people.sessions.make_link("reset", "ann@example.com", timedelta(hours=1))
    second = await people.sessions.make_link("reset", "ann@example.com", timedelta(hours=1))
    assert await people.sessions.take_link(first, "reset") is None  # a newer one ends it
    assert await people.sessions.take_link(second, "sign-in") is None
    assert (await people.sessions.take_link(second, "reset")).email == "ann@example.com"  # type: ignore[union-attr]
    assert await people.sessions.take_link(second, "reset") is None
    third = await people.sessions.make_link("reset", "ann@example.com", timedelta(hours=1))
    people.clock.advance(3600)
    assert await people.sessions.take_link(third, "reset") is None


@pytest_twisted.ensureDeferred
async def test_an_account_keeps_an_admin(pool: Pool) -> None:
    people = People.of(pool)
    account = await people.accounts.create("Shop")
    ann, bo = await people.users.create("ann@example.com"), await people.users.create("bo@example.com")
    assert await people.users.join(account.id, ann.id, "admin") and not await people.users.join(account.id, ann.id, "developer")
    await people.users.join(account.id, bo.id, "developer")
    assert not await people.users.remove(account.id, ann.id)
    assert not await people.users.set_role(account.id, ann.id, "developer")
    assert await people.users.set_role(account.id, bo.id, "admin")
    session = await people.sessions.begin(ann, account.id, "whole", "", "")
    assert await people.users.remove(account.id, ann.id)
    assert await people.sessions.find(session) is None
    assert not await people.users.remove(account.id, bo.id)


@pytest_twisted.ensureDeferred
async def test_passkeys_that_are_added_at_once_respect_the_limit(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passkeys, "MOST", 2)
    people = People.of(pool)
    user, stored = (await people.users.create("ann@example.com")).id, passkeys.Passkeys(pool, people.clock)
    adding = [Deferred.fromCoroutine(stored.add(user, b"%d" % n, b"key", 0, False, "Phone")) for n in range(4)]
    assert sorted([await each for each in adding]) == [False, False, True, True]
    assert len(await stored.of(user)) == 2


@pytest_twisted.ensureDeferred
async def test_a_code_of_a_time_step_is_taken_once(pool: Pool) -> None:
    people = People.of(pool)
    user = await people.users.create("ann@example.com")
    assert not await people.users.take_totp(user.id, 100)
    await people.users.propose_totp(user.id, b"12345678901234567890")
    assert await people.users.totp(user.id) == b"12345678901234567890"
    assert await people.users.take_totp(user.id, 100)
    assert (await people.users.get(user.id)).totp  # type: ignore[union-attr]
    assert not await people.users.take_totp(user.id, 100) and not await people.users.take_totp(user.id, 99)
    await people.users.propose_totp(user.id, b"another secret of an app")
    assert await people.users.totp(user.id) == b"12345678901234567890"  # one in force is not replaced
    await people.users.set_recovery_codes(user.id, [b"1" * 32, b"2" * 32])
    assert await people.users.take_recovery_code(user.id, [b"0", b"1" * 32])
    assert not await people.users.take_recovery_code(user.id, [b"0", b"1" * 32])
    assert await people.users.recovery_codes_left(user.id) == 1


@pytest_twisted.ensureDeferred
async def test_shorter_lifetimes_end_sessions_that_already_exist(pool: Pool) -> None:
    people = People.of(pool)
    user = await people.users.create("ann@example.com")
    secret = await people.sessions.begin(user, None, "whole", "", "")
    people.clock.advance(3600)
    brief = Sessions(pool, people.clock, timedelta(hours=24), timedelta(minutes=59))
    idle = Sessions(pool, people.clock, timedelta(minutes=59), timedelta(days=30))
    assert await brief.find(secret) is None and await brief.list(user.id) == []
    assert await idle.find(secret) is None and await idle.list(user.id) == []
    assert await people.sessions.find(secret) is not None and len(await people.sessions.list(user.id)) == 1


@pytest_twisted.ensureDeferred
async def test_the_audit_log_is_added_to_and_never_changed(pool: Pool) -> None:
    people = People.of(pool)
    audit = Audit(pool, people.clock)
    for number in range(3):
        people.clock.advance(1)
        await audit.add(ACCOUNT, None, "ann@example.com", "192.0.2.1", f"action {number}")
    await audit.add(OTHER, None, "bo@example.com", "192.0.2.1", "elsewhere")
    entries, more = await audit.list(ACCOUNT, 2)
    assert [entry.action for entry in entries] == ["action 2", "action 1"] and more
    entries, more = await audit.list(ACCOUNT, 2, entries[-1].id)
    assert [entry.action for entry in entries] == ["action 0"] and not more
    for sql in ("UPDATE audit SET action = 'x'", "DELETE FROM audit"):
        with pytest.raises(StoreError, match="append-only"):
            await pool.run(sql)


async def kept(store: StoreRig, count: int, **changes: object) -> list[object]:
    """Emails a minute apart, the oldest first; their ids."""
    ids = []
    for number in range(count):
        at = NOW - timedelta(minutes=count - number)
        created = email(f"user{number}@example.org", email_id=uuid7(at.timestamp()), created_at=at, subject=f"Order {number}", **changes)
        await store.acceptance.accept(Submission(created.account_id, (created,)))
        ids.append(created.email_id)
    return ids


@pytest_twisted.ensureDeferred
async def test_a_search_goes_back_page_by_page(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await kept(store, 7)
    found = Search(store.pool)
    first = await found.emails(ACCOUNT, Filters(), 3)
    assert [one.email_id for one in first.emails] == ids[:3:-1] and first.after is not None
    second = await found.emails(ACCOUNT, Filters(), 3, first.after)
    third = await found.emails(ACCOUNT, Filters(), 3, second.after)
    assert [one.email_id for one in (*second.emails, *third.emails)] == ids[3::-1] and third.after is None
    assert [one.subject for one in (await found.emails(ACCOUNT, Filters(text="ORDER 5"), 3)).emails] == ["Order 5"]
    assert [one.subject for one in (await found.emails(ACCOUNT, Filters(text="user2@"), 3)).emails] == ["Order 2"]
    assert (await found.emails(ACCOUNT, Filters(text="100%_"), 3)).emails == ()
    since = Filters(since=NOW - timedelta(minutes=2, seconds=30))
    assert [one.email_id for one in (await found.emails(ACCOUNT, since, 10)).emails] == ids[:4:-1]
    assert len((await found.emails(ACCOUNT, Filters(status="email.sent"), 10)).emails) == 7
    assert (await found.emails(ACCOUNT, Filters(status="email.bounced"), 10)).emails == ()
    assert (await found.emails(OTHER, Filters(), 10)).emails == ()
    # A search that finds little stops, says how far it looked, and goes on from there.
    monkeypatch.setattr(search, "MAX_SCANNED", 4)
    page = await found.emails(ACCOUNT, Filters(text="Order 1"), 3)
    assert page.emails == () and page.after == ids[3] and page.looked_until is not None
    page = await found.emails(ACCOUNT, Filters(text="Order 1"), 3, page.after)
    assert [one.subject for one in page.emails] == ["Order 1"] and page.after is None


@pytest_twisted.ensureDeferred
async def test_the_role_that_the_previous_release_writes_becomes_that_of_developers(pool: Pool) -> None:
    people = People.of(pool)
    account, ann = await people.accounts.create("Acme"), await people.users.create("ann@example.com")
    added = "INSERT INTO members (account_id, user_id, role, created_at) VALUES (%s, %s, 'member', now())"
    await people.pool.run(added, (account.id, ann.id))
    assert [member.role for member in await people.users.members(account.id)] == ["developer"]
    await people.users.set_role(account.id, ann.id, "billing")
    await people.pool.run("UPDATE members SET role = 'member' WHERE user_id = %s", (ann.id,))
    assert [member.role for member in await people.users.members(account.id)] == ["developer"]
