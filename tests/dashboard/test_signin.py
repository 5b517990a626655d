"""Signing in on the pages: sessions, throttling, reauthentication, required two-factor authentication, the audit log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyotp
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults

from mailsvc.accounts.onboarding import People, Refused
from mailsvc.dashboard.page import FIRST, REAUTHENTICATION_LIFETIME
from mailsvc.dashboard.signin.password import Passwords
from mailsvc.dashboard.signin.throttle import FREE, FREE_OF
from mailsvc.mail import csv_file
from mailsvc.store.events.suppressions import Suppressions
from mailsvc.store.people.sessions import Sessions
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import HASHED, NOW, PASSWORD, Browser, DashboardRig, session

SECURITY = "/dashboard/settings/security"
ANN = "ann@example.com"


async def with_app(browser: Browser) -> tuple[pyotp.TOTP, list[str]]:
    """Set up an authenticator app; returns it and the recovery codes."""
    page = await browser.get(f"{SECURITY}/totp")
    app = pyotp.TOTP(page.found(r'id="secret">([A-Z2-7]+)<'))
    shown = await browser.post(f"{SECURITY}/totp", {"code": app.at(browser.rig.clock.seconds())})
    codes = [line.strip() for line in shown.text.split("<li>")[1:]]
    return app, [code.partition("\n")[0] for code in codes]


@pytest_twisted.ensureDeferred
async def test_every_sign_in_step_begins_a_new_session_and_ends_the_old_one(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person("ann@example.com")
    browser = await rig.inside("ann@example.com")
    first = session(browser)
    app, _ = await with_app(browser)
    await browser.sign_in("ann@example.com")
    again = rig.browser()
    again.cookies["mailsvc"] = "planted"
    await again.sign_in("ann@example.com")
    half = session(again)
    assert half not in ("planted", first)
    await again.get("/dashboard/sign-in/code")
    rig.clock.advance(30)
    assert (await again.post("/dashboard/sign-in/code", {"code": app.at(rig.clock.seconds())})).location == "/dashboard"
    assert session(again) not in (half, first)
    stale = Browser(rig, {"mailsvc": half})
    assert (await stale.get("/dashboard/sign-in/code")).location.startswith("/dashboard/sign-in?")


@pytest_twisted.ensureDeferred
async def test_concurrent_attempts_count_before_their_passwords_are_checked(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    guesses = [Deferred.fromCoroutine(rig.browser().sign_in("ann@example.com", f"guess {number}")) for number in range(12)]
    statuses = sorted(shown.status for shown in await gatherResults(guesses))
    assert statuses == [422] * FREE + [429] * (12 - FREE)
    assert (await rig.browser().sign_in("ann@example.com")).status == 429
    other = DashboardRig(pool)  # another process with another clock: counts are in the database
    other.clock.rightNow = rig.clock.seconds()
    assert (await other.browser().sign_in("ann@example.com")).status == 429
    rig.clock.advance(3)
    assert (await rig.browser().sign_in("ann@example.com")).location == "/dashboard"
    assert (await rig.browser().sign_in("ann@example.com", "wrong")).status == 422  # forgotten
    assert (await rig.audit(account_id)).count(("sign-in failed", "password")) == FREE + 1
    stored = " ".join(row[0] for row in await pool.rows("SELECT encode(subject, 'escape') FROM sign_in_attempts"))
    assert stored and "ann@" not in stored and "192.0.2" not in stored
    rig.clock.advance(7200)
    await rig.assembly.attempts.sweep()
    assert await pool.rows("SELECT count(*) FROM sign_in_attempts") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_nobody_is_locked_out_of_a_known_browser(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person("ann@example.com")
    known = await rig.inside("ann@example.com")
    _, codes = await with_app(known)
    await known.get("/dashboard/settings")
    await known.post("/dashboard/sign-in/out")
    outsider = rig.browser()
    await outsider.sign_in("ann@example.com")  # with the right password
    await outsider.get("/dashboard/sign-in/code")
    statuses = [(await outsider.post("/dashboard/sign-in/code", {"code": "000000"})).status for _ in range(FREE + 1)]
    assert statuses == [422] * FREE + [429]
    await known.sign_in("ann@example.com")
    await known.get("/dashboard/sign-in/code")
    assert (await known.post("/dashboard/sign-in/code", {"code": codes[0]})).location == "/dashboard"


@pytest_twisted.ensureDeferred
async def test_an_unregistered_address_costs_the_same_work_and_writes(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DashboardRig(pool)
    await rig.person("ann@example.com")
    verified: list[str] = []
    monkeypatch.setattr("mailsvc.dashboard.signin.password._verified", lambda given, stored: verified.append(given) or False)
    pages, statements = [], []
    for email in ("ann@example.com", "bob@example.com"):
        browser = rig.browser()
        await browser.get("/dashboard/sign-in")
        before = pool.statements
        shown = await browser.post("/dashboard/sign-in", {"email": email, "password": "wrong"})
        statements.append(pool.statements - before)
        pages.append((shown.status, shown.text.count("\n")))
    assert pages[0] == pages[1] and len(verified) == 2
    assert statements[0] - statements[1] <= 1  # the audit entry is written in the background


# Reauthentication


@pytest_twisted.ensureDeferred
async def test_dangerous_changes_require_reauthentication_after_fifteen_minutes(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    bob = await rig.person("bob@example.com", account_id, "developer")
    browser = await rig.inside("ann@example.com")
    dangerous = {
        "settings/invite": {"email": "new@example.com", "role": "developer"},
        "settings/account": {"name": "Other"},
        f"settings/members/{bob.id}/role": {"role": "admin"},
        f"settings/members/{bob.id}/remove": {},
        "settings/security/totp/off": {},
        "settings/security/codes": {},
        f"settings/passkeys/{bob.id}/remove": {},
        f"settings/identities/{bob.id}/remove": {},
    }
    rig.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
    before = await rig.audit(account_id)
    await browser.get("/dashboard/settings")
    for path, form in dangerous.items():
        shown = await browser.post(f"/dashboard/{path}", form)
        assert shown.location == "/dashboard/sign-in/again?next=%2Fdashboard%2Fsettings&form=1", path
    assert "Your changes aren’t saved yet" in (await browser.get(shown.location)).text
    for path in ("settings/security/totp", "settings/passkeys/new"):
        assert (await browser.get(f"/dashboard/{path}")).query == {"next": f"/dashboard/{path}"}
    assert await rig.audit(account_id) == before
    assert "aren’t saved" not in (await browser.get("/dashboard/sign-in/again?next=/dashboard/settings")).text
    wrong = await browser.post("/dashboard/sign-in/again", {"password": "wrong", "next": "/dashboard/settings", "form": "1"})
    assert wrong.status == 422 and "Your changes aren’t saved yet" in wrong.text
    assert (await browser.post("/dashboard/sign-in/again", {"password": PASSWORD, "next": "//evil.example"})).location == "/dashboard"
    await browser.get("/dashboard/settings")
    assert (await browser.post("/dashboard/settings/invite", {"email": "new@example.com", "role": "developer"})).location.endswith(
        "done=invited"
    )
    assert ("sign-in failed", "password") in await rig.audit(account_id)


@pytest_twisted.ensureDeferred
async def test_a_password_alone_shows_nothing_of_the_accounts(pool: Pool) -> None:
    """Also not on error pages, which everybody can open."""
    rig = DashboardRig(pool)
    await rig.person(ANN, await rig.account("Secret plans"))
    await with_app(await rig.inside(ANN))
    half = rig.browser()
    assert (await half.sign_in(ANN)).location.startswith("/dashboard/sign-in/code")
    for path in ("/dashboard/nothing", "/dashboard/invitation?link=x", "/dashboard/sign-in/code"):
        assert "Secret plans" not in (await half.get(path)).text, path


@pytest_twisted.ensureDeferred
async def test_a_domain_with_umlauts_signs_in_and_is_shown_as_it_was_typed(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person("ann@xn--bcher-kva.example", await rig.account())
    refused = await rig.browser().sign_in("Ann@Bücher.example", "wrong")
    assert 'value="ann@bücher.example"' in refused.text and "xn--" not in refused.text
    assert (await rig.browser().sign_in("Ann@Bücher.example")).location == "/dashboard"


# Required two-factor authentication


@pytest_twisted.ensureDeferred
async def test_an_account_can_require_two_factor_authentication(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    await rig.person("bob@example.com", account_id, "developer")
    ann, bob = await rig.inside("ann@example.com"), await rig.inside("bob@example.com")
    await ann.get("/dashboard/settings")
    shown = await ann.post("/dashboard/settings/account", {"name": "Acme", "mfa": "on"})
    assert shown.status == 422 and "Set up two-factor authentication for yourself first" in shown.text
    await with_app(ann)
    await ann.get("/dashboard/settings")
    assert (await ann.post("/dashboard/settings/account", {"name": "Acme", "mfa": "on"})).location.endswith("done=changed")
    assert ("account changed", "Acme, second factor required") in await rig.audit(account_id)
    for path in ("", "/emails", "/keys", "/settings"):
        assert (await bob.get(f"/dashboard{path}")).location == SECURITY, path
    assert "requires two-factor authentication" in (await bob.get(SECURITY)).text
    assert (await bob.post("/dashboard/keys", {"name": "x", "permission": "full_access"})).location == SECURITY
    await with_app(bob)
    assert (await bob.get("/dashboard/settings")).status == 200
    # Removing it ends the access again.
    await bob.get(SECURITY)
    await bob.post(f"{SECURITY}/totp/off")
    assert (await bob.get("/dashboard/settings")).location == SECURITY


@pytest_twisted.ensureDeferred
async def test_removing_an_authenticator_app_twice_is_one_change(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    ann = await rig.inside(ANN)
    await with_app(ann)
    await ann.get(SECURITY)
    assert (await ann.post(f"{SECURITY}/totp/off")).query == {"done": "totp-off"}
    assert (await ann.post(f"{SECURITY}/totp/off")).location == SECURITY
    assert (await rig.audit(account_id)).count(("second factor removed", "authenticator app")) == 1
    assert rig.mailer.subjects(ANN).count("Your authenticator app was removed") == 1


# Sessions


@pytest_twisted.ensureDeferred
async def test_a_sign_in_with_the_old_password_does_not_outlive_a_change(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the password is changed right after the old one was found to be right."""
    rig = DashboardRig(pool)
    ann = await rig.person(ANN)
    verify = Passwords.verify

    async def verified(passwords: Passwords, given: str, stored: str | None) -> bool:
        right = await verify(passwords, given, stored)
        await rig.assembly.users.set_password(ann.id, "new", keep=b"")
        return right

    monkeypatch.setattr(Passwords, "verify", verified)
    browser = rig.browser()
    shown = await browser.sign_in(ANN)
    assert shown.status == 409 and "Your password was changed while you signed in." in shown.text
    assert (await browser.get("/dashboard")).location.startswith("/dashboard/sign-in?")


