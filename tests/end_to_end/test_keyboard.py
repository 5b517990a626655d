"""The dashboard by keyboard in Chromium: command palette, single keys, questions, tabs of code samples; and the menu on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.end_to_end.chromium import MARKS
from tests.end_to_end.rig import Daemon
from tests.end_to_end.screens import look_here
from tests.end_to_end.signing_in import PASSWORD, first_sign_in

KEPT: list[Any] = []  # cookies: the sign-in link works once
WIDTHS = """() => [...'0123456789'].map((digit) => {
  const probe = document.querySelector('time').appendChild(document.createElement('span'));
  probe.textContent = digit.repeat(20);
  const { width } = probe.getBoundingClientRect();
  probe.remove();
  return Math.round(width * 10);
})"""

pytestmark = MARKS


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("keyboard"), module_database)
    daemon.start()
    for number in range(3):
        mail = {"from": f"Acme <a@{daemon.facts['domain']}>", "to": "ann@example.com", "subject": f"Mail {number}", "text": "x"}
        assert daemon.call("POST", "/emails", mail | {"scheduled_at": "in 2 hours"}).status == 200
    yield daemon
    daemon.stop()


@pytest.fixture
def page(page: Page, daemon: Daemon) -> Page:
    """Signed in, on the list of emails."""
    if not KEPT:
        first_sign_in(page, daemon.facts["sign_in"].replace("127.0.0.1", "localhost"))
        KEPT.extend(page.context.cookies())
    page.context.add_cookies(KEPT)
    page.goto("/dashboard/emails")
    return page


def faults(page: Page, name: str) -> list[str]:
    found = look_here(page, name)
    page.set_viewport_size({"width": 1280, "height": 900})
    return found


def test_the_command_palette_finds_pages_and_emails(page: Page) -> None:
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Find a page or an email")
    expect(field).to_be_focused()
    assert not faults(page, "palette")
    page.keyboard.type("audit")
    expect(page.get_by_role("option", name="Audit log")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    expect(field).to_be_hidden()
    page.get_by_role("button", name="Find").click()
    page.keyboard.type("mail 2")
    method = {"type": "rawKeyDown", "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229}  # for an input method, in Safari
    page.context.new_cdp_session(page).send("Input.dispatchKeyEvent", method)
    expect(field).to_be_visible()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/emails\?q=mail%202$"))
    page.keyboard.press("Meta+k")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # round to the last one
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/settings/audit$"))


def test_single_keys_move_and_search(page: Page) -> None:
    rows = page.locator("main a.cover")
    expect(rows).to_have_count(3)
    for key, row in (("j", 0), ("j", 1), ("j", 2), ("j", 2), ("k", 1)):
        page.keyboard.press(key)
        expect(rows.nth(row)).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth")
    assert outline == "solid2px"
    page.keyboard.press("/")
    expect(page.get_by_label("Search", exact=True)).to_be_focused()
    page.keyboard.type("g d?j/")  # text, not shortcuts
    assert page.get_by_label("Search", exact=True).input_value() == "g d?j/"
    page.locator("body").click(position={"x": 400, "y": 5})
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Shortcuts", exact=True)).to_be_visible()
    assert not faults(page, "shortcuts")


def test_two_keys_within_a_second_and_a_half_open_a_page(page: Page) -> None:
    page.clock.install()
    page.reload()
    page.clock.pause_at(page.evaluate("Date.now()") + 1000)
    for key in ("g", "x", "d", "Control+g", "d", "g"):  # x has no page
        page.keyboard.press(key)
    page.clock.run_for(1500)
    page.keyboard.press("d")
    expect(page).to_have_url(re.compile("/emails"))
    page.keyboard.press("g")
    page.clock.run_for(1499)
    page.keyboard.press("d")
    expect(page).to_have_url(re.compile("/domains$"))


def test_single_keys_can_be_turned_off_and_the_palette_stays(page: Page) -> None:
    page.goto("/dashboard/settings/profile")
    preferences = page.locator("form", has=page.get_by_label("Time zone"))
    page.get_by_label("Single-key shortcuts").uncheck()
    preferences.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Preferences saved.")).to_be_visible()
    for key in ("?", "g", "e"):
        page.keyboard.press(key)
    expect(page.locator("dialog[open]")).to_have_count(0)
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Find a page or an email")).to_be_focused()
    page.keyboard.press("Escape")
    page.get_by_label("Single-key shortcuts").check()
    with page.expect_navigation():
        preferences.get_by_role("button", name="Save").click()
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Shortcuts", exact=True)).to_be_visible()


def test_a_question_is_asked_in_place(page: Page, daemon: Daemon) -> None:
    page.get_by_role("link", name="Mail 0").click()
    question = page.get_by_text("Recipients who have not received this email")
    page.locator("summary", has_text="Cancel sending").press("Enter")
    expect(question).to_be_visible()
    assert not faults(page, "question")
    page.get_by_role("button", name="Back").click()
    expect(question).to_be_hidden()
    expect(page.locator("summary", has_text="Cancel sending")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Cancel this email").click()
    expect(page.locator("#live-head .badge")).to_have_text("Canceled")


def test_a_form_is_sent_once_if_its_button_is_pressed_twice(page: Page) -> None:
    page.goto("/dashboard/keys")
    sent: list[str] = []

    def kept(route: Route) -> None:  # the page stays, as while a server has not answered
        sent.append(parse_qs(route.request.post_data or "")["name"][0])
        route.fulfill(status=204)

    page.route("**/dashboard/keys", kept)
    for name in ("Shop", "Shop", "Billing"):
        page.get_by_label("Name").fill(name)
        page.get_by_role("button", name="Create API key").click()
    assert sent == ["Shop", "Billing"]


def test_what_somebody_entered_is_there_again_after_signing_in(page: Page) -> None:
    page.goto("/dashboard/audience/topics")
    page.get_by_label("Name", exact=True).fill("Offers")
    page.get_by_label("Description").fill("Once a month")
    page.get_by_label("Visible on the preference page").select_option(index=1)
    page.context.clear_cookies()
    page.get_by_role("button", name="Create topic").click()
    expect(page.get_by_text("You were signed out before the form was sent.")).to_be_visible()
    for password in ("not this one", PASSWORD):
        page.get_by_label("Email").fill("you@mailsvc.example")
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_text("Your changes aren’t saved yet.")).to_be_visible()
    expect(page.get_by_label("Description")).to_have_value("Once a month")
    expect(page.get_by_label("Visible on the preference page")).to_have_value("public")
    page.get_by_role("button", name="Create topic").click()
    expect(page.get_by_role("heading", name="Offers")).to_be_visible()
    page.goto("/dashboard/audience/topics")
    expect(page.get_by_label("Name", exact=True)).to_have_value("")
    expect(page.get_by_text("Your changes aren’t saved yet.")).to_be_hidden()


def test_passwords_are_not_kept_and_others_do_not_see_what_was_entered(page: Page) -> None:
    page.goto("/dashboard/settings/sso")
    values = {"Issuer URL": "https://login.example.com", "Client ID": "abc", "Client secret": "hidden", "Email domains": "acme.example"}
    for label, value in values.items():
        page.get_by_label(label).fill(value)
    page.context.clear_cookies()
    page.get_by_role("button", name="Set up single sign-on").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    kept = page.evaluate("sessionStorage.getItem('mailsvc-kept-form')")
    assert "https://login.example.com" in kept and "hidden" not in kept
    page.evaluate("(kept) => sessionStorage.setItem('mailsvc-kept-form', kept)", kept.replace("you@mailsvc.example", "bob@acme.example"))
    page.get_by_label("Email").fill("you@mailsvc.example")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_label("Issuer URL")).to_have_value("")
    assert page.evaluate("sessionStorage.getItem('mailsvc-kept-form')") is None


def test_code_samples_are_tabs_that_remember_the_language(page: Page) -> None:
    page.goto("/dashboard/keys")
    tab = page.get_by_role("tab", selected=True)
    expect(tab).to_have_text("curl")
    expect(page.locator(".samples pre:visible")).to_have_count(1)
    tab.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Node.js")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Node.js")).to_contain_text("await fetch")
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="curl")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    page.get_by_role("tab", name="Go", exact=True).click()
    assert not faults(page, "keys-samples")
    page.reload()
    expect(page.get_by_role("tab", selected=True)).to_have_text("Go")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.clock.install()
    copy = page.get_by_role("tabpanel", name="Go").locator("[data-copy]")
    copy.dblclick()
    expect(copy).to_have_text("Copied")
    page.clock.run_for(2000)
    expect(copy).to_have_text("Copy")


def test_samples_are_listed_without_a_script(page: Page, browser: Browser, daemon: Daemon) -> None:
    context = browser.new_context(base_url=f"http://localhost:{daemon.port}", java_script_enabled=False)
    context.add_cookies(KEPT)
    plain = context.new_page()
    plain.goto("/dashboard/keys")
    expect(plain.locator(".samples pre:visible")).to_have_count(8)
    plain.goto("/dashboard/emails")
    plain.get_by_role("link", name="Mail 1").click()
    plain.locator("summary", has_text="Cancel sending").click()
    plain.get_by_role("button", name="Cancel this email").click()
    expect(plain.locator("#live-head .badge")).to_have_text("Canceled")
    context.close()


def test_a_phone_has_a_menu_with_every_section(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.get_by_role("link", name="Webhooks", exact=True)).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    expect(page.get_by_role("link", name="Webhooks", exact=True)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("link", name="Settings").click()
    expect(page).to_have_url(re.compile("/settings$"))


def test_digits_have_one_width(page: Page) -> None:
    page.evaluate("document.fonts.ready")
    assert page.evaluate("document.fonts.check('14px Inter Pages')")
    assert len(set(page.evaluate(WIDTHS))) == 1
