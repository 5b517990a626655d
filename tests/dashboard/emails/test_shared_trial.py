"""The shared test sender: who gets its mail, how much of it, how long its signature is valid, and that nothing else can be sent from it."""

from __future__ import annotations

import re
from datetime import date
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_twisted

from mailsvc.clock import utc
from mailsvc.dashboard.emails.shared_trial import LIFETIME
from mailsvc.delivery.sending_domain import SendingDomains
from mailsvc.delivery.transaction import Transaction
from mailsvc.domains.keypair import new_pair
from mailsvc.intake import Content, Incoming, Rejected
from mailsvc.mail.address import parse_mailbox
from mailsvc.mail.authentication import dkim
from mailsvc.settings import loading
from mailsvc.settings.reader import SettingsError
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.ids import uuid7_seconds
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.people.shared_tests import DAY, PER_DAY
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.claims import Leased
from tests.dashboard.fixtures import Browser, DashboardRig
from tests.delivery.fakes import MESSAGE

ANN = "ann@example.com"
PATH = "/dashboard/shared-test"
DATE = date(2026, 1, 1)
BUTTON = "Send a test email without a domain"


async def with_sender(pool: Pool, sender: str | None = "test@try.example") -> tuple[DashboardRig, UUID, UUID]:
    """A dashboard, the account that has the domain of the test sender, and Ann's account."""
    rig = DashboardRig(pool, test_sender=sender)
    operator, account = await rig.account("Operator"), await rig.account("Acme")
    await rig.assembly.domains.add(operator, "try.example", "us-east-1", [new_pair("rsa", DATE), new_pair("ed25519", DATE)])
    await rig.assembly.domains.trust(operator, "try.example")
    await rig.person(ANN, account)
    return rig, operator, account


async def send(ann: Browser, back: str = "/dashboard", once: UUID | None = None) -> str:
    """The status, or where the result is shown."""
    shown = await ann.post(PATH, {"once": str(once or uuid4()), "back": back})
    return shown.location or str(shown.status)


@pytest_twisted.ensureDeferred
async def test_the_result_is_shown_on_each_page_that_offers_it(pool: Pool) -> None:
    rig, operator, account = await with_sender(pool)
    domain = await rig.assembly.domains.add(account, "acme.example", "us-east-1", [])
    ann = await rig.inside(ANN)
    await ann.get("/dashboard")
    created = await ann.post("/dashboard/broadcasts", {"name": "News"})
    for path in ("/dashboard", f"/dashboard/domains/{domain.id}", created.location):
        page = await ann.get(path)
        assert BUTTON in page.text, path
        back = page.found('name="back" value="(/dashboard[^"]*)"><button class="btn">Send a test')
        at = await send(ann, back, UUID(page.found('name="once" value="([0-9a-f-]{36})"')))
        shown = await ann.get(at)
        assert at.startswith(f"{path}?test=") and f"Test email to {ANN}" in shown.text and "On its way." in shown.text
        assert 'hx-get="' in shown.text and "View email" not in shown.text  # it has no page in this account
    [(email_id, domain_id), *_] = await pool.rows("SELECT email_id, domain_id FROM emails")
    await pool.run("DELETE FROM queue")
    event = NewEvent(operator, email_id, domain_id, 0, "email.delivered", utc(rig.clock), {"reply": "250 OK"})
    await pool.transact(lambda tx: events.write(tx, [event]))
    [(first,)] = await pool.rows("SELECT id FROM shared_tests WHERE email_id = %s", (email_id,))
    assert "The recipient’s server accepted it." in (await ann.get(f"/dashboard?test={first}")).text
    assert await pool.rows("SELECT DISTINCT recipients, account_id, source FROM emails") == [([ANN], operator, "shared-test")]
    assert "Your test email" not in (await ann.get("/dashboard/emails")).text
    other = await rig.account("Other")
    await rig.person("eve@example.com", other)
    eve = await rig.inside("eve@example.com")
    assert "Test email to" not in (await eve.get(f"/dashboard?test={first}")).text