# The audit log


@pytest_twisted.ensureDeferred
async def test_a_change_and_its_audit_entry_are_written_together_or_not_at_all(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    bob = await rig.person("bob@example.com", account_id, "developer")
    ann = await rig.inside("ann@example.com")
    key = (await rig.assembly.keys.create(account_id, "Old", "full_access"))[0]
    listed = await Suppressions(pool, rig.clock).add(account_id, ["old@example.com"])
    domain = await rig.assembly.domains.add(account_id, "acme.example", "us-east-1", [])
    webhook = await rig.assembly.webhooks.add(account_id, "https://old.example/", ["email.sent"], b"s" * 24, 9)
    assert webhook is not None
    await ann.get("/dashboard/settings")
    before = await pool.rows("SELECT name, mfa_since FROM accounts WHERE id = %s", (account_id,))
    await pool.run("ALTER TABLE audit ADD CONSTRAINT full_disk CHECK (action = '') NOT VALID")
    changes: dict[str, dict[str, str]] = {
        f"members/{bob.id}/role": {"role": "admin"},
        f"members/{bob.id}/remove": {},
        "invite": {"email": "new@example.com", "role": "developer"},
        "account": {"name": "Other"},
        "security/password": {"old": PASSWORD, "password": "another four good words"},
        "security/sessions/others/end": {},
        "../keys": {"name": "New", "permission": "full_access"},
        f"../keys/{key}/revoke": {},
        "../suppressions": {"emails": "new@example.com"},
        f"../suppressions/{listed[0].id}/remove": {},
        "../webhooks": {"url": "https://new.example/", "on:email.sent": "1"},
        f"../webhooks/{webhook.id}/change": {"url": "https://new.example/", "on:email.sent": "1"},
        f"../webhooks/{webhook.id}/delete": {},
        f"../domains/{domain.id}/change": {"tls": "enforced"},
        f"../domains/{domain.id}/delete": {"name": "acme.example"},
    }
    for path, form in changes.items():
        if path == "security/sessions/others/end":
            await pool.run("ALTER TABLE audit DROP CONSTRAINT full_disk")
            await rig.inside("ann@example.com")
            await pool.run("ALTER TABLE audit ADD CONSTRAINT full_disk CHECK (action = '') NOT VALID")
        shown = await ann.post(f"/dashboard/settings/{path}".replace("settings/../", ""), form)
        assert shown.status in (500, 503), (path, shown.text)
    assert await pool.rows("SELECT role FROM members WHERE user_id = %s", (bob.id,)) == [("developer",)]
    assert await pool.rows("SELECT count(*) FROM links") == [(0,)]
    assert await pool.rows("SELECT name, mfa_since FROM accounts WHERE id = %s", (account_id,)) == before
    assert await pool.rows("SELECT count(*) FROM sessions") == [(2,)]
    assert await pool.rows("SELECT name FROM api_keys WHERE revoked_at IS NULL") == [("Old",)]
    assert await pool.rows("SELECT email FROM suppressions") == [("old@example.com",)]
    assert await pool.rows("SELECT url FROM webhooks") == [("https://old.example/",)]
    assert await pool.rows("SELECT name, tls FROM domains") == [("acme.example", "opportunistic")]
    await pool.run("ALTER TABLE audit DROP CONSTRAINT full_disk")
    assert (await rig.browser().sign_in("ann@example.com")).location == "/dashboard"


@pytest_twisted.ensureDeferred
async def test_the_audit_log_is_append_only_and_for_admins(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DashboardRig(pool)
    account_id, other = await rig.account(), await rig.account("Other")
    ann = await rig.person("ann@example.com", account_id)
    await rig.assembly.users.join(other, ann.id, "developer")
    await rig.person("=cmd()@example.com", account_id, "developer")
    browser, member = await rig.inside("ann@example.com"), await rig.inside("=cmd()@example.com")
    for sql in ("UPDATE audit SET action = 'x'", "DELETE FROM audit", "TRUNCATE audit"):
        with pytest.raises(StoreError, match="append-only"):
            await pool.run(sql)
    page = await browser.get("/dashboard/settings/audit")
    assert f">{datetime.fromtimestamp(NOW, UTC):%Y-%m-%d %H:%M:%S} UTC</time>" in page.text  # not only “2 seconds ago”
    monkeypatch.setattr("mailsvc.store.people.audit.PAGE", 2)
    pieces: list[bytes] = []
    monkeypatch.setattr(csv_file, "lines", lambda rows, lines=csv_file.lines: pieces.append(lines(rows)) or pieces[-1])
    export = await browser.get("/dashboard/settings/audit.csv")
    assert [piece.count(b"\r\n") for piece in pieces] == [1, 2, 1]  # never the whole log in memory
    assert export.headers["content-disposition"] == 'attachment; filename="audit.csv"'
    assert (
        export.text.startswith("time,who,address,action,subject\r\n") and "'=cmd()@example.com,192.0.2.1,signed in,password" in export.text
    )
    for path in ("audit", "audit.csv"):
        assert (await member.get(f"/dashboard/settings/{path}")).status == 403
    assert ("access denied", "/dashboard/settings/audit.csv") in await rig.audit(account_id)
    assert await rig.audit(other) == [("signed in", "password")]  # entries about a user are in all their accounts
    await browser.get("/dashboard/settings")
    await browser.post("/dashboard/sign-in/out")
    assert (await rig.audit(account_id))[-1] == ("signed out", "")


# Cookies and headers with TLS in front


@pytest_twisted.ensureDeferred
async def test_with_tls_cookies_and_pages_are_bound_to_the_host(pool: Pool) -> None:
    rig = DashboardRig(pool, "https://mail.example.com")
    await rig.person("ann@example.com")
    browser = rig.browser()
    shown = [await browser.get("/dashboard/sign-in"), await browser.sign_in("ann@example.com"), await browser.get("/dashboard/settings")]
    assert [page.status for page in shown] == [200, 303, 200]
    for page in shown:
        assert page.headers["strict-transport-security"] == "max-age=31536000; includeSubDomains"
        for line in page.cookies:
            assert line.startswith("__Host-mailsvc") and "; Path=/; HttpOnly; SameSite=Lax" in line and line.endswith("; Secure")
            assert "Domain" not in line
    assert set(browser.cookies) == {"__Host-mailsvc-form", "__Host-mailsvc", "__Host-mailsvc-device"}
    planted = Browser(rig, {"mailsvc": session(browser)})  # without the prefix another host could have set it
    assert (await planted.get("/dashboard/settings")).location.startswith("/dashboard/sign-in")


@pytest_twisted.ensureDeferred
async def test_forms_of_other_sites_sign_nobody_in_or_out(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person("ann@example.com")
    form = {"email": "ann@example.com", "password": PASSWORD}
    browser, inside = rig.browser(), await rig.inside("ann@example.com")
    await inside.get("/dashboard/settings")
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        await browser.get("/dashboard/sign-in")
        assert (await browser.post("/dashboard/sign-in", form, headers)).status == 403
        for path in ("sign-in/out", "sign-in/passkey", "sign-in/with/google", "settings/security/password"):
            assert (await inside.post(f"/dashboard/{path}", {}, headers)).status == 403
    assert (await browser.post("/dashboard/sign-in", {**form, "token": "0" * 64})).status == 403
    assert session(browser) == ""
    assert (await inside.get("/dashboard/settings")).status == 200


@pytest_twisted.ensureDeferred
async def test_a_password_waits_fifteen_minutes_for_the_second_factor(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person("ann@example.com")
    app, _ = await with_app(await rig.inside("ann@example.com"))
    browser = rig.browser()
    await browser.sign_in("ann@example.com")
    await browser.get("/dashboard/sign-in/code")
    rig.clock.advance(901)
    shown = await browser.post("/dashboard/sign-in/code", {"code": app.at(rig.clock.seconds())})
    assert shown.location.startswith("/dashboard/sign-in?next=") and "form=1" not in shown.location
    assert (await browser.get("/dashboard/sign-in/code")).location.startswith("/dashboard/sign-in?")


@pytest_twisted.ensureDeferred
async def test_successful_sign_ins_do_not_slow_down_others_on_the_same_ip_address(pool: Pool) -> None:
    throttle = DashboardRig(pool).throttle
    address = ("address", "192.0.2.1")
    for number in range(FREE_OF["address"] - 1):
        assert await throttle.attempt([("email", f"{number}@example.com"), address]) == 0
        await throttle.failed([address])
    for _ in range(3):
        subjects = [("email", "ann@example.com"), address]
        assert await throttle.attempt(subjects) == 0
        await throttle.passed(subjects)
    await throttle.failed([address])
    assert await throttle.attempt([("email", "bob@example.com"), address]) == 1


@pytest_twisted.ensureDeferred
async def test_the_cookie_lasts_as_long_as_the_session(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN)
    for days in (90, 0.5):
        rig.assembly.sessions = Sessions(pool, rig.clock, timedelta(hours=24), timedelta(days=days))
        rig.pages = rig.assembly.resource()
        [cookie] = [line for line in (await rig.browser().sign_in(ANN)).cookies if line.startswith("mailsvc=")]
        assert cookie.endswith(f"; Max-Age={int(days * 86400)}")


@pytest_twisted.ensureDeferred
async def test_the_operator_can_let_in_a_user_without_their_second_factor(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    people = People(rig.assembly.users, rig.assembly.sessions)
    await people.admit(account_id, "ann@example.com", "admin", timedelta(days=1))
    await rig.assembly.users.set_password((await rig.assembly.users.create("ann@example.com")).id, HASHED, keep=b"")
    browser = await rig.inside("ann@example.com")
    await with_app(browser)
    secret = await people.reset("ann@example.com", timedelta(hours=1))
    assert (await browser.get("/dashboard/settings")).location.startswith("/dashboard/sign-in")
    await browser.get(f"/dashboard/sign-in/link?link={secret}")
    assert (await browser.post("/dashboard/sign-in/link", {"link": secret})).location == "/dashboard"
    log = await rig.audit(account_id)
    assert log[0] == ("member added", "ann@example.com as admin") and ("second factors removed", "ann@example.com") in log
    with pytest.raises(Refused, match="no user with the address"):
        await people.reset("nobody@example.com", timedelta(hours=1))


@pytest.mark.parametrize("late", [False, True])
@pytest_twisted.ensureDeferred
async def test_the_first_sign_in_asks_for_a_password_before_anything_else_because_its_link_works_once(pool: Pool, late: bool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    _, secret = await People(rig.assembly.users, rig.assembly.sessions).admit(account_id, "ben@example.com", "admin", timedelta(days=1))
    browser = rig.browser()
    await browser.get(f"/dashboard/sign-in/link?link={secret}")
    await browser.post("/dashboard/sign-in/link", {"link": secret})
    if late:
        rig.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
    for path in ("", "/emails", "/settings/security", "/settings/security/totp", "/sign-in/again"):
        assert (await browser.get(f"/dashboard{path}")).location == FIRST, path
    page = await browser.get(FIRST)
    assert "Set password" in page.text and ("Add a passkey" in page.text) is not late
    if not late:
        assert (await browser.get("/dashboard/settings/passkeys/new")).status == 200
    assert (await browser.post(FIRST, {"password": "password12"})).status == 422
    assert (await browser.post(FIRST, {"password": "seven unrelated words here"})).location == "/dashboard"
    assert (await browser.get("/dashboard")).status == 200
    assert (await browser.post(FIRST, {"password": "another password of mine"})).location == "/dashboard"  # without effect
    assert (await rig.browser().sign_in("ben@example.com", "seven unrelated words here")).location == "/dashboard"
    assert ("password changed", "first sign-in") in await rig.audit(account_id)


@pytest_twisted.ensureDeferred
async def test_reauthentication_offers_a_link_if_the_only_provider_does_not_say_when_they_signed_in(pool: Pool) -> None:
    rig = DashboardRig(pool)
    user = await rig.person("ben@example.com")
    browser = await rig.inside("ben@example.com")
    await pool.run("INSERT INTO identities (id, issuer, subject, user_id, provider, label, created_at) VALUES"
                   " (gen_random_uuid(), 'https://github.com', '7', %s, 'github', 'ben', now())", (user.id,))  # fmt: skip
    await pool.run("UPDATE users SET password = NULL WHERE id = %s", (user.id,))
    rig.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
    page = await browser.get("/dashboard/sign-in/again")
    assert page.status == 200 and page.found('class="btn main-action wide" href="([^"]+)"') == "/dashboard/reset"


FAILING = "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100'; END $$"


@pytest.mark.parametrize("table", ["users", "accounts", "members", "audit"])
@pytest_twisted.ensureDeferred
async def test_a_sign_up_that_failed_is_completed_by_the_same_link(pool: Pool, table: str) -> None:
    rig = DashboardRig(pool)
    browser = rig.browser()
    await browser.get("/dashboard/sign-up")
    await browser.post("/dashboard/sign-up", {"email": ANN})
    await rig.settled()
    link = rig.mailer.link(ANN)
    await browser.get(link)
    form = {"link": link.partition("link=")[2], "name": "Ann", "account": "Acme", "password": PASSWORD}
    await pool.run(FAILING)
    await pool.run(f"CREATE TRIGGER fail BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION fail()")
    assert (await browser.post("/dashboard/sign-up/finish", form)).status == 503
    left = "SELECT (SELECT count(*) FROM users), (SELECT count(*) FROM accounts), (SELECT count(*) FROM links)"
    assert await pool.rows(left) == [(0, 0, 1)]
    await pool.run(f"DROP TRIGGER fail ON {table}")
    assert (await browser.post("/dashboard/sign-up/finish", form)).location == "/dashboard"
    assert (await browser.get("/dashboard")).status == 200
    assert await pool.rows("SELECT ramp FROM accounts") == [(10_000,)]
    assert (await rig.browser().get(link)).status == 410


@pytest_twisted.ensureDeferred
async def test_after_confirming_their_identity_people_are_back_on_a_page(pool: Pool) -> None:
    """Errors of a form are shown on its own path, which is no page: the next form is sent from there."""
    rig = DashboardRig(pool)
    await rig.person(ANN, await rig.account())
    ann = await rig.inside(ANN)
    await ann.get("/dashboard/settings")
    rig.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
    form = {"email": "bob@example.com", "role": "developer"}
    for sent_from, back in {
        "/dashboard/settings/invite": "/dashboard/settings",
        "/dashboard/settings/privacy/find": "/dashboard/settings/privacy",
        "/dashboard/settings/security/sessions/others/end": SECURITY,
        "/dashboard/start": "/dashboard",
        "/dashboard/metrics?days=30": "/dashboard/metrics?days=30",
        "/elsewhere": "/dashboard",
    }.items():
        shown = await ann.post("/dashboard/settings/invite", form, {"Referer": f"{rig.base_url}{sent_from}"})
        assert shown.query["next"] == back, sent_from
    mistyped = await ann.post(f"{SECURITY}/password", {"old": "wrong", "password": "x"})
    assert mistyped.found('name="back" value="([^"]+)"') == SECURITY  # of the form that changes the theme
