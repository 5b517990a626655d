"""Opens and clicks of a broadcast over the API: its recipients, its links and its counts, with and without programs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest_twisted

from mailsvc.store.broadcasts.retention import BroadcastRetention
from mailsvc.store.events.ledger import EventLedger
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.accept import Acceptance, NewEmail, NewRecipient, Submission
from mailsvc.store.mail.envelope import EMPTY
from mailsvc.store.mail.values import Personal
from mailsvc.store.tracking.hits import Hits, NewHit
from tests.http.api_rig import ApiRig
from tests.http.resources.broadcasts.test_broadcasts import create, segment

A, B, C = (f"https://example.com/{name}" for name in "abc")


class Sent:
    """A broadcast that two contacts got."""

    def __init__(self, rig: ApiRig, id_: str) -> None:
        self.rig, self.id = rig, id_
        self.people: dict[str, str] = {}
        self.emails: dict[str, UUID] = {}
        self.at = datetime.fromtimestamp(rig.site.reactor.seconds(), UTC)

    @classmethod
    async def make(cls, rig: ApiRig) -> Sent:
        sent = cls(rig, await create(rig, await segment(rig), name="News"))
        await rig.pool.run("UPDATE broadcasts SET domain_id = %s", (rig.domain_id,))
        for name in ("ada", "bob"):
            await sent.add(name)
        return sent

    async def add(self, name: str) -> None:
        address, email_id = f"{name}@example.net", uuid7(self.at.timestamp())
        contact = UUID((await self.rig.request("POST", "/contacts", {"email": address})).json["id"])
        email = NewEmail(
            email_id=email_id, account_id=self.rig.account_id, domain_id=self.rig.domain_id, key_id=None, region="r1",
            source="broadcast", created_at=self.at, message_id="<1@example.test>", sender="a@example.test", to=(address,),
            cc=(), bcc=(), reply_to=(),
            recipients=(NewRecipient(address, "example.net"),), subject="Hi", tags=(), headers={}, envelope=EMPTY, message=b"",
            scheduled_at=None, expires_at=self.at + timedelta(days=1), personal=Personal(UUID(self.id), contact, {}, 100),
        )  # fmt: skip
        await Acceptance(self.rig.pool, self.rig.site.reactor).accept(Submission(self.rig.account_id, (email,)))
        self.people[name], self.emails[name] = str(contact), email_id

    async def hit(self, *hits: tuple[str, str | None, str | None]) -> None:
        """Opens and links that were followed: by whom, the URL, and the code of a program."""
        stored, account_id = Hits(self.rig.pool), self.rig.account_id
        facts = await stored.facts([(account_id, email_id) for email_id in self.emails.values()])
        seconds = self.at.timestamp()
        rows = [NewHit(account_id, self.emails[name], uuid7(seconds), self.at, url, "GET", "", "", code) for name, url, code in hits]
        await stored.write(rows, facts)
        while await EventLedger(self.rig.pool).number(1000):
            pass

    async def read(self, path: str) -> Any:
        response = await self.rig.request("GET", path)
        assert response.status == 200, response.json
        return response.json


@pytest_twisted.ensureDeferred
async def test_recipients_who_opened_and_clicked(rig: ApiRig) -> None:
    sent = await Sent.make(rig)
    await sent.hit(("ada", None, None), ("ada", None, "apple_privacy"), ("ada", A, None), ("ada", A, None), ("ada", B, "soon"))
    await sent.hit(("bob", None, None))
    opened = (await sent.read(f"/broadcasts/{sent.id}/recipients?type=opened"))["data"]
    assert [(row["email"], row["count"]) for row in opened] == [("bob@example.net", 1), ("ada@example.net", 2)]
    [clicked] = (await sent.read(f"/broadcasts/{sent.id}/recipients?type=clicked"))["data"]
    assert (clicked["contact_id"], clicked["count"]) == (sent.people["ada"], 3)
    assert clicked["clicked_links"] == [{"url": A, "clicks": 2}, {"url": B, "clicks": 1}]
    assert "clicked_links" not in opened[0]
    [email] = [row for row in (await sent.read("/emails"))["data"] if row["to"] == ["bob@example.net"]]
    assert (email["last_event"], email["broadcast_id"]) == ("opened", sent.id)


@pytest_twisted.ensureDeferred
async def test_links_are_listed_by_clicks(rig: ApiRig) -> None:
    sent = await Sent.make(rig)
    await sent.hit(*[("ada", A, None)] * 3, ("bob", A, "soon"), ("bob", B, None), ("ada", C, None), ("bob", C, None))
    path = f"/broadcasts/{sent.id}/clicked-links"
    rows = (await sent.read(path))["data"]
    assert [(row["url"], row["clicks"], row["unique_clicks"], row["machine_clicks"]) for row in rows] == [
        (A, 4, 2, 1), (C, 2, 2, 0), (B, 1, 1, 0)
    ]  # fmt: skip
    first = await sent.read(f"{path}?limit=1")
    assert (first["has_more"], first["data"]) == (True, rows[:1])
    assert (await sent.read(f"{path}?after={rows[0]['id']}"))["data"] == rows[1:]
    assert (await sent.read(f"{path}?before={rows[2]['id']}"))["data"] == rows[:2]
    assert (await rig.request("GET", f"{path}?after=x!")).status == 422
    assert (await rig.request("GET", path, key=rig.foreign_key)).status == 404


@pytest_twisted.ensureDeferred
async def test_links_that_can_say_who_followed_them_go_with_the_recipients(rig: ApiRig) -> None:
    sent = await Sent.make(rig)
    await sent.hit(("ada", A, None), ("bob", A, None), ("bob", B, None))
    await rig.pool.run("UPDATE broadcasts SET status = 'sent', started_at = %s, ended_at = %s", (sent.at, sent.at))
    assert await BroadcastRetention(rig.pool).sweep(sent.at) == 0
    assert len((await sent.read(f"/broadcasts/{sent.id}/clicked-links"))["data"]) == 2
    assert await BroadcastRetention(rig.pool).sweep(sent.at + timedelta(days=1)) == 2
    assert [row["url"] for row in (await sent.read(f"/broadcasts/{sent.id}/clicked-links"))["data"]] == [A]


@pytest_twisted.ensureDeferred
async def test_counts_with_and_without_programs(rig: ApiRig) -> None:
    sent = await Sent.make(rig)
    await sent.hit(("ada", None, None), ("ada", None, None), ("bob", None, "apple_privacy"), ("bob", A, "scanner"), ("ada", A, None))
    counts = (await sent.read(f"/broadcasts/{sent.id}"))["counts"]
    assert counts == {"sent": 2, "opened": 3, "clicked": 2, "unique_opened": 2, "unique_clicked": 2}
    some = "metrics=opened,clicked,unique_opened,unique_clicked"
    everybody = {"opened": 3, "clicked": 2, "unique_opened": 2, "unique_clicked": 2}
    people = {"opened": 2, "clicked": 1, "unique_opened": 1, "unique_clicked": 1}
    emails = ",".join(str(email_id) for email_id in sent.emails.values())
    for query in ("", f"&broadcast_id={sent.id}", f"&email_id={emails}", f"&domain_id={rig.domain_id}"):
        assert (await sent.read(f"/emails/metrics?{some}{query}"))["totals"] == everybody, query
        assert (await sent.read(f"/emails/metrics?{some}{query}&exclude_machine=true"))["totals"] == people, query
        assert (await sent.read(f"/emails/metrics?{some}{query}&exclude_machine=false"))["totals"] == everybody, query
    assert (await rig.request("GET", f"/emails/metrics?{some}&exclude_machine=1")).status == 422
