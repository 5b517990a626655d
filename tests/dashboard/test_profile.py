"""Another address and another name: who may ask, what is told to whom, and what ends."""

from __future__ import annotations

from datetime import timedelta

import pytest
import pytest_twisted

from mailsvc.dashboard.page import REAUTHENTICATION_LIFETIME
from mailsvc.dashboard.signin.throttle import FREE
from mailsvc.store.people.addresses import Addresses
from mailsvc.store.people.identities import Identities, Identity
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import HASHED, PASSWORD, Browser, House, Shown, session

PROFILE = "/dashboard/settings/profile"
ADDRESS = f"{PROFILE}/address"
ANN, NEW, BOB = "ann@example.com", "new@example.com", "bob@example.com"


async def asked(browser: Browser, email: str, password: str = PASSWORD) -> Shown:
    await browser.get(PROFILE)
    shown = await browser.post(ADDRESS, {"email": email, "password": password})
    await browser.house.settled()
    return shown


async def followed(browser: Browser, link: str) -> Shown:
    page = await browser.get(link)
    return page if page.status != 200 else await browser.post(f"{ADDRESS}/confirm", {"link": link.partition("link=")[2]})


async def email_of(house: House, user_id: object) -> str:
    [(email,)] = await house.pool.rows("SELECT email FROM users WHERE id = %s", (user_id,))
    return str(email)


@pytest_twisted.ensureDeferred
async def test_an_address_changes_once_the_link_that_was_sent_there_is_followed(pool: Pool) -> None:
    house = House(pool)
    account_id = await house.account()
    ann = await house.person(ANN, account_id)
    browser, other = await house.inside(ANN), await house.inside(ANN)
    reset = await house.assembly.sessions.make_link("reset", ANN, timedelta(hours=1))
    up = await house.assembly.sessions.make_link("sign-up", NEW, timedelta(hours=1))
    assert (await asked(browser, NEW.upper())).location == PROFILE
    assert "We sent a confirmation link to" in (await browser.get(PROFILE)).text
    assert await email_of(house, ann.id) == ANN and house.mailer.subjects(ANN) == []
    link = house.mailer.link(NEW)
    page = await browser.get(link)
    assert page.status == 200 and await email_of(house, ann.id) == ANN  # who only looks changes nothing
    assert (await followed(browser, link)).query == {"done": "moved"}
    assert await email_of(house, ann.id) == NEW
    assert house.mailer.subjects(ANN) == ["Your email address was changed"] and house.mailer.subjects(NEW) == [
        "Confirm your new email address"
    ]
    assert (await browser.get("/dashboard/settings")).status == 200
    assert (await other.get("/dashboard/settings")).location.startswith("/dashboard/sign-in")  # other sessions have ended
    for secret, purpose in ((reset, "reset"), (up, "sign-up")):
        assert await house.assembly.sessions.find_link(secret, purpose) is None  # type: ignore[arg-type]
    assert (await followed(browser, link)).status == 410
    assert (await house.browser().sign_in(ANN)).status == 422
    assert (await house.browser().sign_in(NEW)).location == "/dashboard"
    assert ("address changed", f"{ANN} to {NEW}") in await house.audit(account_id)


@pytest_twisted.ensureDeferred
async def test_whether_somebody_has_an_address_is_told_to_them_alone(pool: Pool) -> None:
    house = House(pool)
    account_id = await house.account()
    await house.person(ANN, account_id)
    bob = await house.person(BOB)
    browser = await house.inside(ANN)
    pages, written = [], []
    for email in (BOB, "nobody@example.com"):
        shown = await asked(browser, email)
        pages.append((shown.status, shown.location, (await browser.get(PROFILE)).text.replace(email, "X").replace(browser.token, "")))
        written.append(await pool.rows("SELECT expires_at FROM address_changes"))
    assert pages[0] == pages[1] and written[0] == written[1]
    assert house.mailer.subjects(BOB) == ["Your email address is already in use"]
    assert house.mailer.sent[0][1].link is None
    assert house.mailer.subjects("nobody@example.com") == ["Confirm your new email address"]
    assert [line for line in await house.audit(account_id) if "address" in line[0]] == [
        ("address change requested", BOB), ("address change requested", "nobody@example.com"),
    ]  # fmt: skip
    assert await email_of(house, bob.id) == BOB


@pytest_twisted.ensureDeferred
async def test_a_link_is_for_who_asked_and_while_nobody_else_has_the_address(pool: Pool) -> None:
    house = House(pool)
    ann, bob = await house.person(ANN), await house.person(BOB)
    browser, bobs = await house.inside(ANN), await house.inside(BOB)
    await asked(browser, NEW)
    link = house.mailer.link(NEW)
    nobody = await house.browser().get(link)
    assert nobody.location.startswith("/dashboard/sign-in?next=%2Fdashboard%2Fsettings%2Fprofile")
    assert (await followed(bobs, link)).status == 410 and await email_of(house, bob.id) == BOB
    await browser.get(link)
    await house.person(NEW)  # in between
    assert (await browser.post(f"{ADDRESS}/confirm", {"link": link.partition("link=")[2]})).status == 410
    assert await email_of(house, ann.id) == ANN


