"""Who got a broadcast: a page reads a bounded number of recipients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import attrs
import pytest_twisted

from mailsvc.store.broadcasts.overview import DOMAINS
from mailsvc.store.broadcasts.recipients import OF_CONTACT, Kind, Recipients
from mailsvc.store.ids import uuid7
from mailsvc.store.paging import Page
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction
from tests.broadcasts.fixtures import ACCOUNT, BroadcastRig
from tests.store.fixtures import nodes

ALL = UUID(int=0xB1)


def _contact(number: int) -> UUID:
    return UUID(f"00000000-0000-7000-8000-{number:012x}")


@pytest_twisted.ensureDeferred
async def test_a_search_reads_so_many_recipients_at_a_time_and_finds_a_whole_address_at_once(pool: Pool) -> None:
    from twisted.internet import reactor

    rig, recipients = BroadcastRig(pool, reactor), Recipients(pool, searched=4)
    await rig.start()
    await rig.contacts(12)  # c1 to c12; their IDs are in this order
    columns = "account_id, broadcast_id, contact_id, email_id, marks"
    values = "account_id, %s, id, id, (address = 'c9@example.net')::int"
    await pool.run(f"INSERT INTO broadcast_recipients ({columns}) SELECT {values} FROM contacts", (ALL,))

    async def found(text: str, page: Page, kind: str = "sent") -> tuple[list[str], int | None]:
        rows, edge = await recipients.list(ACCOUNT, ALL, kind, page, email=text)  # type: ignore[arg-type]
        return [row.email.partition("@")[0] for row in rows], None if edge is None else edge.int & 0xFF

    assert await found("EXAMPLE", Page(3)) == (["c12", "c11", "c10"], 10)  # full before all of them were read
    assert await found("c1", Page(3)) == (["c12", "c11", "c10"], 9)
    assert await found("c1", Page(3, _contact(9))) == ([], 5)
    assert await found("c1", Page(3, _contact(5))) == (["c1"], 1)
    assert await found("c1", Page(3, _contact(1))) == ([], None)
    assert await found("c1", Page(1, before=_contact(1))) == ([], 5)
    assert await found("c1", Page(1, before=_contact(9))) == (["c10"], 10)
    assert await found("c1", Page(3), "bounced") == ([], None)  # few have any mark
    assert await found("C3@Example.net", Page(3)) == (["c3"], None)
    assert await found("c3@example.net", Page(3), "bounced") == ([], None)
    await pool.run("DELETE FROM contacts WHERE address = 'c12@example.net'")
    assert await found("c12@example.net", Page(3)) == ([], 9)  # nobody's whole address any more


@pytest_twisted.ensureDeferred
async def test_a_list_of_what_is_rare_reads_so_many_recipients_at_a_time(pool: Pool) -> None:
    from twisted.internet import reactor

    rig, recipients = BroadcastRig(pool, reactor), Recipients(pool, marked=5, looked_up=3)
    await rig.start()
    await rig.contacts(9)  # c1 to c9; their IDs are in this order
    marks = {2: 16 + 2 + 1, 8: 16 + 1}  # c2 complained and bounced, c8 bounced; all of them opened the email
    events = {8: ("bounced", {"type": "Permanent"}), 2: ("bounced", {"type": "Transient"}), 1: ("delivered", {})}
    for number in range(1, 10):
        email_id = uuid7(reactor.seconds())
        values = (ACCOUNT, ALL, _contact(number), email_id, marks.get(number, 16))
        sql = "INSERT INTO broadcast_recipients (account_id, broadcast_id, contact_id, email_id, marks) VALUES (%s, %s, %s, %s, %s)"
        await pool.run(sql, values)
        if number in events:
            kind, data = events[number]
            sql = "INSERT INTO events (account_id, email_id, event_id, recipient, type, at, data) VALUES (%s, %s, %s, 0, %s, now(), %s)"
            await pool.run(sql, (ACCOUNT, email_id, uuid7(reactor.seconds()), f"email.{kind}", data))

    async def found(kind: Kind, page: Page, bounce_type: str | None = None) -> tuple[Sequence[str], int | None]:
        rows, edge = await recipients.list(ACCOUNT, ALL, kind, page, bounce_type)
        return [row.email.partition("@")[0] for row in rows], None if edge is None else edge.int & 0xFF

    assert await found("complained", Page(2)) == ([], 5)
    assert await found("complained", Page(2, _contact(5))) == (["c2"], None)
    assert await found("opened", Page(2)) == (["c9", "c8"], 8)  # full before all of them were read
    assert await found("delivered", Page(2)) == ([], 7)
    assert await found("delivered", Page(2, _contact(4))) == (["c1"], 1)
    assert await found("delivered", Page(2, before=_contact(4))) == ([], 7)
    assert await found("bounced", Page(2)) == (["c8"], 5)
    assert await found("bounced", Page(2), "transient") == ([], 7)
    assert await found("bounced", Page(2, _contact(4)), "transient") == (["c2"], 1)


_BROADCASTS = """
INSERT INTO broadcasts (account_id, id, name, sender, reply_to, subject, preview_text, status, created_at)
SELECT %s, md5(n::text)::uuid, n, '', '{}', '', '', 'sent', now() FROM generate_series(1, %s) n
"""
_OTHERS = """
INSERT INTO broadcast_recipients (account_id, broadcast_id, contact_id, email_id, marks)
SELECT account_id, id, md5(n::text)::uuid, md5(id || '-' || n)::uuid, n %% 2 FROM broadcasts, generate_series(1, %s) n
"""
_EMAILS = """
WITH recipients AS (
    INSERT INTO broadcast_recipients (account_id, broadcast_id, contact_id, email_id)
    SELECT account_id, id, %(contact)s, overlay(%(email)s::text placing lpad(name, 12, '0') from 25)::uuid FROM broadcasts RETURNING *
)
INSERT INTO emails (account_id, email_id, created_at, source, domain_id, message_id, sender, to_, cc, bcc, reply_to, recipients, subject,
                    size, bulk, broadcast_id)
