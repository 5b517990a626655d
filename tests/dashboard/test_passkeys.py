"""Passkeys on the pages: adding one, signing in with it, as second factor, reauthentication, rejected responses."""

from __future__ import annotations

import json

import attrs
import pytest_twisted

from mailsvc.dashboard.page import REAUTHENTICATION_LIFETIME
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.authenticator import PRESENT, VERIFIED, Device
from tests.dashboard.fixtures import Browser, DashboardRig, Response, session

NEW, USE = "/dashboard/settings/passkeys/new", "/dashboard/sign-in/passkey"
SECURITY = "/dashboard/settings/security"
OPTIONS = r'data-options="([^"]+)"'


def device(**changes: object) -> Device:
    return Device(**{"origin": "http://localhost:8025", "site": "localhost", **changes})  # type: ignore[arg-type]


async def added(browser: Browser, phone: Device, name: str = "Phone") -> Response:
    page = await browser.get(NEW)
    return await browser.post(NEW, {"name": name, "answer": phone.make(page.found(OPTIONS))})


async def used(browser: Browser, with_: Device, page: str = "/dashboard/sign-in", next_: str = "/dashboard/keys") -> Response:
    shown = await browser.get(page)
    return await browser.post(USE, {"next": next_, "answer": with_.prove(shown.found(OPTIONS))})


@attrs.define
class Owned:
    rig: DashboardRig
    browser: Browser
    device: Device
    codes: list[str]


async def owned(pool: Pool, phone: Device | None = None, **changes: object) -> Owned:
    """Ann, whose only second factor is a passkey."""
    rig = DashboardRig(pool, **changes)  # type: ignore[arg-type]
    await rig.person("ann@example.com")
    browser = await rig.inside("ann@example.com")
    phone = phone or device()
    shown = await added(browser, phone)
    assert "Save your recovery codes" in shown.text, shown.text
    return Owned(rig, browser, phone, [line.strip() for line in shown.text.split("<li>")[1:]])


@pytest_twisted.ensureDeferred
async def test_a_passkey_is_the_second_factor_after_a_password(pool: Pool) -> None:
    ann = await owned(pool)
    assert ann.rig.mailer.subjects("ann@example.com") == ["Your passkey Phone was added"]
    browser = ann.rig.browser()
    assert (
        await browser.sign_in("ann@example.com", next_="/dashboard/keys")
    ).location == "/dashboard/sign-in/code?next=%2Fdashboard%2Fkeys"
    half = session(browser)
    page = await browser.get("/dashboard/sign-in/code?next=/dashboard/keys")
    options = json.loads(page.found(OPTIONS))
    assert len(options["allowCredentials"]) == 1 and options["userVerification"] == "required" and options["rpId"] == "localhost"
    assert len(options["challenge"]) > 60
    shown = await browser.post(USE, {"next": "/dashboard/keys", "answer": ann.device.prove(page.found(OPTIONS))})
    assert shown.location == "/dashboard/keys" and session(browser) != half
    code = ann.rig.browser()
    await code.sign_in("ann@example.com")
    await code.get("/dashboard/sign-in/code")
    assert (await code.post("/dashboard/sign-in/code", {"code": ann.codes[0].partition("\n")[0]})).location == "/dashboard"


@pytest_twisted.ensureDeferred
async def test_a_passkey_signs_in_without_a_password(pool: Pool) -> None:
    ann = await owned(pool)
    browser = ann.rig.browser()
    page = await browser.get("/dashboard/sign-in?next=/dashboard/keys")
    assert "allowCredentials" not in json.loads(page.found(OPTIONS)) or json.loads(page.found(OPTIONS))["allowCredentials"] == []
    assert (await used(browser, ann.device)).location == "/dashboard/keys"
    assert (await browser.get("/dashboard/settings")).status == 200
    account = (await ann.rig.assembly.users.accounts((await ann.rig.assembly.users.named("ann@example.com")).id))[0]  # type: ignore[union-attr]
    assert (await ann.rig.audit(account.account_id))[-1] == ("signed in", "passkey")


