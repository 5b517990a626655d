"""Somebody who cannot program sends a first newsletter in Chromium, by keyboard: import, letter, preview, test, sending, result.

Only the file is given to its field in another way: the dialog that chooses one belongs to the operating system.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.end_to_end.chromium import MARKS
from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.signing_in import PASSWORD

pytestmark = MARKS
CONTACTS = 5000
STEPS = 150  # presses of the Tab key


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("newsletter")
    inbox, port = free_port(), free_port()
    changes: dict[str, dict[str, object]] = {
        "": {"base_url": f"http://localhost:{port}"},
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{inbox}"}},
        "sandbox": {"listen": [f"tcp:{inbox}:interface=127.0.0.1"]},
    }
    daemon = Daemon(folder, module_database, changes, port)
    daemon.start()
    yield daemon
    daemon.stop()


class Keyboard:
    """What a person does who has no mouse."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def reach(self, wanted: Locator) -> None:
        """Press Tab until the element has the focus."""
        expect(wanted).to_be_visible()
        for _ in range(STEPS):
            if wanted.evaluate("element => element === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"{wanted} cannot be reached by keyboard")

    def press(self, role: str, name: str, exact: bool = False) -> None:
        self.reach(self.page.get_by_role(role, name=name, exact=exact).first)  # type: ignore[arg-type]
        self.page.keyboard.press("Enter")

    def open(self, text: str) -> None:
        """A part of the page that is closed at first."""
        self.reach(self.page.locator("summary", has_text=text).first)
        self.page.keyboard.press("Enter")

    def type(self, label: str, text: str) -> None:
        """Into a field, in place of what is there; also chooses the option of a list that begins so."""
        wanted = self.page.get_by_label(label, exact=True)
        self.reach(wanted)
        if wanted.evaluate("element => element.tagName") != "SELECT":
            self.page.keyboard.press("Control+a")
        self.page.keyboard.type(text)

    def tick(self, label: str) -> None:
        self.reach(self.page.get_by_label(label))
        self.page.keyboard.press("Space")


def contacts(folder: Path) -> Path:
    rows = [f"reader{n:04}@example.net,Reader {n},{n % 9}" for n in range(CONTACTS)]
    path = folder / "readers.csv"
    path.write_text("\n".join(["email,first_name,orders", *rows, ""]))
    return path


@pytest.mark.timeout(600)
def test_a_newsletter_from_an_empty_account(page: Page, daemon: Daemon, tmp_path: Path) -> None:
    keyboard = Keyboard(page)
    page.goto(daemon.facts["sign_in"][len(daemon.facts["http"]) :])
    keyboard.press("button", "Sign in")
    keyboard.type("Password", PASSWORD)
    keyboard.press("button", "Set password")

    import_readers(page, keyboard, contacts(tmp_path))
    write_the_letter(page, keyboard, daemon)
    preview_and_test(page, keyboard)
    send_and_read_the_result(page, keyboard)


def import_readers(page: Page, keyboard: Keyboard, file: Path) -> None:
    keyboard.press("link", "Audience")
    keyboard.press("link", "Segments")
    keyboard.type("Name", "Readers")
    keyboard.press("button", "Create segment")
    expect(page.get_by_role("heading", name="Readers")).to_be_visible()
    keyboard.press("link", "Audience")
    keyboard.press("link", "Imports")
    page.get_by_label("CSV file").set_input_files(file)
    keyboard.press("button", "Upload")
    expect(page.get_by_role("heading", name="Choose columns")).to_be_visible()
    keyboard.type("Add to a segment", "Readers")
    keyboard.tick("All these people agreed")
    keyboard.press("button", "Start import")
    expect(page.get_by_text("Completed")).to_be_visible(timeout=60_000)
    expect(page.locator("main dl").first).to_contain_text("5,000")


def write_the_letter(page: Page, keyboard: Keyboard, daemon: Daemon) -> None:
    keyboard.press("link", "Broadcasts")
    keyboard.press("button", "New broadcast")
    keyboard.type("Subject", "News for {{{contact.first_name|you}}}")
    keyboard.type("Name", "Acme")
    keyboard.type("Address", "news")
    keyboard.type("Domain", f"@{daemon.facts['domain']}")
    keyboard.type("Segment", "Readers")
    keyboard.type("Name of the broadcast", "First newsletter")
    text = page.get_by_role("textbox", name="Content of the email")
    keyboard.reach(text)
    page.keyboard.type("Dear {{first")
    expect(page.locator(".variable-list").get_by_role("option", name="first_name")).to_be_visible()
    page.keyboard.press("Enter")
    page.keyboard.type(", our shop is open again.")
    keyboard.press("button", "Unsubscribe footer")
    expect(page.locator("#status")).to_contain_text("Saved at", timeout=15_000)
    expect(page.get_by_role("heading", level=1)).to_have_text("First newsletter")
    expect(page).to_have_title(re.compile("First newsletter"))


def preview_and_test(page: Page, keyboard: Keyboard) -> None:
    keyboard.type("As contact", "reader0007@example.net")
    keyboard.press("button", "Preview")
    letter = "Dear Reader 7, our shop is open again."
    expect(page.frame_locator("#frame").get_by_text(letter)).to_be_visible()
    keyboard.press("button", "Send a test")
    expect(page.locator("#tested")).to_contain_text("Sent to ")


def send_and_read_the_result(page: Page, keyboard: Keyboard) -> None:
    keyboard.press("link", "Review and send")
    expect(page.locator("#recipients")).to_have_text("5,000")
    expect(page.get_by_text("to fix")).to_be_hidden()
    keyboard.open("Send now")
    keyboard.press("button", "Send to 5,000 recipients")
    delivered = page.locator("dl.figure", has_text="Delivered").locator("dd").first
    expect(delivered).to_have_text("5,000", timeout=400_000)  # without a reload
    expect(page.locator("h1 .badge")).to_have_text("Sent")
    keyboard.press("link", "Recipients")
    keyboard.reach(page.get_by_role("searchbox"))
    page.keyboard.type("reader0042@")
    page.keyboard.press("Enter")
    expect(page.get_by_role("row")).to_have_count(2)
    keyboard.press("link", "Sandbox")
    expect(page.get_by_text("News for Reader").first).to_be_visible()
