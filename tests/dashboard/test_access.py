"""Access that must end or must not begin: invitations, links, removed members, full-access keys, hostile input."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import cast
from uuid import UUID

import pyotp
import pytest
import pytest_twisted
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from zxcvbn import matching

from mailsvc.accounts.onboarding import People
from mailsvc.dashboard.page import REAUTHENTICATION_LIFETIME, PageRequest
from mailsvc.dashboard.signin.password import _SUBSTITUTES, AT_ONCE, WAITING, Busy, Passwords, _easy
from mailsvc.dashboard.signin.throttle import FREE_OF
from mailsvc.store.people import api_keys
from mailsvc.store.people.api_keys import digest
from mailsvc.store.people.audit import Line
from mailsvc.store.people.roles import LEAST, Role
from mailsvc.store.people.users import NewUser
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import PASSWORD, Browser, DashboardRig
from tests.dashboard.test_signin import SECURITY, with_app

ANN, BOB, CAT = "ann@example.com", "bob@example.com", "cat@example.com"
INVITE, NEW_PASSWORD = "/dashboard/settings/invite", "four other unrelated words"
STALE = REAUTHENTICATION_LIFETIME.total_seconds() + 1


async def invited(rig: DashboardRig, by: Browser, email: str, role: str = "developer") -> str:
    """Invite an address; returns the path in the email."""
    await by.get("/dashboard/settings")
    assert (await by.post(INVITE, {"email": email, "role": role})).location.endswith("done=invited")
    return rig.mailer.link(email)


async def accepted(browser: Browser, path: str) -> int:
    """Submit an invitation's form as a new user; returns the status."""
    if (shown := await browser.get(path)).status != 200:
        return shown.status
    form = {"link": path.partition("link=")[2], "name": "New", "password": NEW_PASSWORD}
    return (await browser.post("/dashboard/invitation", form)).status


async def without_mails(pool: Pool) -> DashboardRig:
    """A service that sends no emails itself."""
    rig = DashboardRig(pool)
    rig.assembly.mailer = None
    rig.pages = rig.assembly.resource()
    return rig


# Invitations


@pytest_twisted.ensureDeferred
async def test_an_invitation_does_not_set_the_password_of_an_existing_user(pool: Pool) -> None:
    """Ann is an admin of another account and has no password yet. Eve invites her and sees the link."""
    rig = await without_mails(pool)
    theirs, ours = await rig.account("Theirs"), await rig.account("Ours")
    people = People(rig.assembly.users, rig.assembly.sessions)
    _, link_of_ann = await people.admit(theirs, ANN, "admin", timedelta(days=1))
    await rig.person("eve@example.com", ours)
    eve = await rig.inside("eve@example.com")
    await eve.get("/dashboard/settings")
    shown = await eve.post(INVITE, {"email": ANN, "role": "developer"})
    path = shown.found(r"(/dashboard/invitation\?link=[\w-]+)<")
    outsider = rig.browser()
    page = await outsider.get(path)
    assert page.status == 200 and 'name="password"' not in page.text and "Sign in with that address first" in page.text
    form = {"link": path.partition("link=")[2], "name": "Eve", "password": NEW_PASSWORD}
    await outsider.post("/dashboard/invitation", form)
    user = await rig.assembly.users.named(ANN)
    assert user is not None and user.password is None
    assert (await outsider.get("/dashboard/settings")).location.startswith("/dashboard/sign-in")
    assert (await eve.get(path)).text.count("You are signed in as") == 1  # as a different user
    await eve.post("/dashboard/invitation", form)
    assert [one.account_id for one in await rig.assembly.users.accounts(user.id)] == [theirs]
    # Ann signs in as usual and then accepts it.
    ann = rig.browser()
    await ann.get(f"/dashboard/sign-in/link?link={link_of_ann}")
    await ann.post("/dashboard/sign-in/link", {"link": link_of_ann})
    await ann.get(path)
    assert (await ann.post("/dashboard/invitation", {"link": form["link"]})).location == "/dashboard"
    assert [one.account_id for one in await rig.assembly.users.accounts(user.id)] == [theirs, ours]
    assert ("invitation accepted", "developer") in await rig.audit(ours)


