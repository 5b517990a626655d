"""The operator's console and the status page of a real daemon, in a real browser."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyotp
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.end_to_end.rig import Daemon, eventually, free_port, rows
from tests.end_to_end.screens import look_at_all, look_here

PASSWORD = "seven quiet green lamps"
WHO = "ann@operator.example"


@pytest.fixture(scope="module")
def console() -> int:
    return free_port()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str, console: int) -> Iterator[Daemon]:
    changes: dict[str, dict[str, object]] = {
        "console": {"listen": [f"tcp:{console}:interface=127.0.0.1"], "url": f"http://localhost:{console}"},
        "status": {"page": True, "components": ["API", "Delivery", "Webhooks", "Dashboard"]},
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{free_port()}"}, "retry": [600]},  # where nobody listens
        "plans": {"default": "free"},
    }
    daemon = Daemon(tmp_path_factory.mktemp("console"), module_database, changes)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture
def page(browser: Browser, console: int) -> Iterator[Page]:
    context = browser.new_context(base_url=f"http://localhost:{console}")
    page, wrong = context.new_page(), list[str]()
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    context.close()
    assert not wrong, wrong


@pytest.mark.slow
def test_an_operator_from_the_first_link_to_a_suspended_account(page: Page, daemon: Daemon, module_database: str) -> None:
    """In one test, since each sign-in uses up a code of half a minute."""
    mail = {"from": f"a@{daemon.facts['domain']}", "to": "zoe@recipient.example", "subject": "Secret subject", "text": "x"}
    assert daemon.call("POST", "/emails", mail).status == 200
    link = daemon.command("operator", "add", WHO).strip()
    page.goto(link)
    assert look_here(page, "console-set-up") == []
    secret = page.locator("#secret").inner_text()
    page.get_by_label("New password").fill(PASSWORD)
    page.get_by_label("6-digit code").fill(pyotp.TOTP(secret).now())
    page.get_by_role("button", name="Finish").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    account = rows(module_database, "SELECT id::text FROM accounts ORDER BY number LIMIT 1")[0][0]
    eventually(lambda: rows(module_database, "SELECT 1 FROM destinations"))
    page.goto("/console/incidents")
    page.get_by_label("Title").fill("Delivery is slow")
    page.get_by_label("Impact").select_option("degraded")
    page.get_by_label("Delivery", exact=True).check()
    page.get_by_label("First note").fill("Mail arrives late. We write again within the hour.")
    page.get_by_role("button", name="Add incident").click()
    expect(page.get_by_text("Incident added.")).to_be_visible()
    paths = {"console": "/console", "console-account": f"/console/accounts/{account}"}
    names = ("accounts", "queue", "sources", "cells", "incidents", "audit", "nothing")
    look_at_all(page, paths | {f"console-{name}": f"/console/{name}" for name in names if name != "nothing"})
    for path in (*paths.values(), *(f"/console/{name}" for name in names)):
        text = page.request.get(path).text()
        assert "Secret subject" not in text and "zoe@" not in text, path
    suspend(page, daemon, account)
    pause(page)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert look_here(page, "console-sign-in") == []
    page.goto("/console/accounts")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def suspend(page: Page, daemon: Daemon, account: str) -> None:
    page.goto(f"/console/accounts/{account}")
    page.get_by_text("Suspend account").click()
    page.get_by_label("Reason").first.fill("Phishing")
    page.get_by_role("button", name="Suspend", exact=True).click()
    expect(page.get_by_text("Account suspended.")).to_be_visible()
    assert daemon.call("GET", "/domains").status == 403 or refused(daemon)
    page.get_by_role("button", name="Resume account").click()
    expect(page.get_by_text("Account resumed.")).to_be_visible()


def refused(daemon: Daemon) -> bool:
    """Whether the account's key stops working within seconds, as with the command."""
    deadline = time.monotonic() + 5
    while daemon.call("GET", "/domains").status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)  # another process: it has to be polled
    return True


def pause(page: Page) -> None:
    page.goto("/console/queue")
    page.get_by_role("button", name=re.compile("^Pause ")).first.click()
    expect(page.get_by_text("Paused: ")).to_be_visible()
    page.get_by_role("button", name=re.compile("^Resume ")).first.click()
    expect(page.get_by_text("Resumed: ")).to_be_visible()


def test_the_status_page_is_on_the_public_address_and_the_console_is_not(page: Page, daemon: Daemon, console: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}/status") as response:
        assert response.headers["cache-control"] == "public, max-age=30" and response.headers["set-cookie"] is None
    look_at_all(page, {"status": f"http://127.0.0.1:{daemon.port}/status"})
    assert daemon.call("GET", "/console").status in (401, 404)
    assert page.request.get(f"http://127.0.0.1:{console}/emails").status == 404


def test_large_forms_and_unknown_methods_are_refused(daemon: Daemon, console: int) -> None:
    for body, status in ((b"x" * 70_000, 413), (b"token=1", 403)):
        request = urllib.request.Request(f"http://127.0.0.1:{console}/console/sign-in", body, method="POST")
        with pytest.raises(urllib.error.HTTPError) as answer:
            urllib.request.urlopen(request)
        assert answer.value.code == status


def test_operators_are_listed_and_removed(daemon: Daemon, tmp_path: Path) -> None:
    daemon.command("operator", "add", "bo@operator.example")
    assert "invited" in daemon.command("operator", "list")
    assert "is no longer an operator" in daemon.command("operator", "remove", "bo@operator.example")