@pytest_twisted.ensureDeferred
async def test_only_the_users_own_passkey_reauthenticates(pool: Pool) -> None:
    ann = await owned(pool)
    await ann.rig.person("bob@example.com")
    bob, bobs = await ann.rig.inside("bob@example.com"), device()
    await added(bob, bobs)
    ann.rig.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
    again = (await ann.browser.get(NEW)).location
    assert again.startswith("/dashboard/sign-in/again")
    page = await ann.browser.get(again)
    assert (await ann.browser.post(USE, {"answer": bobs.prove(page.found(OPTIONS))})).status == 403
    assert (await ann.browser.get(NEW)).status == 303
    assert (await used(ann.browser, ann.device, again, NEW)).location == NEW
    assert (await ann.browser.get(NEW)).status == 200


@pytest_twisted.ensureDeferred
async def test_a_response_is_valid_once_in_its_browser_for_ten_minutes(pool: Pool) -> None:
    ann = await owned(pool)
    browser = ann.rig.browser()
    options = (await browser.get("/dashboard/sign-in")).found(OPTIONS)
    answer = ann.device.prove(options)
    thief = ann.rig.browser()
    await thief.get("/dashboard/sign-in")
    assert (await thief.post(USE, {"answer": answer})).status == 403  # challenge of another browser
    assert (await browser.post(USE, {"answer": answer})).location == "/dashboard"
    copy = Browser(ann.rig, {"mailsvc-form": browser.cookies["mailsvc-form"]})
    await copy.get("/dashboard/sign-in")
    assert (await copy.post(USE, {"answer": ann.device.prove(options)})).status == 403  # already used
    late = ann.rig.browser()
    options = (await late.get("/dashboard/sign-in")).found(OPTIONS)
    ann.rig.clock.advance(601)
    assert (await late.post(USE, {"answer": ann.device.prove(options)})).status == 403
    new = (await ann.browser.get(NEW)).found(OPTIONS)
    assert (await ann.browser.post(USE, {"answer": ann.device.prove(new)})).status == 403  # challenge for another purpose


LIES: dict[str, object] = {
    "origin": "https://evil.example",
    "site": "evil.example",
    "flags": PRESENT,  # user not verified
    "flags ": VERIFIED,  # user not present
    "key": device().key,
    "owner": "AAAA",
}


@pytest_twisted.ensureDeferred
async def test_every_field_of_a_passkey_response_is_verified(pool: Pool) -> None:
    ann = await owned(pool)
    for name, lie in LIES.items():
        browser, changed = ann.rig.browser(), {name.strip(): lie}
        assert (await used(browser, attrs.evolve(ann.device, **changed))).status == 403, name
        assert session(browser) == ""
        if name not in ("key", "owner"):  # these are not wrong in a new passkey
            assert (await added(ann.browser, device(**changed))).status == 422, name
    assert await pool.rows("SELECT count(*) FROM passkeys") == [(1,)]
    assert (await used(ann.rig.browser(), attrs.evolve(ann.device, count=9))).status == 303


@pytest_twisted.ensureDeferred
async def test_a_malformed_passkey_response_is_refused(pool: Pool) -> None:
    browser = DashboardRig(pool).browser()
    await browser.get("/dashboard/sign-in")
    malformed = ("", "{}", "[]", "null", '{"response": {}}', "x" * 30_000, '{"rawId": "!", "response": {"clientDataJSON": "e30"}}')
    for answer in (*malformed, "[" * 19_000):
        assert (await browser.post(USE, {"answer": answer})).status == 403, answer


@pytest_twisted.ensureDeferred
async def test_a_counter_that_does_not_grow_is_refused_as_a_copy(pool: Pool) -> None:
    ann = await owned(pool)
    assert (await used(ann.rig.browser(), ann.device)).status == 303
    ann.device.steps = 0
    browser = ann.rig.browser()
    assert (await used(browser, ann.device)).status == 403 and session(browser) == ""
    assert "may have been copied" in ann.rig.mailer.subjects("ann@example.com")[-1]