@pytest_twisted.ensureDeferred
async def test_a_new_user_accepts_an_invitation_link_that_was_not_emailed(pool: Pool) -> None:
    rig = await without_mails(pool)
    await rig.person(ANN, account_id := await rig.account())
    ann = await rig.inside(ANN)
    await ann.get("/dashboard/settings")
    path = (await ann.post(INVITE, {"email": BOB, "role": "developer"})).found(r"(/dashboard/invitation\?link=[\w-]+)<")
    assert await accepted(rig.browser(), path) == 303
    assert [member.email for member in await rig.assembly.users.members(account_id)] == [ANN, BOB]
    assert await accepted(rig.browser(), path) == 410


@pytest.mark.parametrize("how", ["remove", "role"])
@pytest_twisted.ensureDeferred
async def test_invitations_end_when_the_inviter_loses_their_rights(pool: Pool, how: str) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    bob = await rig.person(BOB, account_id, "admin")
    ann, former = await rig.inside(ANN), await rig.inside(BOB)
    path, kept = await invited(rig, former, CAT, "admin"), await invited(rig, ann, "dan@example.com")
    await ann.get("/dashboard/settings")
    await ann.post(f"/dashboard/settings/members/{bob.id}/{how}", {"role": "developer"})
    assert await pool.rows("SELECT email FROM links") == [("dan@example.com",)]  # in the same transaction
    assert await accepted(rig.browser(), path) == 410
    assert await accepted(rig.browser(), kept) == 303


@pytest_twisted.ensureDeferred
async def test_the_inviters_rights_are_checked_when_an_invitation_is_accepted(pool: Pool) -> None:
    """Here their membership row is deleted."""
    rig = DashboardRig(pool)
    ann = await rig.person(ANN, await rig.account())
    path = await invited(rig, await rig.inside(ANN), CAT)
    browser = rig.browser()
    await browser.get(path)
    await pool.run("UPDATE members SET role = 'developer' WHERE user_id = %s", (ann.id,))
    form = {"link": path.partition("link=")[2], "name": "New", "password": NEW_PASSWORD}
    assert (await browser.post("/dashboard/invitation", form)).status == 410
    assert (await browser.get(path)).status == 410
    assert await rig.assembly.users.named(CAT) is None


