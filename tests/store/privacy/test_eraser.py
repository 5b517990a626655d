"""An erased address is nowhere any more, in whatever column it was."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import attrs
import psycopg2
import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.mail.address_search import Address, Search
from mailsvc.outcome import Delivered
from mailsvc.store.events import events
from mailsvc.store.events.event_data import Click
from mailsvc.store.events.events import NewEvent
from mailsvc.store.ids import uuid7
from mailsvc.store.people.users import Users
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.privacy import statements
from mailsvc.store.privacy.eraser import Eraser, refused
from mailsvc.store.privacy.erasures import Erasure
from mailsvc.store.privacy.finding import Finder
from mailsvc.store.privacy.messages import PIECES, Messages
from mailsvc.store.privacy.rows import Rows
from tests.store.fixtures import DAY, NOW, StoreRig, email, nodes
from tests.store.fixtures import OTHER as ELSEWHERE
from tests.store.privacy.filling import ACCOUNT, CANARY, INSTALLATION, KEYS, MESSAGE, OTHER, fill, leaks


async def at_once(call: Any, *given: Any) -> Any:
    return call(*given)


def eraser(pool: Pool) -> Eraser:
    from twisted.internet import reactor

    return Eraser(pool, reactor, KEYS, at_once, patience=0.0)


def query(database: str, sql: str) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(database)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())
    finally:
        connection.close()


@attrs.define
class Explained:
    """A transaction that counts the rows and blocks that its statements read."""

    tx: Transaction
    read: float = 0
    blocks: int = 0

    async def rows(self, sql: str, params: Any) -> Any:
        [(plans,)] = await self.tx.rows(sql.replace("SELECT", "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT", 1), params)
        self.blocks += plans[0]["Plan"]["Shared Hit Blocks"] + plans[0]["Plan"]["Shared Read Blocks"]
        scans = [node for node in nodes(plans[0]["Plan"]) if "Scan" in node["Node Type"]]
        self.read += sum((scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"] for scan in scans)
        return await self.tx.rows(sql, params)


@pytest.mark.parametrize("account", [None, ACCOUNT])
@pytest_twisted.ensureDeferred
async def test_a_batch_reads_its_own_rows_only(pool: Pool, account: Any) -> None:
    ids = [uuid7(NOW.timestamp()) for _ in range(3000)]
    for sql in (
        "INSERT INTO events (account_id, email_id, event_id, type, at) SELECT %s, i, i, 'domain.created', now() FROM unnest(%s) i",
        "INSERT INTO consents (account_id, id, hash, kind, action, source, at)"
        " SELECT %s, i, 'x', 'all', 'unsubscribed', 'api', now() FROM unnest(%s) i",
        "ANALYZE events",
        "ANALYZE consents",
    ):
        await pool.run(sql, (ACCOUNT, ids) if "%s" in sql else ())
    found = await statements.shapes(pool)
    for name, keys in {"events": ("email_id", "event_id"), "consents": ("id",)}.items():
        key = {"account_id": str(ACCOUNT), **dict.fromkeys(keys, str(ids[1500]))}

        async def batch(tx: Transaction, name: str = name, key: Mapping[str, str] = key) -> tuple[Any, float]:
            explained = Explained(tx)
            _, last = await Rows(Address(CANARY), account, 10)._batch(explained, found[name], key)  # type: ignore[arg-type]
            return last, explained.read

        last, read = await pool.transact(batch)
        assert last == {"account_id": str(ACCOUNT), **dict.fromkeys(keys, str(ids[1510]))}
        assert read <= 2 * 10 + 5, name


@pytest.mark.parametrize("account", [None, ACCOUNT])
@pytest_twisted.ensureDeferred
async def test_a_batch_of_messages_reads_no_others(pool: Pool, account: Any) -> None:
    ids = [uuid7(NOW.timestamp()) for _ in range(10_000)]
    await pool.run("INSERT INTO messages (account_id, email_id, piece, bytes) SELECT %s, i, 0, 'x' FROM unnest(%s) i", (ACCOUNT, ids))
    await pool.run("ANALYZE messages")

    async def batch(tx: Transaction) -> Explained:
        explained = Explained(tx)
        found = Messages(explained, Search(Address(CANARY)), account, at_once)  # type: ignore[arg-type]
        async for key, _ in found.stored({"account_id": str(ACCOUNT), "email_id": str(ids[9000])}):
            assert key["email_id"] == str(ids[9001])
            break
        return explained

    explained = await pool.transact(batch)
    assert explained.read <= 2 * PIECES + 5 and explained.blocks <= 50


@pytest.mark.parametrize("account", [None, ACCOUNT])
@pytest_twisted.ensureDeferred
async def test_every_column_is_erased(pool: Pool, database: str, account: Any) -> None:
    fill(database)
    assert leaks(database)
    erase = eraser(pool)
    begun = await erase.erasures.begin(account, erase.erasures.new_id(), CANARY, False, "command")
    done = await erase.run(begun, CANARY)
    assert {table for table, _ in leaks(database)} == (set() if account is None else INSTALLATION)
    assert done.finished_at is not None, done
    assert query(database, "SELECT count(*) FROM queue") == [(0,)] and query(database, "SELECT count(*) FROM users") == [(0,)]
    assert query(database, "SELECT key, origin FROM erased_suppressions WHERE origin = 'manual' AND length(hash) = 32") == [(1, "manual")]
    assert query(database, "SELECT recipients FROM emails") == [(["erased@erased.invalid", OTHER],)]
    assert query(database, "SELECT data FROM events WHERE type = 'contact.created'")[0][0]["first_name"] is None
    assert done.counts["erased"]["emails.recipients"] == 1 and done.counts["erased"]["messages.bytes"] == 1


@pytest_twisted.ensureDeferred
async def test_an_account_finds_nothing_of_the_operator_and_of_others(pool: Pool, database: str) -> None:
    fill(database)
    await pool.run("UPDATE operators SET email = %s", (CANARY,))
    found = await Finder(pool, CANARY, ELSEWHERE, at_once).find()
    assert found.counts == {}
    own = await Finder(pool, CANARY, ACCOUNT, at_once).find()
    everything = await Finder(pool, CANARY, None, at_once).find()
    assert everything.counts.keys() - own.counts.keys() == {"operators.email", "destinations.reason", "slowdowns.reason"}


@pytest_twisted.ensureDeferred
async def test_queued_mail_is_stopped(store: StoreRig, database: str) -> None:
    alone, shared, later = email(CANARY), email(CANARY, OTHER, message=MESSAGE), email(CANARY, scheduled_at=NOW + DAY)
    await store.accept(alone, shared, later)
    done = await run(store.pool)
    assert await store.statuses(alone) == ["failed"] and await store.statuses(later) == ["failed"]
    assert await store.statuses(shared) == ["failed", "queued"]
    assert done.finished_at is None and done.counts["waiting"] == {"messages.bytes": 1}  # the other recipient needs it
    assert {table for table, _ in leaks(database)} == {f"messages_{NOW:%Y%m%d}"}
    await store.claim(OTHER.partition("@")[2])
    await store.settle(shared, None, Delivered("250 OK"))
    again = await eraser(store.pool).run(done, CANARY)
    assert again.finished_at is not None and leaks(database) == []
    assert again.counts["erased"]["queue.address"] == 3 and not again.counts.get("waiting")


@pytest_twisted.ensureDeferred
async def test_mail_that_is_being_sent_is_finished_first(store: StoreRig, database: str) -> None:
    mail = email(CANARY)
    await store.accept(mail)
    await store.claim(CANARY.partition("@")[2])
    done = await run(store.pool)
    assert done.finished_at is None and done.counts["waiting"]["queue.address"] == 1
    await store.settle(mail, Delivered(f"250 {CANARY} accepted"))
    assert (await eraser(store.pool).run(done, CANARY)).finished_at is not None
    assert leaks(database) == [] and await store.statuses(mail) == ["delivered"]


@pytest_twisted.ensureDeferred
async def test_an_email_of_a_broadcast_keeps_what_it_is_composed_from_until_it_was_sent(store: StoreRig, database: str) -> None:
    """Otherwise its next attempt would be another message, with a signature that does not fit."""
    mail = email(CANARY)
    await store.accept(mail)
    await store.claim(CANARY.partition("@")[2])
    merge = {"email": CANARY}
    await store.pool.run("UPDATE emails SET broadcast_id = account_id, merge = %s", (merge,))
    done = await run(store.pool)
    assert done.finished_at is None and done.counts["waiting"]["emails.recipients"] == 1
    assert await store.pool.rows("SELECT recipients, merge FROM emails") == [([CANARY], merge)]
    await store.settle(mail, Delivered("250 OK"))
    assert (await eraser(store.pool).run(done, CANARY)).finished_at is not None
    assert leaks(database) == []


@pytest_twisted.ensureDeferred
async def test_visits_of_the_recipient_are_erased_and_those_of_others_stay(store: StoreRig) -> None:
    mail = email(CANARY, OTHER)
    await store.accept(mail)
    await store.pool.run("DELETE FROM queue")
    visits = [
        NewEvent(mail.account_id, mail.email_id, mail.domain_id, n, "email.clicked", NOW, Click("https://a", f"192.0.2.{n}", "x").stored())
        for n in range(2)
    ]
    await store.pool.transact(lambda tx: events.write(tx, visits))
    await run(store.pool)
    found = await store.pool.rows("SELECT data ->> 'address' FROM events WHERE type = 'email.clicked' ORDER BY recipient")
    assert found == [("",), ("192.0.2.1",)]


@pytest_twisted.ensureDeferred
async def test_other_accounts_and_other_people_are_left_alone(store: StoreRig) -> None:
    others = email("x" + CANARY, subject=f"x{CANARY}"), email(CANARY, account=ELSEWHERE, subject=CANARY, message=MESSAGE)
    await store.accept(*others)
    done = await run(store.pool)
    assert done.counts == {} or not any(done.counts.values())
    assert [await store.statuses(mail) for mail in others] == [["queued"], ["queued"]]
    assert await store.pool.rows("SELECT subject FROM emails ORDER BY email_id") == [(mail.subject,) for mail in others]


@pytest_twisted.ensureDeferred
async def test_an_address_that_spans_two_chunks_of_a_file_is_overwritten(pool: Pool) -> None:
    add = "INSERT INTO contact_import_chunks (account_id, import_id, number, data) VALUES (%s, %s, %s, %s)"
    text = f"email\n{OTHER}\n{CANARY}\n".encode()
    cut = len(text) - 10
    await pool.run(add, (ACCOUNT, ACCOUNT, 0, text[:cut]))
    await pool.run(add, (ACCOUNT, ACCOUNT, 1, text[cut:]))
    await run(pool)
    rows = await pool.rows("SELECT data FROM contact_import_chunks ORDER BY number")
    assert b"".join(data for (data,) in rows) == f"email\n{OTHER}\n{'x' * len(CANARY)}\n".encode()
    assert [len(data) for (data,) in rows] == [cut, 10]


async def run(pool: Pool) -> Erasure:
    one = eraser(pool)
    return await one.run(await one.erasures.begin(ACCOUNT, one.erasures.new_id(), CANARY, False, "command"), CANARY)


@pytest_twisted.ensureDeferred
async def test_a_message_to_somebody_else_that_mentions_the_address_is_deleted(store: StoreRig) -> None:
    text = base64.encodebytes(f"Ask {CANARY}.".encode()).replace(b"\n", b"\r\n")
    head = b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    mention, other = email(OTHER, message=head + text), email(OTHER)
    await store.accept(mention, other)
    await store.pool.run("DELETE FROM queue")
    done = await run(store.pool)
    assert done.counts["erased"] == {"messages.bytes": 1}
    assert await store.pool.rows("SELECT email_id FROM messages") == [(other.email_id,)]


@pytest.mark.parametrize("account", [None, ACCOUNT])
@pytest_twisted.ensureDeferred
async def test_of_two_admins_who_are_erased_at_the_same_time_one_stays_until_there_is_another(pool: Pool, account: Any) -> None:
    await pool.run("INSERT INTO accounts (id, name, created_at) VALUES (%s, 'Example', now())", (ACCOUNT,))
    users = Users(pool, Clock(), KEYS)
    for name in ("ann", "bob"):
        await users.join(ACCOUNT, (await users.create(f"{name}@person.example")).id, "admin")
    erase = eraser(pool)
    both = [f"{name}@person.example" for name in ("ann", "bob")]
    assert [await refused(pool, each, account) for each in both] == [None, None]
    begun = [await erase.erasures.begin(account, erase.erasures.new_id(), each, False, "api") for each in both]
    first, second = [await erase.run(one, each) for one, each in zip(begun, both, strict=True)]
    assert first.finished_at is not None and second.finished_at is None and second.counts["waiting"] == {"users.email": 1}
    assert [each.email for each in await users.members(ACCOUNT)] == ["bob@person.example"]
    await users.join(ACCOUNT, (await users.create("cy@person.example")).id, "admin")
    assert (await erase.run(second, both[1])).finished_at is not None
    assert [each.email for each in await users.members(ACCOUNT)] == ["cy@person.example"]
