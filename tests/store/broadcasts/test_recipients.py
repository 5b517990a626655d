"""Who got a broadcast: a page reads a bounded number of recipients."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest_twisted

from mailsvc.store.broadcasts.recipients import Kind, Recipients
from mailsvc.store.ids import uuid7
from mailsvc.store.paging import Page
from mailsvc.store.postgres.pool import Pool
from tests.broadcasts.fixtures import ACCOUNT, BroadcastRig

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