@pytest_twisted.ensureDeferred
async def test_a_removed_member_cannot_return_with_an_earlier_invitation(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    ann = await rig.inside(ANN)
    path = await invited(rig, ann, BOB, "admin")
    bob = await rig.person(BOB, account_id, "developer")  # added by the operator meanwhile
    await ann.get("/dashboard/settings")
    assert (await ann.post(f"/dashboard/settings/members/{bob.id}/remove")).location.endswith("done=removed")
    browser = await rig.inside(BOB)
    assert (await browser.get(path)).status == 410


@pytest_twisted.ensureDeferred
async def test_accepting_an_invitation_while_its_inviter_is_removed_is_serialized(pool: Pool) -> None:
    """Both take the same locks in the same order: nobody joins after the removal, and there is no deadlock."""
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    for number in range(8):
        bob = await rig.person(f"bob{number}@example.com", account_id, "admin")
        email = f"new{number}@example.com"
        secret = await rig.assembly.sessions.make_link("invite", email, timedelta(days=1), account_id, "admin", bob.id)
        accepting = rig.assembly.sessions.accept(
            secret, NewUser("New"), lambda link, user: Line(account_id, None, user.id, user.email, "", "invitation accepted")
        )
        removing = rig.assembly.users.remove(account_id, bob.id)
        both = [Deferred.fromCoroutine(one) for one in ((accepting, removing) if number % 2 else (removing, accepting))]
        answers = await gatherResults(both)
        accepted = next(one for one in answers if not isinstance(one, bool))
        members = {member.email for member in await rig.assembly.users.members(account_id)}
        assert (email in members) == (accepted is not None) and bob.email not in members
        assert (await rig.assembly.users.named(email) is not None) == (accepted is not None)
    assert await pool.rows("SELECT count(*) FROM links") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_the_audit_log_says_whose_invitation_was_revoked(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    ann = await rig.inside(ANN)
    path = await invited(rig, ann, BOB, "billing")
    withdraw = (await ann.get("/dashboard/settings")).found(r'action="([^"]+/withdraw)"')
    assert (await ann.post(withdraw)).location.endswith("done=withdrawn")
    assert (await ann.post(withdraw)).status == 404 and await accepted(rig.browser(), path) == 410
    assert (await rig.audit(account_id))[-1] == ("invitation revoked", f"{BOB} as billing")


@pytest_twisted.ensureDeferred
async def test_an_invitation_gives_its_role_to_somebody_who_has_joined_by_single_sign_on_since(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    other = await rig.account("Other")
    ann = await rig.inside(ANN)
    for email, now, then in ((BOB, LEAST, "developer"), (CAT, "marketing", "marketing")):  # the admin decided about Cat meanwhile
        path = await invited(rig, ann, email, "developer")
        user = await rig.person(email, other)
        await rig.assembly.users.join(account_id, user.id, cast(Role, now))
        browser = await rig.inside(email)
        await browser.get(path)
        assert (await browser.post("/dashboard/invitation", {"link": path.partition("link=")[2]})).location == "/dashboard"
        assert await pool.rows("SELECT role FROM members WHERE user_id = %s AND account_id = %s", (user.id, account_id)) == [(then,)]


# Links that sign a user in


@pytest.mark.parametrize("how", ["signed in", "by link"])
@pytest_twisted.ensureDeferred
async def test_changing_the_password_ends_links_and_a_proposed_authenticator_app(pool: Pool, how: str) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    people = People(rig.assembly.users, rig.assembly.sessions)
    ann = await rig.inside(ANN)
    secret = (await ann.get(f"{SECURITY}/totp")).found(r'id="secret">([A-Z2-7]+)<')  # seen by anyone who used this session
    _, by_operator = await people.admit(account_id, ANN, "admin", timedelta(days=1))
    lost = rig.browser()
    await lost.get("/dashboard/reset")
    await lost.post("/dashboard/reset", {"email": ANN})
    await rig.settled()
    reset = rig.mailer.link(ANN)
    if how == "signed in":
        await ann.get(SECURITY)
        shown = await ann.post(f"{SECURITY}/password", {"old": PASSWORD, "password": NEW_PASSWORD})
        assert shown.location.endswith("done=password")
    else:
        await lost.get(reset)
        form = {"link": reset.partition("link=")[2], "password": NEW_PASSWORD}
        assert (await lost.post("/dashboard/reset/finish", form)).location == "/dashboard"
    assert await pool.rows("SELECT purpose FROM links") == []
    outsider = rig.browser()
    assert (await outsider.get(reset)).status == 410
    await outsider.get(f"/dashboard/sign-in/link?link={by_operator}")
    assert (await outsider.post("/dashboard/sign-in/link", {"link": by_operator})).status in (403, 410)
    assert secret not in (await (await rig.inside(ANN, NEW_PASSWORD)).get(f"{SECURITY}/totp")).text


@pytest_twisted.ensureDeferred
async def test_links_end_when_the_operator_removes_second_factors(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN)
    reset = await rig.assembly.sessions.make_link("reset", ANN, timedelta(hours=1))
    await People(rig.assembly.users, rig.assembly.sessions).reset(ANN, timedelta(hours=1))
    assert await rig.assembly.sessions.find_link(reset, "reset") is None
    assert await pool.rows("SELECT purpose FROM links") == [("sign-in",)]


@pytest_twisted.ensureDeferred
async def test_choosing_passwords_is_throttled(pool: Pool) -> None:
    """Each check occupies a thread that all sign-ins share."""
    rig = DashboardRig(pool)
    await rig.person(ANN, await rig.account())
    path = await invited(rig, await rig.inside(ANN), BOB)
    browser, form = rig.browser(), {"link": path.partition("link=")[2], "name": "Bob", "password": "password12"}
    await browser.get(path)
    pages = [(await browser.post("/dashboard/invitation", form)).text for _ in range(FREE_OF["choosing"] + 1)]
    assert ["easy to guess" in text for text in pages] == [True] * FREE_OF["choosing"] + [False]
    assert "Too many attempts" in pages[-1]


@pytest_twisted.ensureDeferred
async def test_too_many_waiting_passwords_are_refused_with_503() -> None:
    passwords = Passwords(lambda work: Deferred())
    waiting = [Deferred.fromCoroutine(passwords.hash("x")) for _ in range(AT_ONCE + WAITING)]
    with pytest.raises(Busy):
        await passwords.hash("x")
    for one in waiting:
        one.addErrback(lambda failure: failure.trap(CancelledError))
        one.cancel()


def test_a_password_full_of_substitutes_is_judged_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is counted in combinations; trying all of them for this password takes 20 seconds."""
    tried: list[str] = []
    match = matching.dictionary_match
    monkeypatch.setattr(matching, "dictionary_match", lambda text, *given, **named: tried.append(text) or match(text, *given, **named))
    signs = "".join(sign for email in matching.L33T_TABLE.values() for sign in email)
    counts = []
    for length in (16, 32, 64, 1000):
        tried.clear()
        assert not _easy((signs * 50)[:length], ["ann"])
        counts.append(len(tried))
    assert max(counts) < 40
    assert set(signs) == set(_SUBSTITUTES)  # of the installed version
    assert _easy("p4$$w0rd1!", []) and not _easy("8&|%|9065+2267%50<&0", [])


# Reauthentication


@pytest_twisted.ensureDeferred
async def test_an_authenticator_code_reauthenticates_once(pool: Pool) -> None:
    rig = DashboardRig(pool)
    ann = await rig.person(ANN)
    browser = await rig.inside(ANN)
    app, _ = await with_app(browser)
    await pool.run("UPDATE users SET password = NULL WHERE id = %s", (ann.id,))  # users of identity providers may have none
    rig.clock.advance(STALE)
    again = "/dashboard/sign-in/again"
    assert "Authenticator code" in (await browser.get(again)).text
    code = app.at(rig.clock.seconds())
    assert (await browser.post(again, {"code": "000000" if code != "000000" else "111111"})).status == 422
    assert (await browser.get(f"{SECURITY}/totp")).location.startswith(again)
    await browser.get(again)
    assert (await browser.post(again, {"code": code, "next": SECURITY})).location == SECURITY
    rig.clock.advance(STALE)
    await browser.get(again)
    assert (await browser.post(again, {"code": code})).status == 422
    assert [(await browser.post(again, {"code": "1"})).status for _ in range(6)][-1] == 429


# Members


@pytest_twisted.ensureDeferred
async def test_who_leaves_or_demotes_themselves_lands_on_a_page_that_they_may_open(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    bob = await rig.person(BOB, account_id)
    await rig.assembly.keys.create(account_id, "Key", "full_access", created_by=bob.id)
    browser = await rig.inside(BOB)
    await browser.get("/dashboard/settings")
    demoted = await browser.post(f"/dashboard/settings/members/{bob.id}/role", {"role": "billing"})
    assert (await browser.get(demoted.location)).status == 200
    left = await browser.post(f"/dashboard/settings/members/{bob.id}/remove")
    assert left.location == "/dashboard"  # elsewhere, “Member removed.” would be about another account


# API keys


@pytest_twisted.ensureDeferred
async def test_an_account_has_a_largest_number_of_keys(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DashboardRig(pool)
    await rig.person(BOB, await rig.account(), "developer")
    bob = await rig.inside(BOB)
    await bob.get("/dashboard/keys")
    sending = {"name": "Shop", "permission": "sending_access", "domain": "", "lifetime": ""}
    monkeypatch.setattr(api_keys, "MOST", 1)
    assert (await bob.post("/dashboard/keys", sending)).status == 200
    for path in ("/dashboard/keys", "/dashboard/settings/smtp", "/dashboard/start"):
        refused = await bob.post(path, sending)
        assert refused.status == 422 and "at most 1 API keys" in refused.text, path


@pytest_twisted.ensureDeferred
async def test_creating_a_full_access_key_requires_a_reauthenticated_admin(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    await rig.person(BOB, account_id, "developer")
    ann, bob = await rig.inside(ANN), await rig.inside(BOB)
    full, sending = {"name": "Key", "permission": "full_access"}, {"name": "Key", "permission": "sending_access"}
    assert 'value="full_access"' not in (await bob.get("/dashboard/keys")).text
    shown = await bob.post("/dashboard/keys", full)
    assert shown.status == 422 and "Only admins can create keys with full access." in shown.text
    assert (await bob.post("/dashboard/keys", sending)).status == 200
    rig.clock.advance(STALE)
    await ann.get("/dashboard/keys")
    assert (await ann.post("/dashboard/keys", full)).location.startswith("/dashboard/sign-in/again")
    assert (await ann.post("/dashboard/keys", sending)).status == 200
    assert await pool.rows("SELECT permission FROM api_keys") == [("sending_access",)] * 2
    await ann.get("/dashboard/sign-in/again")
    await ann.post("/dashboard/sign-in/again", {"password": PASSWORD})
    await ann.get("/dashboard/keys")
    assert (await ann.post("/dashboard/keys", full)).status == 200
    assert await pool.rows("SELECT count(*) FROM api_keys WHERE permission = 'full_access'") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_revealing_a_webhook_secret_requires_a_reauthenticated_admin(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    await rig.person(BOB, account_id, "developer")
    webhook = await rig.assembly.webhooks.add(account_id, "https://a.example/", ["email.sent"], b"s" * 24, 9)
    assert webhook is not None
    path = f"/dashboard/webhooks/{webhook.id}"
    ann, bob = await rig.inside(ANN), await rig.inside(BOB)
    assert "whsec_" not in (await ann.get(path)).text + (await bob.get(path)).text
    assert (await bob.get(f"{path}/secret")).status == 403
    assert (await ann.get(f"{path}/secret")).text.count("whsec_") == 1
    assert ("webhook secret shown", "https://a.example/") in await rig.audit(account_id)
    rig.clock.advance(STALE)
    assert (await ann.get(f"{path}/secret")).query["next"] == f"{path}/secret"


@pytest_twisted.ensureDeferred
async def test_a_form_with_an_unknown_domain_creates_no_key(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    other = await rig.assembly.domains.add(await rig.account("Other"), "other.example", "us-east-1", [])
    ann = await rig.inside(ANN)
    for domain in (str(UUID(int=7)), str(other.id), "nonsense"):
        await ann.get("/dashboard/keys")
        shown = await ann.post("/dashboard/keys", {"name": "Key", "permission": "sending_access", "domain": domain})
        assert shown.status == 422 and "This domain doesn’t exist." in shown.text
    assert await pool.rows("SELECT count(*) FROM api_keys WHERE account_id = %s", (account_id,)) == [(0,)]


@pytest_twisted.ensureDeferred
async def test_a_form_with_unknown_values_changes_nothing(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    bob = await rig.person(BOB, account_id, "admin")
    domain = await rig.assembly.domains.add(account_id, "acme.example", "us-east-1", [])
    await rig.assembly.domains.update(account_id, domain.id, {"tls": "enforced"})
    ann, nobody = await rig.inside(ANN), str(UUID(int=7))
    await ann.get("/dashboard/settings")
    for path, form, status in (
        ("domains", {"name": "new.example", "region": "nowhere"}, 422),
        (f"domains/{domain.id}/change", {"tls": "some", "sending": "on"}, 422),
        (f"settings/members/{bob.id}/role", {"role": "owner"}, 422),
        (f"settings/members/{bob.id}/role", {}, 422),
        (f"settings/members/{bob.id}/remove", {f"revoke:{nobody}": "on"}, 422),
        (f"settings/members/{nobody}/remove", {}, 404),
        ("settings/invite", {"email": CAT, "role": "owner"}, 422),
        ("settings/show", {"account": nobody}, 404),
        (f"settings/invitations/{nobody}/withdraw", {}, 404),
        (f"keys/{nobody}/revoke", {}, 404),
        (f"emails/{nobody}/again", {}, 404),
        ("emails/export?id=" + nobody + "&domain=" + nobody, {}, 404),
        ("emails/export?id=" + nobody + "&key=" + nobody, {}, 404),
        ("logs/export?id=" + nobody + "&key=" + nobody, {}, 404),
    ):
        assert (await ann.post(f"/dashboard/{path}", form)).status == status, (path, form)
    await pool.run("UPDATE accounts SET suspended_at = now()")
    for path in ("settings/invite", f"domains/{domain.id}/mail"):
        await ann.get("/dashboard/settings")
        refused = await ann.post(f"/dashboard/{path}", {"email": CAT, "role": "developer"})
        assert refused.status == 422 and "This account is suspended and can’t send." in refused.text, path
    assert await pool.rows("SELECT name, tls FROM domains") == [("acme.example", "enforced")]
    assert await pool.rows("SELECT role FROM members WHERE user_id = %s", (bob.id,)) == [("admin",)]
    assert await pool.rows("SELECT count(*) FROM links") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_removing_a_member_lists_and_revokes_their_keys(pool: Pool) -> None:
    rig = DashboardRig(pool)
    keys = rig.assembly.keys
    await rig.person(ANN, account_id := await rig.account())
    bob = await rig.person(BOB, account_id, "developer")
    ann, former = await rig.inside(ANN), await rig.inside(BOB)
    await former.get("/dashboard/keys")
    for name in ("Shop", "Blog"):
        assert (await former.post("/dashboard/keys", {"name": name, "permission": "sending_access"})).status == 200
    shop, blog = reversed((await keys.list(account_id))[0])
    _, made_with_it = await keys.create(account_id, "Grandchild", "sending_access", created_with=shop.id)
    await keys.create(account_id, "Ann's", "sending_access")
    assert await keys.find(digest(made_with_it)) is not None
    page = await ann.get(f"/dashboard/settings/members/{bob.id}/remove")
    assert all(name in page.text for name in ("Shop", "Blog", "Grandchild")) and "Ann&#39;s" not in page.text
    chosen = re.findall(r'name="(revoke:[0-9a-f-]{36})" value="on" checked', page.text)
    assert len(chosen) == 3
    form = {name: "on" for name in chosen if name != f"revoke:{blog.id}"}
    assert (await ann.post(f"/dashboard/settings/members/{bob.id}/remove", form)).location.endswith("done=removed-keys")
    assert [key.name for key in (await keys.list(account_id))[0]] == ["Ann's", "Blog"]
    assert await keys.find(digest(made_with_it)) is None  # immediately
    assert f"Created by {BOB} (no longer a member)" in (await ann.get("/dashboard/keys")).text
    audit = await rig.audit(account_id)
    assert ("member removed", BOB) in audit and sum(action == "key revoked" for action, _ in audit) == 2
    other = await rig.person(CAT, account_id, "developer")
    assert (await (await rig.inside(CAT)).get(f"/dashboard/settings/members/{other.id}/remove")).status == 200  # members may leave
    assert (await (await rig.inside(CAT)).get(f"/dashboard/settings/members/{bob.id}/remove")).status == 403


@pytest_twisted.ensureDeferred
async def test_demoting_a_member_leads_to_their_full_access_keys(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    bob = await rig.person(BOB, account_id, "admin")
    await rig.assembly.keys.create(account_id, "Everything", "full_access", created_by=bob.id)
    ann = await rig.inside(ANN)
    await ann.get("/dashboard/settings")
    shown = await ann.post(f"/dashboard/settings/members/{bob.id}/role", {"role": "developer"})
    assert shown.location == "/dashboard/keys?done=demoted" and "still work" in (await ann.get(shown.location)).text


# Hostile input

STRANGE = (
    "a\0b",
    "\0",
    "١٢٣٤٥٦",
    "\u202e\ufeff\ufffe\U0010ffff",
    "İ" * 80,
    "\r\n.\r\n",
    "9" * 5000,
    "\ud800".encode("utf-8", "surrogatepass"),
)
FIELDS = (
    "email", "password", "old", "code", "name", "account", "next", "link", "ticket", "answer", "theme", "back", "role", "permission",
    "domain", "region", "tls", "sending", "url", "emails", "hours", "at", "to", "once", "mfa", "why", "enabled",
)  # fmt: skip


def routes(rig: DashboardRig, method: str) -> list[str]:
    resources = [*rig.pages._sections.values(), rig.pages._others]
    return sorted({rule.rule for one in resources for rule in one._app.url_map.iter_rules() if method in rule.methods})


@pytest.mark.slow
@pytest_twisted.ensureDeferred
async def test_no_character_in_a_form_path_or_query_causes_a_500(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    named = {
        "webhooks": (await rig.assembly.webhooks.add(account_id, "https://a.example/", ["email.sent"], b"s" * 24, 9)).id,  # type: ignore[union-attr]
        "domains": (await rig.assembly.domains.add(account_id, "acme.example", "us-east-1", [])).id,
    }
    await rig.assembly.domains.trust(account_id, "acme.example")
    named["emails"] = await rig.mail(account_id, "acme.example")
    ann, outsider = await rig.inside(ANN), rig.browser()
    await outsider.get("/dashboard/sign-in")
    skipped = {"/dashboard/sign-in/out", "/dashboard/domains/<text>/delete", "/dashboard/webhooks/<text>/delete"}
    chosen = {
        "role": "developer",
        "permission": "sending_access",
        "tls": "enforced",
        "hours": "1",
        "at": "2026-11-23T10:00",
        "region": "us-east-1",
    }
    for strange, fixed in [(strange, fixed) for strange in STRANGE for fixed in ({}, chosen)]:
        form: dict[str, str] = {"on:email.sent": "1"} | dict.fromkeys(FIELDS, strange) | fixed  # type: ignore[arg-type]
        for route in sorted(set(routes(rig, "POST")) - skipped):
            area = route.split("/")[2] if route.count("/") > 1 else ""
            path = re.sub("<[^>]+>", str(named.get(area, UUID(int=9))), route)
            for browser in (ann,) if fixed else (ann, outsider):  # nobody chooses these without signing in
                shown = await browser.post(path, form)
                assert shown.status < 500, (path, strange, shown.status, shown.text)
        rig.clock.advance(3700)  # wrong passwords are forgotten
        ann = await rig.inside(ANN)
    quoted = "%00%D9%A1%FF" + "9" * 5000
    names = "&".join(f"{name}={{0}}" for name in (*FIELDS, "q", "after", "id", "days", "zone", "status"))
    asked: set[str] = set()
    query = PageRequest.query
    monkeypatch.setattr(PageRequest, "query", lambda request, name, *given: asked.add(name) or query(request, name, *given))
    with_zone = []
    for route in routes(rig, "GET"):
        asked.clear()
        shown = await ann.get(f"{re.sub('<[^>]+>', quoted, route)}?{names.format(quoted)}")
        assert shown.status < 500, (route, shown.status, shown.text)
        with_zone += [route] if "zone" in asked else []
    assert "/dashboard/metrics" in with_zone
    for route in with_zone:
        for zone in ("Factory", "localtime", "posixrules", "posix/UTC", "right/UTC", "utc", "Europe"):
            shown = await ann.get(f"{route}?zone={zone}&q={zone}&status={zone}")
            assert shown.status < 500, (route, zone, shown.status, shown.text)
    await rig.settled()


@pytest_twisted.ensureDeferred
async def test_a_nul_is_rejected_and_digits_of_any_script_are_accepted(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN)
    browser = await rig.inside(ANN)
    app, _ = await with_app(browser)
    again = rig.browser()
    shown = await again.sign_in("a\0@example.com")
    assert shown.status == 400 and "“email” contains a NUL character" in shown.text
    assert (await again.sign_in(ANN, "a\0b")).status == 400
    assert (await again.sign_in(ANN)).location.startswith("/dashboard/sign-in/code")
    await again.get("/dashboard/sign-in/code")
    rig.clock.advance(60)
    code = pyotp.TOTP(app.secret).at(rig.clock.seconds())
    wrong = "".join(chr(ord(digit) - ord("0") + ord("٠")) for digit in f"{(int(code) + 1) % 1000000:06}")
    assert (await again.post("/dashboard/sign-in/code", {"code": wrong})).status == 422
    assert (await again.post("/dashboard/sign-in/code", {"code": "².".ljust(6, "²")})).status == 422
    arabic = "".join(chr(ord(digit) - ord("0") + ord("٠")) for digit in code)
    assert (await again.post("/dashboard/sign-in/code", {"code": arabic})).location == "/dashboard"


@pytest_twisted.ensureDeferred
async def test_no_header_causes_a_500(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN)
    browser = rig.browser()
    await browser.get("/dashboard/sign-in")
    form = {"email": ANN, "password": PASSWORD}
    assert (await browser.post("/dashboard/sign-in", form, {"Origin": "http://[::1"})).status == 403
    assert (await browser.post("/dashboard/settings/invite", form, {"Referer": "http://[::1"})).location.startswith("/dashboard/sign-in")
    shown = await browser.post("/dashboard/sign-in", form, {"User-Agent": "a\0b"})
    assert shown.location == "/dashboard", shown.text


@pytest_twisted.ensureDeferred
async def test_a_key_can_expire(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    ann = await rig.inside("ann@example.com")
    await ann.get("/dashboard/keys")
    form = {"name": "Key", "permission": "sending_access", "lifetime": "7"}
    assert (await ann.post("/dashboard/keys", form)).status == 422
    assert "Expires" in (await ann.post("/dashboard/keys", form | {"lifetime": "90"})).text
    [key] = (await rig.assembly.keys.list(account_id))[0]
    assert key.expires_at == key.created_at + timedelta(days=90)
    rig.clock.advance(91 * 86400)
    await rig.assembly.keys.create(account_id, "Office", "sending_access", networks=["192.0.2.0/24", "2001:db8::/48"])
    ann = await rig.inside("ann@example.com")
    shown = (await ann.get("/dashboard/keys")).text
    assert "Expired" in shown and shown.count("Only from 192.0.2.0/24, 2001:db8::/48") == 1


@pytest_twisted.ensureDeferred
async def test_an_account_can_be_limited_to_networks(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    ann = await rig.inside("ann@example.com")
    await ann.get("/dashboard/settings")
    [(address,)] = await pool.rows("SELECT address FROM sessions")
    form = {"name": "Acme"}
    for networks in ("192.0.2.300", "203.0.113.0/24", "\n".join(f"203.0.113.{n}" for n in range(21))):
        assert (await ann.post("/dashboard/settings/account", form | {"networks": networks})).status == 422
    assert (await ann.post("/dashboard/settings/account", form | {"networks": f"{address}\n203.0.113.0/24"})).status == 303
    assert "203.0.113.0/24" in (await ann.get("/dashboard/settings")).text
    await rig.assembly.accounts.restrict(account_id, ["203.0.113.0/24"])
    assert (await ann.get("/dashboard/emails")).status == 403
    assert (await ann.get("/dashboard/keys")).status == 403
    assert ("access denied", "/dashboard/keys, network") in await rig.audit(account_id)
    for own in ("/dashboard/settings/profile", SECURITY, f"{SECURITY}/totp"):
        assert (await ann.get(own)).status == 200, own
    assert (await ann.post(f"{SECURITY}/sessions/others/end")).location == f"{SECURITY}?done=others"
    await rig.assembly.accounts.restrict(account_id, [])
    assert (await ann.get("/dashboard/emails")).status == 200


@pytest_twisted.ensureDeferred
async def test_a_page_that_updates_itself_asks_once_when_access_has_ended(pool: Pool) -> None:
    """It is loaded again as a whole, which shows why. Each denied request is in the audit log."""
    rig = DashboardRig(pool)
    await rig.person(ANN, account_id := await rig.account())
    ann = await rig.inside(ANN)
    await rig.assembly.accounts.restrict(account_id, ["203.0.113.0/24"])
    for path in ("/dashboard/emails?newer=1", f"/dashboard/domains/{account_id}?test=1"):
        part = await ann._request(b"GET", path, b"", {"HX-Request": "true"})
        assert (part.status, part.headers.get("hx-redirect"), part.text) == (200, path, "")
        assert (await ann.get(path)).status == 403
    await rig.assembly.accounts.restrict(account_id, [])
    gone = await ann._request(b"GET", f"/dashboard/domains/{account_id}", b"", {"HX-Request": "true"})
    assert gone.headers.get("hx-redirect") == f"/dashboard/domains/{account_id}"
