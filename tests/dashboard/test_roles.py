"""Roles: what members see of pages they cannot change, and changing from one account to another."""

from __future__ import annotations

import re
from typing import cast, get_args

import pytest
import pytest_twisted

from mailsvc.dashboard.access.routes import ROUTES, admits, opens, roles_with
from mailsvc.dashboard.assembly import NAVIGATION
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.values import Content
from mailsvc.store.people.audit import DENIED_MOST
from mailsvc.store.people.roles import Permission, Role
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.emails.test_shared_trial import with_sender
from tests.dashboard.fixtures import Browser, DashboardRig
from tests.dashboard.test_signin import with_app

ANN = "ann@example.com"
SWITCH = "/dashboard/settings/show"


async def as_(rig: DashboardRig, role: Role) -> Browser:
    await rig.person(ANN, await rig.account(), role)
    browser = await (rig.inside(ANN) if role != "billing" else signed_in(rig))
    await browser.get("/dashboard/settings")
    return browser


async def signed_in(rig: DashboardRig) -> Browser:
    browser = rig.browser()
    await browser.sign_in(ANN)
    return browser


@pytest.mark.parametrize("role", get_args(Role))
@pytest_twisted.ensureDeferred
async def test_every_link_of_the_navigation_and_the_settings_can_be_opened(pool: Pool, role: str) -> None:
    rig = DashboardRig(pool)
    browser = await as_(rig, cast(Role, role))
    shown = await browser.get("/dashboard/settings")
    links = set(re.findall(r'<a href="(/dashboard[^"?]*)"', shown.text))
    assert {"/dashboard/settings", "/dashboard/settings/security"} <= links
    for link in links:
        if link != "/dashboard/sandbox":
            assert (await browser.get(link)).status == 200, link


@pytest_twisted.ensureDeferred
async def test_pages_that_only_change_things_are_not_linked_for_people_who_only_look(pool: Pool) -> None:
    rig = DashboardRig(pool)
    browser = await as_(rig, "read-only")
    page = await browser.get("/dashboard/domains")
    assert "Your role, Read-only, can look at this page but not change it." in page.text and 'class="main looking"' in page.text
    refused = await browser.post("/dashboard/domains", {"name": "example.com"})
    assert refused.status == 403 and "It needs: Admin or Developer." in refused.text
    assert ("access denied", "/dashboard/domains") in await rig.audit((await rig.assembly.users.accounts(await user(rig)))[0].account_id)
    assert "looking" not in (await browser.get("/dashboard/settings/profile")).text


@pytest_twisted.ensureDeferred
async def test_a_member_cannot_fill_the_audit_log_with_refused_requests(pool: Pool) -> None:
    rig = DashboardRig(pool)
    browser = await as_(rig, "read-only")
    account_id = (await rig.assembly.users.accounts(await user(rig)))[0].account_id

    async def denied() -> list[str]:
        return [subject for action, subject in await rig.audit(account_id) if action == "access denied"]

    for number in range(DENIED_MOST + 5):
        assert (await browser.get(f"/dashboard/settings/audit?{number}")).status == 403
    *others, last = await denied()
    assert others == ["/dashboard/settings/audit"] * (DENIED_MOST - 1)
    assert last == "/dashboard/settings/audit; further ones are not recorded for an hour"
    rig.clock.advance(3601)
    await browser.get("/dashboard/settings/audit")
    assert len(await denied()) == DENIED_MOST + 1


@pytest_twisted.ensureDeferred
async def test_no_page_links_or_has_a_form_for_what_the_role_cannot_do(pool: Pool) -> None:
    rig, _, account_id = await with_sender(pool)  # which offers a test email
    domain = await rig.assembly.domains.add(account_id, "acme.example", "us-east-1", [])
    sql = "INSERT INTO rollups (account_id, hour, domain_id, type, count) VALUES (%s, date_trunc('hour', now()), %s, 'email.sent', 1)"
    await pool.run(sql, (account_id, domain.id))
    await pool.run("UPDATE accounts SET suspended_at = now(), closes_at = now() + interval '1 day' WHERE id = %s", (account_id,))
    content = Content(name="News", segment_id=None, sender="a@acme.example", subject="News")  # the domain is not verified
    draft = f"/dashboard/broadcasts/{await Broadcasts(pool, rig.clock).add(account_id, content)}"
    browser = await rig.inside(ANN)
    needed = {route.path: route.access for route in ROUTES if route.method == "POST"}
    roles: tuple[Role, ...] = ("marketing", "read-only")
    for role in roles:
        await pool.run("UPDATE members SET role = %s WHERE account_id = %s", (role, account_id))
        for path in ("/dashboard", "/dashboard/metrics", "/dashboard/settings/smtp", draft, f"{draft}/edit"):
            shown = (await browser.get(path)).text
            links = re.findall(r'<a (?!class="btn changes")[^>]*href="(/dashboard[^"]*)"', shown)
            # A page on which somebody only looks hides its forms, and links of the class `changes`.
            forms = [] if 'class="main looking"' in shown else re.findall(r'<form method="post" action="([^"]+)"', shown)
            assert [link for link in links if not opens(role, link)] == [], (role, path)
            assert [form for form in forms if not admits(role, needed.get(form, "public"))] == [], (role, path)