@pytest_twisted.ensureDeferred
async def test_a_newer_wish_a_new_password_and_time_end_a_link(pool: Pool) -> None:
    house = House(pool)
    ann = await house.person(ANN)
    browser = await house.inside(ANN)
    links = []
    for email in ("one@example.com", "two@example.com"):
        await asked(browser, email)
        links.append(house.mailer.link(email))
    assert (await followed(browser, links[0])).status == 410
    assert (await browser.get(links[1])).status == 200
    await browser.post("/dashboard/settings/security/password", {"old": PASSWORD, "password": "another four good words"})
    assert (await followed(browser, links[1])).status == 410
    await asked(browser, "three@example.com", "another four good words")
    await browser.post(f"{ADDRESS}/withdraw")
    assert (await followed(browser, house.mailer.link("three@example.com"))).status == 410
    await asked(browser, "four@example.com", "another four good words")
    house.clock.advance(3601)
    assert (await followed(browser, house.mailer.link("four@example.com"))).status == 410
    assert await email_of(house, ann.id) == ANN
    await house.assembly.sessions.sweep()
    assert await pool.rows("SELECT FROM address_changes") == []


@pytest_twisted.ensureDeferred
async def test_asking_takes_the_password_and_is_slowed_down(pool: Pool) -> None:
    house = House(pool)
    await house.person(ANN)
    browser = await house.inside(ANN)
    wrong = await asked(browser, NEW, "not my password")
    assert wrong.status == 422 and "Incorrect password." in wrong.text and NEW in wrong.text  # what was typed stays
    for email, message in (("no address", "Enter a valid email address."), (ANN, "This is already your address.")):
        shown = await asked(browser, email)
        assert shown.status == 422 and message in shown.text
    statuses = [(await asked(browser, f"{number}@example.com")).status for number in range(FREE + 1)]
    assert statuses == [303] * FREE + [429]
    assert len(house.mailer.sent) == FREE


@pytest_twisted.ensureDeferred
async def test_who_signs_in_elsewhere_shows_again_who_they_are(pool: Pool) -> None:
    house = House(pool)
    ann = await house.person(ANN, password=None)
    who = Identity("https://issuer.example", "7", "google", ANN)
    await Identities(pool, house.clock).add(ann.id, who)
    secret = await house.assembly.sessions.make_link("sign-in", ANN, timedelta(hours=1))
    browser = house.browser()
    await browser.get(f"/dashboard/sign-in/link?link={secret}")
    await browser.post("/dashboard/sign-in/link", {"link": secret})
    assert 'name="password"' not in (await browser.get(PROFILE)).text
    house.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
    assert (await asked(browser, NEW)).location.startswith("/dashboard/sign-in/again")
    assert house.mailer.sent == []
    held = await house.assembly.sessions.find(session(browser))
    assert held is not None
    await house.assembly.sessions.proved(held.hash)
    assert (await asked(browser, NEW)).location == PROFILE
    assert (await followed(browser, house.mailer.link(NEW))).query == {"done": "moved"}
    assert await Identities(pool, house.clock).use(who) == ann.id and await email_of(house, ann.id) == NEW


@pytest_twisted.ensureDeferred
async def test_an_address_and_its_line_change_together_or_not_at_all(pool: Pool) -> None:
    house = House(pool)
    ann = await house.person(ANN)
    browser = await house.inside(ANN)
    await asked(browser, NEW)
    link = house.mailer.link(NEW)
    await browser.get(link)
    await pool.run("ALTER TABLE audit ADD CONSTRAINT full_disk CHECK (action = '') NOT VALID")
    for path, form in (("/confirm", {"link": link.partition("link=")[2]}), ("/withdraw", {}), ("", {"email": BOB, "password": PASSWORD})):
        assert (await browser.post(f"{ADDRESS}{path}", form)).status == 500
    assert (await browser.post(f"{PROFILE}/name", {"name": "Ann"})).status == 500
    assert await email_of(house, ann.id) == ANN and await pool.rows("SELECT email FROM address_changes") == [(NEW,)]
    await pool.run("ALTER TABLE audit DROP CONSTRAINT full_disk")
    assert (await followed(browser, link)).query == {"done": "moved"}


@pytest_twisted.ensureDeferred
async def test_a_name_is_changed_and_may_not_be_empty(pool: Pool) -> None:
    house = House(pool)
    account_id = await house.account()
    await house.person(ANN, account_id)
    browser = await house.inside(ANN)
    await browser.get(PROFILE)
    assert (await browser.post(f"{PROFILE}/name", {"name": " "})).status == 422
    assert (await browser.post(f"{PROFILE}/name", {"name": "<b>Ann</b>"})).query == {"done": "name"}
    assert "&lt;b&gt;Ann&lt;/b&gt;" in (await browser.get("/dashboard/settings")).text


@pytest_twisted.ensureDeferred
async def test_without_mails_of_its_own_no_address_is_changed(pool: Pool) -> None:
    house = House(pool)
    house.assembly.mailer = None
    house.pages = house.assembly.resource()
    await house.person(ANN)
    browser = await house.inside(ANN)
    assert "Send confirmation link" not in (await browser.get(PROFILE)).text
    assert (await browser.post(ADDRESS, {"email": NEW, "password": PASSWORD})).status == 404


@pytest.mark.parametrize("user", ["nobody", "other"])
@pytest_twisted.ensureDeferred
async def test_the_store_takes_a_link_of_its_person_alone(pool: Pool, user: str) -> None:
    house = House(pool)
    addresses = Addresses(pool, house.clock)
    ann, bob = await house.assembly.users.create(ANN, "", HASHED), await house.assembly.users.create(BOB, "", HASHED)
    secret = await addresses.propose(ann.id, NEW, timedelta(hours=1))
    assert await addresses.confirm(bob.id, secret if user == "other" else "x", b"") is None
    assert await addresses.confirm(ann.id, secret, b"") == ANN and await addresses.confirm(ann.id, secret, b"") is None