SELECT account_id, email_id, now(), 'broadcast', account_id, '', '', '{}', '{}', '{}', '{}', '{}', '', 1, true, broadcast_id FROM recipients
"""
_CONTACTS = """
INSERT INTO contacts (account_id, id, address, email, created_at, updated_at, hash)
SELECT %s, md5(n::text)::uuid, n || '@example.net', n || '@example.net', now(), now(), decode(md5(n::text), 'hex')
FROM generate_series(1, %s) n
"""


@attrs.define
class Asked:
    """Remembers the statements that it is asked to run."""

    pool: Pool
    statements: list[tuple[str, Any]] = attrs.field(factory=list)

    async def rows(self, sql: str, params: Any = ()) -> list[Row]:
        self.statements.append((sql, params))
        return await self.pool.rows(sql, params)


async def _read(pool: Pool, table: str, sql: str, params: object) -> Sequence[float]:
    """How many rows of a table each scan reads, on a server with Postgres's own cost of random pages."""

    async def explained(tx: Transaction) -> list[dict[str, Any]]:
        await tx.run("SET LOCAL random_page_cost = 4")
        [(found,)] = await tx.rows("EXPLAIN (ANALYZE, FORMAT JSON) " + sql, params)  # type: ignore[arg-type]
        return list(nodes(found[0]["Plan"]))

    scans = [node for node in await pool.transact(explained) if node.get("Relation Name") == table]
    return [(node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans]


@pytest_twisted.ensureDeferred
async def test_the_broadcasts_of_a_contact_are_read_without_their_other_recipients(pool: Pool) -> None:
    from twisted.internet import reactor

    await BroadcastRig(pool, reactor).start()
    await pool.run(_BROADCASTS, (ACCOUNT, 100))
    await pool.run(_OTHERS, (60,))
    contact = _contact(7)
    await pool.run(_EMAILS, {"contact": contact, "email": uuid7(reactor.seconds())})
    await pool.run("ANALYZE broadcast_recipients")
    await pool.run("ANALYZE broadcasts")
    await pool.run("ANALYZE emails")
    [read] = await _read(pool, "broadcast_recipients", OF_CONTACT, (ACCOUNT, contact, 20))
    assert 20 <= read <= 100
    found = await Recipients(pool).of_contact(ACCOUNT, contact, 20)
    assert len(found) == 20


@pytest_twisted.ensureDeferred
async def test_the_contacts_of_recipients_are_read_without_all_others(pool: Pool) -> None:
    from twisted.internet import reactor

    await BroadcastRig(pool, reactor).start()
    await pool.run(_BROADCASTS, (ACCOUNT, 2))
    await pool.run(_OTHERS, (400,))
    await pool.run(_CONTACTS, (ACCOUNT, 3000))
    await pool.run("ANALYZE broadcast_recipients")
    await pool.run("ANALYZE contacts")
    [(broadcast,)] = await pool.rows("SELECT id FROM broadcasts WHERE name = '1'")
    of_broadcast = {"account_id": ACCOUNT, "broadcast_id": broadcast, "looked": 1000}
    assert await _read(pool, "contacts", DOMAINS, of_broadcast) == [400]
    asked = Asked(pool)
    await Recipients(asked).list(ACCOUNT, broadcast, "sent", Page(50), email="nobody")  # type: ignore[arg-type]
    assert await _read(pool, "contacts", *asked.statements[-1]) == [400]