@pytest_twisted.ensureDeferred
async def test_an_account_can_send_twenty_a_day_and_each_form_once(pool: Pool) -> None:
    rig, _, account = await with_sender(pool)
    await rig.person("bob@example.com", account)
    ann, bob = await rig.inside(ANN), await rig.inside("bob@example.com")
    await ann.get("/dashboard")
    await bob.get("/dashboard")
    once = uuid4()
    assert await send(ann, once=once) == await send(ann, once=once)
    for who in (ann, bob) * (PER_DAY // 2 - 1) + (bob,):
        assert (await send(who)).startswith("/dashboard?test=")
    assert await send(ann) == await send(bob) == "429"
    assert await pool.rows("SELECT count(*) FROM emails") == [(PER_DAY,)]
    rig.clock.advance(DAY.total_seconds() - 60)
    assert await send(ann) == "429"
    rig.clock.advance(120)
    assert (await send(ann)).startswith("/dashboard?test=")
    assert sent_in(await rig.audit(account)) == PER_DAY + 1


def sent_in(lines: list[tuple[str, str]]) -> int:
    return sum(action == "test email sent" for action, _ in lines)


@pytest_twisted.ensureDeferred
async def test_it_is_only_for_confirmed_addresses_of_accounts_without_a_domain(pool: Pool) -> None:
    rig, operator, account = await with_sender(pool)
    ann = await rig.inside(ANN)
    await pool.run("UPDATE users SET verified_at = NULL")
    page = await ann.get("/dashboard")
    assert BUTTON not in page.text and "confirm your email address</a> first" in page.text
    assert await send(ann) == "403"
    await pool.run("UPDATE users SET verified_at = created_at")
    accounts = Accounts(pool, rig.clock)
    await accounts.suspend(account)
    rig.clock.advance(3)  # until the cached account is too old
    assert await send(ann) == "403"
    await accounts.suspend(account, False)
    await rig.assembly.domains.add(account, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account, "acme.example")
    assert BUTTON not in (await ann.get("/dashboard")).text and await send(ann) == "409"
    assert await pool.rows("SELECT count(*) FROM emails") == [(0,)]
    await rig.person("op@example.com", operator)
    op = await rig.inside("op@example.com")
    assert "try.example can’t send" not in (await op.get("/dashboard")).text  # as it should be: no reason to worry


@pytest_twisted.ensureDeferred
async def test_without_a_sender_that_can_send_nothing_is_offered(pool: Pool) -> None:
    rig, operator, _ = await with_sender(pool, "test@other.example")
    ann = await rig.inside(ANN)
    assert BUTTON not in (await ann.get("/dashboard")).text and await send(ann) == "404"
    await rig.assembly.domains.add(operator, "other.example", "us-east-1", [])
    assert await send(ann) == "404"


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("source", ["api", "smtp", "broadcast", "again", "test", "system"])
async def test_nothing_else_can_be_sent_from_it(pool: Pool, source: str) -> None:
    """Not even by the account that has the domain. `shared-test` is no source that a protocol could give."""
    rig, operator, _ = await with_sender(pool)
    mail = Incoming(parse_mailbox("test@try.example"), (parse_mailbox(ANN),), "Hi", Content(text="Hello."), source=source)
    answer = await rig.intake.submit(Caller(operator, None, "full_access", None, None), [mail])
    assert isinstance(answer, Rejected)
    [refusal] = answer.refusals.values()
    assert refusal.kind == "domain" and "reserved for test emails from the dashboard" in refusal.message


@pytest_twisted.ensureDeferred
async def test_its_signature_is_valid_for_an_hour_and_delivery_ends_before(pool: Pool) -> None:
    rig, operator, _ = await with_sender(pool)
    ann = await rig.inside(ANN)
    await ann.get("/dashboard")
    await send(ann)
    [(email_id, domain_id, expires_at)] = await pool.rows("SELECT email_id, domain_id, expires_at FROM queue")
    begins = int(uuid7_seconds(email_id))
    assert LIFETIME < 3600 and int(expires_at.timestamp()) <= begins + LIFETIME
    leased = Leased(operator, email_id, 0, domain_id, "us-east-1", ANN, "mx", 0, "queued", expires_at, False)
    sending = SendingDomains(rig.assembly.domains, rig.assembly.accounts, lambda: [b"secret"], signed, at_once)
    field = await sending.sign(Transaction(operator, email_id, domain_id, 7, False, (leased,)), MESSAGE)
    assert re.findall(rb" t=(\d+); x=(\d+);", field) == [(b"%d" % begins, b"%d" % (begins + 3600))] * 2


async def signed(prepare: Any) -> bytes:
    return dkim.complete([prepare()])[0]


async def at_once(work: Any) -> Any:
    return work()


def test_the_setting_needs_a_domain_of_its_own_and_mail_to_confirm_addresses() -> None:
    given = {
        "base_url": "https://x.example",
        "roles": ["http"],
        "database": {"url": "postgres://x"},
        "dashboard": {"test_sender": "t@try.example"},
    }
    for more in ({}, {"sender": "a <b@try.example>"}):
        with pytest.raises(SettingsError, match=r"dashboard\.test_sender"):
            loading.check(given | more, {})
    assert loading.check(given | {"sender": "b@example.com"}, {}).dashboard.test_sender == "t@try.example"