async def user(rig: DashboardRig) -> object:
    found = await rig.assembly.users.named(ANN)
    assert found is not None
    return found.id


@pytest_twisted.ensureDeferred
async def test_billing_lands_on_the_plan_and_sees_no_mail(pool: Pool) -> None:
    rig = DashboardRig(pool)
    browser = await as_(rig, "billing")
    assert (await browser.get("/dashboard")).location == "/dashboard/settings/plan"
    assert (await browser.get("/dashboard/settings/plan")).status == 200
    assert (await browser.get("/dashboard/emails")).status == 403


@pytest_twisted.ensureDeferred
async def test_marketing_sees_figures_but_not_the_emails_on_the_home_page(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.assembly.domains.add(account_id, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account_id, "acme.example")
    await rig.mail(account_id, "acme.example")
    for email, role, sees in ((ANN, "marketing", False), ("bob@example.com", "read-only", True)):
        await rig.person(email, account_id, cast(Role, role))
        home = await (await rig.inside(email)).get("/dashboard")
        assert ("Recent emails" in home.text) == sees and "Create API key" not in home.text


def test_a_link_with_an_id_needs_the_permission_of_its_page() -> None:
    assert opens("read-only", "/dashboard/domains/0190") and not opens("marketing", "/dashboard/domains/0190?x=1")
    assert not opens(None, "/dashboard/emails") and opens("billing", "/dashboard/settings/security")
    assert all(opens("admin", f"/dashboard/{path}" if path else "/dashboard") for path, *_ in NAVIGATION)
    assert not opens("billing", "/dashboard")


def test_the_roles_with_a_permission_are_named() -> None:
    assert roles_with("change_audience") == "Admin, Developer or Marketing"
    assert all(roles_with(one).startswith("Admin") for one in get_args(Permission))


# Several accounts


@pytest_twisted.ensureDeferred
async def test_a_member_of_several_accounts_switches_on_every_page(pool: Pool) -> None:
    rig = DashboardRig(pool)
    first, second, foreign = await rig.account("First"), await rig.account("Second"), await rig.account("Foreign")
    await rig.person(ANN, first)
    ann = await rig.assembly.users.named(ANN)
    assert ann is not None
    browser = await rig.inside(ANN)
    assert "Switch account" not in (await browser.get("/dashboard/emails")).text
    await rig.assembly.users.join(second, ann.id, "read-only")
    page = await browser.get("/dashboard/emails")
    assert page.found(r'name="account" value="([0-9a-f-]{36})">Second<') == str(second) and "Foreign" not in page.text
    assert (await browser.post(SWITCH, {"account": str(second)})).location == "/dashboard"
    assert "Your role, Read-only" in (await browser.get("/dashboard/domains")).text  # the role in that account
    assert (await browser.post(SWITCH, {"account": str(foreign)})).status == 404
    # A page that shows the second account is still open in another tab.
    assert (await browser.post(SWITCH, {"account": str(first)})).location == "/dashboard"
    late = await browser.post("/dashboard/suppressions", {"emails": "bob@example.net"})
    assert late.status == 403 and "switched accounts" in late.text and await pool.rows("SELECT FROM suppressions") == []
    assert (await browser.post("/dashboard/settings/profile/name", {"name": "Ann"})).status == 303
    await browser.get("/dashboard/suppressions")
    assert (await browser.post("/dashboard/suppressions", {"emails": "bob@example.net"})).status == 303


@pytest_twisted.ensureDeferred
async def test_switching_does_not_get_around_the_second_factor_that_an_account_requires(pool: Pool) -> None:
    rig = DashboardRig(pool)
    first, strict = await rig.account("First"), await rig.account("Strict")
    await rig.person(ANN, first)
    ann = await rig.assembly.users.named(ANN)
    assert ann is not None
    await rig.assembly.users.join(strict, ann.id, "admin")
    await rig.assembly.users.change_account(strict, "Strict", True, [])
    browser = await rig.inside(ANN)
    await browser.get("/dashboard")
    await browser.post(SWITCH, {"account": str(strict)})
    assert (await browser.get("/dashboard/emails")).location == "/dashboard/settings/security"
    back = await browser.get("/dashboard/settings/security")  # from where one can go back
    assert f'value="{first}"' in back.text
    assert (await browser.post(SWITCH, {"account": str(first)})).location == "/dashboard"
    assert (await browser.get("/dashboard/emails")).status == 200
    await browser.post(SWITCH, {"account": str(strict)})
    await with_app(browser)
    assert (await browser.get("/dashboard/emails")).status == 200
