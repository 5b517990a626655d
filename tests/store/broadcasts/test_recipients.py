"""Who got a broadcast: searching for a part of an address reads a bounded number of recipients."""

from __future__ import annotations

from uuid import UUID

import pytest_twisted

from mailsvc.store.broadcasts.recipients import Recipients
from mailsvc.store.paging import Page
from mailsvc.store.postgres.pool import Pool
from tests.broadcasts.fixtures import ACCOUNT, BroadcastRig

ALL = UUID(int=0xB1)


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
        rows, edge = await recipients.search(ACCOUNT, ALL, kind, page, text)  # type: ignore[arg-type]
        return [row.email.partition("@")[0] for row in rows], None if edge is None else edge.int & 0xFF

    def at(number: int) -> UUID:
        return UUID(f"00000000-0000-7000-8000-{number:012x}")

    assert await found("EXAMPLE", Page(3)) == (["c12", "c11", "c10"], 10)  # full before all of them were read
    assert await found("c1", Page(3)) == (["c12", "c11", "c10"], 9)
    assert await found("c1", Page(3, at(9))) == ([], 5)
    assert await found("c1", Page(3, at(5))) == (["c1"], 1)
    assert await found("c1", Page(3, at(1))) == ([], None)
    assert await found("c1", Page(1, before=at(1))) == ([], 5)
    assert await found("c1", Page(1, before=at(9))) == (["c10"], 10)
    assert await found("c1", Page(3), "bounced") == ([], None)  # few have any mark
    assert await found("C3@Example.net", Page(3)) == (["c3"], None)
    assert await found("c3@example.net", Page(3), "bounced") == ([], None)
    await pool.run("DELETE FROM contacts WHERE address = 'c12@example.net'")
    assert await found("c12@example.net", Page(3)) == ([], 9)  # nobody's whole address any more