@pytest_twisted.ensureDeferred
async def test_a_device_without_a_counter_is_accepted(pool: Pool) -> None:
    ann = await owned(pool, device(steps=0))
    for _ in range(2):
        assert (await used(ann.rig.browser(), ann.device)).status == 303


@pytest_twisted.ensureDeferred
async def test_only_their_owner_lists_renames_and_removes_passkeys(pool: Pool) -> None:
    ann = await owned(pool)
    await ann.rig.person("bob@example.com")
    bob = await ann.rig.inside("bob@example.com")
    page = await ann.browser.get(SECURITY)
    passkey = page.found(r"/dashboard/settings/passkeys/([0-9a-f-]{36})/remove")
    await bob.get(SECURITY)
    for what in ("name", "remove"):
        assert (await bob.post(f"/dashboard/settings/passkeys/{passkey}/{what}", {"name": "Mine"})).status == 404
    assert (await ann.browser.post(f"/dashboard/settings/passkeys/{passkey}/name", {"name": "<b>Key</b>"})).status == 303
    assert "&lt;b&gt;Key&lt;/b&gt;" in (await ann.browser.get(SECURITY)).text
    assert (await added(ann.browser, device(), "Other")).location.endswith("done=passkey")  # the codes stay valid
    again = await ann.browser.get(NEW)
    assert len(json.loads(again.found(OPTIONS))["excludeCredentials"]) == 2
    await ann.browser.get(SECURITY)
    await ann.browser.post(f"/dashboard/settings/passkeys/{passkey}/remove")
    assert await pool.rows("SELECT count(*) FROM recovery_codes") == [(10,)]
    assert (await used(ann.rig.browser(), ann.device)).status == 403
    last = (await ann.browser.get(SECURITY)).found(r"/dashboard/settings/passkeys/([0-9a-f-]{36})/remove")
    await ann.browser.post(f"/dashboard/settings/passkeys/{last}/remove")
    assert await pool.rows("SELECT count(*) FROM recovery_codes") == [(0,)]
    assert (await ann.rig.browser().sign_in("ann@example.com")).location == "/dashboard"  # no second factor is left


@pytest_twisted.ensureDeferred
async def test_the_only_way_to_sign_in_cannot_be_removed(pool: Pool) -> None:
    ann = await owned(pool)
    await pool.run("UPDATE users SET password = NULL")
    passkey = (await ann.browser.get(SECURITY)).found(r"/dashboard/settings/passkeys/([0-9a-f-]{36})/remove")
    assert (await ann.browser.post(f"/dashboard/settings/passkeys/{passkey}/remove")).location.endswith("done=only")
    assert await pool.rows("SELECT count(*) FROM passkeys") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_a_passkey_satisfies_required_two_factor_authentication(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    await rig.person("bob@example.com", account_id, "developer")
    ann, bob = await rig.inside("ann@example.com"), await rig.inside("bob@example.com")
    await added(ann, device())
    await ann.get("/dashboard/settings")
    assert (await ann.post("/dashboard/settings/account", {"name": "Acme", "mfa": "on"})).location.endswith("done=changed")
    assert (await bob.get("/dashboard/settings")).location == SECURITY
    await added(bob, device())
    assert (await bob.get("/dashboard/settings")).status == 200


@pytest_twisted.ensureDeferred
async def test_passkeys_are_not_offered_for_an_ip_address(pool: Pool) -> None:
    rig = DashboardRig(pool, "http://127.0.0.1:8025")
    await rig.person("ann@example.com")
    browser = rig.browser()
    assert "passkey" not in (await browser.get("/dashboard/sign-in")).text
    inside = await rig.inside("ann@example.com")
    assert "passkeys/new" not in (await inside.get(SECURITY)).text
    assert (await inside.get(NEW)).status == 404
