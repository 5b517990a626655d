"""The first days of an account in Chromium: a test email before any domain, the setup steps, new entries of a list, undo."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.end_to_end.chromium import MARKS
from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.screens import look_here
from tests.end_to_end.test_browser import enter

pytestmark = MARKS
TEST, TRY = "Send a test email without a domain", "try.example"
ACCEPTED = "The recipient’s server accepted it."


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("first-days")
    inbox, here = free_port(), free_port()
    changes: dict[str, dict[str, object]] = {
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{inbox}"}},
        "sandbox": {"listen": [f"tcp:{inbox}:interface=127.0.0.1"]},
        "": {"sender": "mailsvc <no-reply@mailsvc.example>", "base_url": f"http://localhost:{here}"},
        "dashboard": {"sign_up": True, "test_sender": f"test@{TRY}"},
        "smtp": {"listen": {"587": f"tcp:{free_port()}:interface=127.0.0.1"}, "self_signed": str(folder / "tls")},
    }
    daemon = Daemon(folder, module_database, changes, here)
    daemon.start()
    daemon.command("domain", "add", TRY, "--account", daemon.facts["account_id"])
    daemon.command("domain", "trust", TRY, "--account", daemon.facts["account_id"])
    yield daemon
    daemon.stop()


def looked_at(page: Page, name: str) -> None:
    wrong = look_here(page, name)
    page.set_viewport_size({"width": 1280, "height": 900})
    assert not wrong, "\n".join(wrong)


def test_a_test_email_before_there_is_a_domain_shows_its_result_in_place(page: Page, daemon: Daemon) -> None:
    enter(page, daemon, "ann@acme.example")
    looked_at(page, "steps")
    page.get_by_role("button", name=TEST).click()
    expect(page.locator("#test-result")).to_contain_text(ACCEPTED)  # without a reload
    looked_at(page, "shared-test")
    page.goto("/dashboard/broadcasts")
    late: list[Route] = []
    page.route("**/broadcast-editor.js*", lambda route: late.append(route))
    with page.expect_request("**/broadcast-editor.js*"):
        page.get_by_role("button", name="New broadcast").first.click()
    page.get_by_label("Subject").fill("Not lost")
    expect(page.get_by_role("button", name=TEST)).to_have_count(0)  # nothing is sent before the script is there
    late[0].continue_()
    page.unroute("**/broadcast-editor.js*")
    page.get_by_role("button", name=TEST).click()
    expect(page.locator("#test-result")).to_contain_text(ACCEPTED)
    expect(page.get_by_label("Subject")).to_have_value("Not lost")
    looked_at(page, "shared-test-editor")


def test_the_domain_of_the_test_sender_sends_nothing_else(daemon: Daemon) -> None:
    """Over the API and over SMTP, with a key of the account that has the domain."""
    email = {"from": f"test@{TRY}", "to": "ann@acme.example", "subject": "Hi", "text": "x"}
    answer = daemon.call("POST", "/emails", email)
    assert answer.status == 403 and "reserved for test emails from the dashboard" in answer.body["message"]
    with smtplib.SMTP("127.0.0.1", daemon.facts["smtp"]["587"]) as client:
        client.starttls()
        client.login("mailsvc", daemon.facts["api_key"])
        with pytest.raises(smtplib.SMTPException):
            client.sendmail(f"test@{TRY}", ["ann@acme.example"], f"From: test@{TRY}\r\nSubject: Hi\r\n\r\nx\r\n")


def test_new_emails_are_announced_and_shown_on_request(page: Page, daemon: Daemon) -> None:
    enter(page, daemon, "new@acme.example", "Newcomers")
    daemon.command("domain", "add", "new.acme-example.com", "--account", "Newcomers")
    daemon.command("domain", "trust", "new.acme-example.com", "--account", "Newcomers")
    page.get_by_role("button", name="Create API key").click()
    key = page.locator("#key").inner_text()
    mail = {"from": "a@new.acme-example.com", "to": "x@example.com", "subject": "First", "text": "x"}
    assert daemon.call("POST", "/emails", mail, key=key).status == 200
    page.clock.install()
    page.goto("/dashboard/emails")
    expect(page.get_by_role("link", name="First")).to_be_visible()
    for number in (2, 3):
        assert daemon.call("POST", "/emails", mail | {"subject": f"Number {number}"}, key=key).status == 200
    page.clock.run_for(10_000)
    news = page.get_by_role("status").get_by_role("link", name="2 new emails")
    expect(news).to_be_visible()
    expect(page.get_by_role("link", name="Number 2")).to_have_count(0)  # nothing moved
    looked_at(page, "new-emails")
    news.click()
    expect(page.get_by_role("link", name="Number 2")).to_be_visible()
    expect(page.locator("#news a")).to_have_count(0)
    page.goto("/dashboard")
    expect(page.get_by_role("heading", name="Finish setting up")).to_be_visible()
    looked_at(page, "finish-setting-up")
    page.get_by_role("button", name="Hide steps").click()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("heading", name="Finish setting up")).to_be_visible()
    page.goto("/dashboard/metrics/providers")
    expect(page.get_by_role("cell", name="example.com", exact=True)).to_be_visible()
    looked_at(page, "metrics-providers")


def test_a_removal_is_undone_with_the_keyboard(page: Page, daemon: Daemon) -> None:
    enter(page, daemon, "undo@acme.example", "Undo")
    page.goto("/dashboard/suppressions")
    page.get_by_role("textbox", name="Addresses").fill("gone@example.net")
    page.get_by_role("button", name="Add addresses").click()
    page.get_by_role("button", name="Remove gone@example.net").press("Enter")
    expect(page.get_by_role("status")).to_contain_text("gone@example.net was removed.")
    looked_at(page, "undo")
    page.get_by_role("button", name="Undo").press("Enter")
    expect(page.get_by_role("status")).to_contain_text("The address is suppressed again.")
    expect(page.get_by_role("button", name="Remove gone@example.net")).to_be_visible()
