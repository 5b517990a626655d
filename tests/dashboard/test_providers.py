"""Metrics by provider: what counts as what, which emails are looked at, and how domains are grouped."""

from __future__ import annotations

import re
from datetime import timedelta
from uuid import UUID

import pytest
import pytest_twisted

from mailsvc.clock import utc
from mailsvc.dashboard.providers import SHOWN, Row, by_provider
from mailsvc.intake import Admitted, Content, Incoming
from mailsvc.mail.address import parse_mailbox
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.mail import recipient_domains
from mailsvc.store.mail.recipient_domains import DomainCounts
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import Browser, DashboardRig

DELIVERED, BOUNCED, DEFERRED, COMPLAINED = (f"email.{name}" for name in ("delivered", "bounced", "delivery_delayed", "complained"))


def test_domains_of_a_provider_are_added_up_and_small_ones_are_shown_together() -> None:
    many = [DomainCounts(f"{number:02}.example", 2, 0, 0, 0) for number in range(SHOWN)]
    found = by_provider([DomainCounts("gmail.com", 5, 1, 2, 1), DomainCounts("googlemail.com", 3, 1, 0, 0), *many])
    assert found[0] == Row("Gmail", 8, 2, 2, 1) and (found[0].bounce, found[0].complaint) == (20.0, 12.5)
    assert len(found) == SHOWN + 1 and found[-1] == Row("1 other domain", 2) and found[-1].complaint == 0
    assert Row("x").bounce is None is Row("x").complaint and by_provider([]) == []
    assert [Row("x", delivered, 5).bounces_high for delivered in (9, 95, 996)] == [False, True, False]
    assert [Row("x", delivered, complained=1).complaints_high for delivered in (99, 100, 9000)] == [False, True, False]


async def sent(rig: DashboardRig, account: UUID, to: dict[str, list[str]]) -> UUID:
    """An email to some recipients, with the events of each."""
    mail = Incoming(parse_mailbox("a@acme.example"), tuple(map(parse_mailbox, to)), "Hi", Content(text="Hello."))
    answer = await rig.intake.submit(Caller(account, None, "full_access", None, None), [mail])
    assert isinstance(answer, Admitted) and isinstance(answer.results[0], UUID)
    email_id, [(domain_id,)] = answer.results[0], await rig.pool.rows("SELECT id FROM domains WHERE account_id = %s", (account,))
    written = [
        NewEvent(account, email_id, domain_id, number, type_, utc(rig.clock), {"reply": "250 OK"})
        for number, types in enumerate(to.values())
        for type_ in types
    ]
    await rig.pool.transact(lambda tx: events.write(tx, written))
    return email_id


async def table(ann: Browser, query: str = "") -> list[list[str]]:
    text = (await ann.get(f"/dashboard/metrics/providers{query}")).text
    rows = re.findall(r"<tr>(<td.*?)</tr>", text)
    return [[re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows]


@pytest_twisted.ensureDeferred
async def test_each_recipient_counts_with_what_happened_in_the_end(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account, domain.name)
    ann = await rig.inside("ann@example.com")
    assert "No results yet" in (await ann.get("/dashboard/metrics/providers")).text
    await sent(rig, account, {"a@gmail.com": [DEFERRED, DELIVERED, COMPLAINED], "b@GMAIL.com": [DELIVERED, BOUNCED], "c@small.example": []})
    await sent(rig, account, {"d@small.example": [DEFERRED], '"x@y"@small.example': [DELIVERED]})
    gmail = ["Gmail", "1", "1", "50.00%", "1", "1", "100.000%"]
    small = ["small.example", "1", "0", "0.00%", "1", "0", "0.000%"]
    assert await table(ann) == [gmail, small]
    assert await table(ann, f"?domain={domain.id}&days=1") == [gmail, small]
    text = (await ann.get("/dashboard/metrics/providers")).text
    assert "Of the newest" not in text
    monkeypatch.setattr(recipient_domains, "LOOKED", 1)
    assert [row[0] for row in await table(ann)] == ["small.example"] and "Of the newest" in (
        await ann.get("/dashboard/metrics/providers")
    ).text
    rig.clock.advance(timedelta(days=2).total_seconds())
    ann = await rig.inside("ann@example.com")
    assert await table(ann, "?days=1") == []
    other = await rig.account("Other")
    await rig.person("eve@example.com", other)
    assert await table(await rig.inside("eve@example.com")) == []


@pytest_twisted.ensureDeferred
async def test_a_domain_that_sends_rarely_is_looked_for_among_the_newest_emails_only(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account, domain.name)
    ann = await rig.inside("ann@example.com")
    oldest, *_ = [await sent(rig, account, {"a@gmail.com": [DELIVERED]}) for _ in range(4)]
    add = "INSERT INTO domains (id, account_id, name, region, created_at) VALUES (%s, %s, 'b.example', 'r', now())"
    await pool.run(add, (account, account))
    await pool.run("UPDATE emails SET domain_id = %s WHERE email_id = %s", (account, oldest))
    rare = f"?domain={account}"
    assert [row[1] for row in await table(ann, rare)] == ["1"]
    monkeypatch.setattr(recipient_domains, "SCANNED", 3)
    text = (await ann.get(f"/dashboard/metrics/providers{rare}")).text
    assert "Of the newest 3 emails of this period, none from b.example was delivered or bounced." in text
    assert [row[1] for row in await table(ann)] == ["4"]
