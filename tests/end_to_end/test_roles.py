"""Members with less than all permissions, and with several accounts, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.end_to_end.rig import Daemon
from tests.end_to_end.screens import look_at_all, look_here
from tests.end_to_end.signing_in import first_sign_in


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("roles"), module_database, {"plans": {"default": "free"}})
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture
def page(browser: Browser, daemon: Daemon) -> Iterator[Page]:
    context = browser.new_context(base_url=f"http://localhost:{daemon.port}")
    yield context.new_page()
    context.close()


def enter(page: Page, daemon: Daemon, email: str, role: str, *accounts: str) -> None:
    for account in accounts:
        link = daemon.command("member", "add", email, "--role", role, "--account", account).strip()
    first_sign_in(page, link[link.index("/dashboard") :])


@pytest.mark.slow
def test_a_read_only_member_looks_and_switches(page: Page, daemon: Daemon) -> None:
    daemon.command("account", "create", "Second Company With A Long Name Ltd")
    enter(page, daemon, "rita@acme.example", "read-only", "1", "2")
    page.goto("/dashboard/domains")
    expect(page.get_by_text("Your role, Read-only, can look at this page but not change it.")).to_be_visible()
    expect(page.get_by_role("button", name="Add domain")).to_be_hidden()
    look_at_all(page, {f"read-only-{name}": f"/dashboard/{name}" for name in "domains keys webhooks audience broadcasts settings".split()})
    endpoint = daemon.call("POST", "/webhooks", {"endpoint": "https://acme.example/hook", "events": ["email.sent"]}).body["id"]
    page.goto("/dashboard/keys")
    expect(page.get_by_role("region", name="Create an API key")).to_be_hidden()
    page.goto(f"/dashboard/webhooks/{endpoint}")
    expect(page.get_by_role("heading", name="Settings")).to_be_visible()
    expect(page.get_by_label("Endpoint URL")).to_be_disabled()
    for empty in ("Replay", "Delete"):
        expect(page.get_by_role("heading", name=empty)).to_be_hidden()
    page.get_by_text("Switch", exact=True).click()
    assert look_here(page, "switcher") == []
    page.set_viewport_size({"width": 1280, "height": 844})
    first, second = "Development", "Second Company With A Long Name Ltd"
    shown = page.locator(".switcher strong").inner_text()
    page.get_by_role("button", name=second if shown == first else first).click()
    expect(page.locator(".switcher strong")).to_have_text(second if shown == first else first)


def test_billing_sees_the_plan_and_little_else(page: Page, daemon: Daemon) -> None:
    enter(page, daemon, "bill@acme.example", "billing", "1")
    page.goto("/dashboard")
    expect(page.get_by_role("heading", name="Plan free")).to_be_visible()
    assert page.get_by_role("navigation", name="Dashboard").get_by_role("link").all_inner_texts()[0] == "Settings"
    look_at_all(page, {"billing-plan": "/dashboard/settings/plan", "billing-refused": "/dashboard/emails"})


def test_marketing_has_a_home_without_emails(page: Page, daemon: Daemon) -> None:
    enter(page, daemon, "mark@acme.example", "marketing", "1")
    page.goto("/dashboard")
    expect(page.get_by_role("link", name="Broadcasts", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Emails", exact=True)).to_be_hidden()
    look_at_all(page, {"marketing-home": "/dashboard"})
