"""Changing the name and the email address: permissions, what is revealed to whom, what is invalidated."""

from __future__ import annotations

from datetime import timedelta

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from mailsvc.dashboard.page import REAUTHENTICATION_LIFETIME
from mailsvc.dashboard.signin.throttle import FREE
from mailsvc.store.people.addresses import Addresses
from mailsvc.store.people.identities import Identities, Identity
from mailsvc.store.people.users import SET_PASSWORD, end_access
from mailsvc.store.postgres.pool import Pool, Transaction
from tests.dashboard.fixtures import HASHED, PASSWORD, Browser, DashboardRig, Response, session

PROFILE = "/dashboard/settings/profile"
ADDRESS = f"{PROFILE}/address"
ANN, NEW, BOB = "ann@example.com", "new@example.com", "bob@example.com"


async def request_change(browser: Browser, email: str, password: str = PASSWORD) -> Response:
    await browser.get(PROFILE)
    shown = await browser.post(ADDRESS, {"email": email, "password": password})
    await browser.rig.settled()
    return shown


async def followed(browser: Browser, link: str) -> Response:
    page = await browser.get(link)
    return page if page.status != 200 else await browser.post(f"{ADDRESS}/confirm", {"link": link.partition("link=")[2]})


async def email_of(rig: DashboardRig, user_id: object) -> str:
    [(email,)] = await rig.pool.rows("SELECT email FROM users WHERE id = %s", (user_id,))
    return str(email)


@pytest_twisted.ensureDeferred
async def test_an_address_changes_once_its_confirmation_link_is_opened(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    ann = await rig.person(ANN, account_id)
    browser, other = await rig.inside(ANN), await rig.inside(ANN)
    reset = await rig.assembly.sessions.make_link("reset", ANN, timedelta(hours=1))
    up = await rig.assembly.sessions.make_link("sign-up", NEW, timedelta(hours=1))
    assert (await request_change(browser, NEW.upper())).location == PROFILE
    assert "We sent a confirmation link to" in (await browser.get(PROFILE)).text
    assert await email_of(rig, ann.id) == ANN and rig.mailer.subjects(ANN) == []
    link = rig.mailer.link(NEW)
    page = await browser.get(link)
    assert page.status == 200 and await email_of(rig, ann.id) == ANN  # opening the link changes nothing
    assert (await followed(browser, link)).query == {"done": "moved"}
    assert await email_of(rig, ann.id) == NEW
    assert rig.mailer.subjects(ANN) == ["Your email address was changed"] and rig.mailer.subjects(NEW) == ["Confirm your new email address"]
    assert (await browser.get("/dashboard/settings")).status == 200
    assert (await other.get("/dashboard/settings")).location.startswith("/dashboard/sign-in")  # other sessions have ended
    for secret, purpose in ((reset, "reset"), (up, "sign-up")):
        assert await rig.assembly.sessions.find_link(secret, purpose) is None  # type: ignore[arg-type]
    assert (await followed(browser, link)).status == 410
    assert (await rig.browser().sign_in(ANN)).status == 422
    assert (await rig.browser().sign_in(NEW)).location == "/dashboard"
    assert ("address changed", f"{ANN} to {NEW}") in await rig.audit(account_id)


@pytest_twisted.ensureDeferred
async def test_only_its_owner_learns_that_an_address_is_registered(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    bob = await rig.person(BOB)
    browser = await rig.inside(ANN)
    pages, written = [], []
    for email in (BOB, "nobody@example.com"):
        shown = await request_change(browser, email)
        pages.append((shown.status, shown.location, (await browser.get(PROFILE)).text.replace(email, "X").replace(browser.token, "")))
        written.append(await pool.rows("SELECT expires_at FROM address_changes"))
    assert pages[0] == pages[1] and written[0] == written[1]
    assert rig.mailer.subjects(BOB) == ["Your email address is already in use"]
    assert rig.mailer.sent[0][1].link is None
    assert rig.mailer.subjects("nobody@example.com") == ["Confirm your new email address"]
    assert [line for line in await rig.audit(account_id) if "address" in line[0]] == [
        ("address change requested", BOB), ("address change requested", "nobody@example.com"),
    ]  # fmt: skip
    assert await email_of(rig, bob.id) == BOB


@pytest_twisted.ensureDeferred
async def test_a_confirmation_link_works_for_its_requester_while_the_address_is_free(pool: Pool) -> None:
    rig = DashboardRig(pool)
    ann, bob = await rig.person(ANN), await rig.person(BOB)
    browser, bobs = await rig.inside(ANN), await rig.inside(BOB)
    await request_change(browser, NEW)
    link = rig.mailer.link(NEW)
    nobody = await rig.browser().get(link)
    assert nobody.location.startswith("/dashboard/sign-in?next=%2Fdashboard%2Fsettings%2Fprofile")
    assert (await followed(bobs, link)).status == 410 and await email_of(rig, bob.id) == BOB
    await browser.get(link)
    await rig.person(NEW)  # registered meanwhile
    assert (await browser.post(f"{ADDRESS}/confirm", {"link": link.partition("link=")[2]})).status == 410
    assert await email_of(rig, ann.id) == ANN


@pytest_twisted.ensureDeferred
async def test_a_newer_request_a_new_password_and_time_invalidate_a_link(pool: Pool) -> None:
    rig = DashboardRig(pool)
    ann = await rig.person(ANN)
    browser = await rig.inside(ANN)
    links = []
    for email in ("one@example.com", "two@example.com"):
        await request_change(browser, email)
        links.append(rig.mailer.link(email))
    assert (await followed(browser, links[0])).status == 410
    assert (await browser.get(links[1])).status == 200
    await browser.post("/dashboard/settings/security/password", {"old": PASSWORD, "password": "another four good words"})
    assert (await followed(browser, links[1])).status == 410
    await request_change(browser, "three@example.com", "another four good words")
    await browser.post(f"{ADDRESS}/withdraw")
    assert (await followed(browser, rig.mailer.link("three@example.com"))).status == 410
    await request_change(browser, "four@example.com", "another four good words")
    rig.clock.advance(3601)
    assert (await followed(browser, rig.mailer.link("four@example.com"))).status == 410
    assert await email_of(rig, ann.id) == ANN
    await rig.assembly.sessions.sweep()
    assert await pool.rows("SELECT FROM address_changes") == []


@pytest_twisted.ensureDeferred
async def test_requesting_an_address_change_requires_the_password_and_is_throttled(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN)
    browser = await rig.inside(ANN)
    wrong = await request_change(browser, NEW, "not my password")
    assert wrong.status == 422 and "Incorrect password." in wrong.text and NEW in wrong.text  # the input is kept
    for email, message in (("no address", "Enter a valid email address."), (ANN, "This is already your address.")):
        shown = await request_change(browser, email)
        assert shown.status == 422 and message in shown.text
    statuses = [(await request_change(browser, f"{number}@example.com")).status for number in range(FREE + 1)]
    assert statuses == [303] * FREE + [429]
    assert len(rig.mailer.sent) == FREE


@pytest_twisted.ensureDeferred
async def test_a_user_without_a_password_reauthenticates_to_change_the_address(pool: Pool) -> None:
    rig = DashboardRig(pool)
    ann = await rig.person(ANN, password=None)
    who = Identity("https://issuer.example", "7", "google", ANN)
    await Identities(pool, rig.clock).add(ann.id, who)
    secret = await rig.assembly.sessions.make_link("sign-in", ANN, timedelta(hours=1))
    browser = rig.browser()
    await browser.get(f"/dashboard/sign-in/link?link={secret}")
    await browser.post("/dashboard/sign-in/link", {"link": secret})
    assert 'name="password"' not in (await browser.get(PROFILE)).text
    rig.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
    assert (await request_change(browser, NEW)).location.startswith("/dashboard/sign-in/again")
    assert rig.mailer.sent == []
    held = await rig.assembly.sessions.find(session(browser))
    assert held is not None
    await rig.assembly.sessions.proved(held.hash)
    assert (await request_change(browser, NEW)).location == PROFILE
    assert (await followed(browser, rig.mailer.link(NEW))).query == {"done": "moved"}
    assert await Identities(pool, rig.clock).use(who) == ann.id and await email_of(rig, ann.id) == NEW


@pytest_twisted.ensureDeferred
async def test_an_address_and_its_audit_entry_change_together_or_not_at_all(pool: Pool) -> None:
    rig = DashboardRig(pool)
    ann = await rig.person(ANN)
    browser = await rig.inside(ANN)
    await request_change(browser, NEW)
    link = rig.mailer.link(NEW)
    await browser.get(link)
    await pool.run("ALTER TABLE audit ADD CONSTRAINT full_disk CHECK (action = '') NOT VALID")
    for path, form in (("/confirm", {"link": link.partition("link=")[2]}), ("/withdraw", {}), ("", {"email": BOB, "password": PASSWORD})):
        assert (await browser.post(f"{ADDRESS}{path}", form)).status == 500
    assert (await browser.post(f"{PROFILE}/name", {"name": "Ann"})).status == 500
    assert await email_of(rig, ann.id) == ANN and await pool.rows("SELECT email FROM address_changes") == [(NEW,)]
    await pool.run("ALTER TABLE audit DROP CONSTRAINT full_disk")
    assert (await followed(browser, link)).query == {"done": "moved"}


@pytest_twisted.ensureDeferred
async def test_a_name_is_changed_and_may_not_be_empty(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    browser = await rig.inside(ANN)
    await browser.get(PROFILE)
    assert (await browser.post(f"{PROFILE}/name", {"name": " "})).status == 422
    assert (await browser.post(f"{PROFILE}/name", {"name": "<b>Ann</b>"})).query == {"done": "name"}
    assert "&lt;b&gt;Ann&lt;/b&gt;" in (await browser.get("/dashboard/settings")).text


@pytest_twisted.ensureDeferred
async def test_addresses_cannot_change_if_the_service_sends_no_emails(pool: Pool) -> None:
    rig = DashboardRig(pool)
    rig.assembly.mailer = None
    rig.pages = rig.assembly.resource()
    await rig.person(ANN)
    browser = await rig.inside(ANN)
    assert "Send confirmation link" not in (await browser.get(PROFILE)).text
    assert (await browser.post(ADDRESS, {"email": NEW, "password": PASSWORD})).status == 404


@pytest.mark.parametrize("user", ["nobody", "other"])
@pytest_twisted.ensureDeferred
async def test_the_store_accepts_a_link_from_its_user_only(pool: Pool, user: str) -> None:
    rig = DashboardRig(pool)
    addresses = Addresses(pool, rig.clock)
    ann, bob = await rig.assembly.users.create(ANN, "", HASHED), await rig.assembly.users.create(BOB, "", HASHED)
    secret = await addresses.propose(ann.id, NEW, timedelta(hours=1))
    assert await addresses.confirm(bob.id, secret if user == "other" else "x", b"") is None
    assert await addresses.confirm(ann.id, secret, b"") == ANN and await addresses.confirm(ann.id, secret, b"") is None


@pytest_twisted.ensureDeferred
async def test_a_link_that_is_confirmed_while_the_password_changes_has_no_effect(pool: Pool) -> None:
    users, addresses = (rig := DashboardRig(pool)).assembly.users, Addresses(pool, rig.clock)
    ann = await users.create(ANN, "", HASHED)
    secret = await addresses.propose(ann.id, NEW, timedelta(hours=1))
    confirming: list[Deferred[str | None]] = []

    async def change(tx: Transaction) -> None:
        """As Users.set_password, with a confirmation that begins in the middle of it."""
        await tx.run(SET_PASSWORD, ("new", ann.id))
        confirming.append(Deferred.fromCoroutine(addresses.confirm(ann.id, secret, b"")))
        while not await pool.rows("SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"):
            pass
        await end_access(tx, ann.id, b"")

    await pool.transact(change)
    assert await confirming[0] is None and await email_of(rig, ann.id) == ANN


@pytest_twisted.ensureDeferred
async def test_pages_show_times_in_the_zone_of_the_browser_until_another_one_is_chosen(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    browser = await rig.inside(ANN)
    assert " UTC</p>" in (await browser.get(PROFILE)).text
    browser.cookies["mailsvc-zone"] = "Nowhere/Else"
    assert " UTC</p>" in (await browser.get(PROFILE)).text
    browser.cookies["mailsvc-zone"] = "Asia/Tokyo"
    shown = (await browser.get(PROFILE)).text
    assert " JST</p>" in shown and 'data-zone="Asia/Tokyo"' in shown
    browser.cookies["mailsvc-zone"] = "Europe/Berlin"
    assert " JST</p>" in (await browser.get(PROFILE)).text  # somebody who travels keeps their zone
    assert (await browser.post(f"{PROFILE}/preferences", {"time_zone": "Mars/Olympus", "shortcuts": "on"})).status == 422
    assert (await browser.post(f"{PROFILE}/preferences", {"time_zone": "Asia/Kolkata"})).query == {"done": "preferences"}
    shown = (await browser.get(PROFILE)).text
    assert " IST</p>" in shown and 'value="Asia/Kolkata" selected' in shown and 'name="shortcuts" value="on" aria' in shown
    assert await rig.audit(account_id) == [("signed in", "password"), ("preferences changed", "Asia/Kolkata, shortcuts off")]


@pytest_twisted.ensureDeferred
async def test_an_address_that_nobody_confirmed_can_be_confirmed(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    await pool.run("UPDATE users SET verified_at = NULL")
    ann = await rig.inside(ANN)
    assert "It isn’t confirmed yet." in (await ann.get(PROFILE)).text
    await ann.post(f"{PROFILE}/address", {"email": ANN, "password": PASSWORD})
    await rig.settled()
    assert rig.mailer.subjects(ANN) == ["Confirm your email address"]
    link = rig.mailer.link(ANN)
    assert "Confirm address" in (await ann.get(link)).text
    confirmed = await ann.post(f"{PROFILE}/address/confirm", {"link": link.partition("link=")[2]})
    assert "Email address confirmed." in (await ann.get(confirmed.location)).text
    assert "It isn’t confirmed yet." not in (await ann.get(PROFILE)).text
    assert ("address confirmed", ANN) in await rig.audit(account_id)
    await rig.settled()
    assert rig.mailer.subjects(ANN) == ["Confirm your email address"]  # nothing changed that somebody should be warned of
