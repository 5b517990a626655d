"""The audience in Chromium: an import of 5,000 contacts, a contact, a segment, a topic; every page in four views, with axe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from playwright.sync_api import ConsoleMessage, Page, expect

from tests.end_to_end.chromium import MARKS
from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.screens import look_at_all, look_here
from tests.end_to_end.signing_in import first_sign_in

pytestmark = MARKS
AUDIENCE = "/dashboard/audience"
ROWS = 5000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("audience")
    port = free_port()
    daemon = Daemon(folder, module_database, {"": {"base_url": f"http://localhost:{port}"}}, port)
    daemon.start()
    yield daemon
    daemon.stop()


def file(folder: Path) -> Path:
    """Contacts with companies and seats, more than fits into an ordinary form. Two rows are wrong."""
    rows = [f"person{n:04}@example.net;Person {n};Company {n % 7};{n % 90}" for n in range(ROWS - 2)]
    path = folder / "contacts.csv"
    wrong = ["no address;X;Y;1", "many@example.net;X;Y;lots"]
    path.write_text("\n".join(["Mail;First name;Company;Seats", *rows[:100], *wrong, *rows[100:], ""]))
    assert path.stat().st_size > 200_000
    return path


def test_a_file_is_imported_and_a_contact_looked_at(page: Page, daemon: Daemon, tmp_path: Path) -> None:
    wrong: list[str] = []

    def noted(message: ConsoleMessage) -> None:
        if message.type == "error" and "422" not in message.text:  # the form that is sent wrong
            wrong.append(message.text)

    page.on("console", noted)
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    daemon.call("POST", "/segments", {"name": "long" * 12})
    daemon.call("POST", "/contact-properties", {"key": "long" * 12, "type": "string"})
    first_sign_in(page, daemon.facts["sign_in"][len(daemon.facts["http"]) :])
    page.get_by_role("link", name="Audience").click()
    expect(page.get_by_role("heading", name="No contacts yet")).to_be_visible()
    tabs = page.get_by_role("navigation", name="Audience")

    tabs.get_by_role("link", name="Properties").click()
    page.get_by_label("Key").fill("seats")
    page.get_by_label("Type").select_option("Number")
    page.get_by_role("button", name="Create property").click()
    expect(page.get_by_role("status")).to_have_text("The property was created.")
    tabs.get_by_role("link", name="Segments").click()
    page.get_by_label("Name").fill("Readers")
    page.get_by_role("button", name="Create segment").click()
    expect(page.get_by_role("heading", name="Readers")).to_be_visible()
    segment = page.url
    page.goto(f"{AUDIENCE}/topics")
    page.get_by_label("Name").fill("Product news")
    page.get_by_label("Description").fill(f"New features, see https://example.com/{'long' * 40}")
    page.get_by_label("Visible on the preference page").select_option("To everybody")
    page.get_by_role("button", name="Create topic").click()
    expect(page.get_by_role("heading", name="Product news")).to_be_visible()
    topic = page.url
    page.get_by_text("Ask people by email to confirm").click()
    page.get_by_text("The email and the page that its link opens").click()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Enter a value.")).to_be_visible()  # there is no sender
    assert not look_here(page, "audience-topic-wrong")
    page.set_viewport_size({"width": 1280, "height": 900})

    page.goto(f"{AUDIENCE}/imports")
    page.get_by_label("CSV file").set_input_files(file(tmp_path))
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("heading", name="Choose columns")).to_be_visible()
    expect(page.get_by_label("Import Mail as")).to_have_value("email")
    expect(page.get_by_label("Import First name as")).to_have_value("first_name")
    page.get_by_label("Import Company as").select_option("company (text)")
    page.get_by_label("Import Seats as").select_option("seats")
    page.get_by_label("Add to a segment").select_option("Readers")
    page.get_by_label("Subscribe to a topic").select_option("Product news")
    page.get_by_label("All these people agreed").check()
    assert not look_here(page, "audience-mapping")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.get_by_role("button", name="Start import").click()
    expect(page.get_by_text("Completed")).to_be_visible(timeout=30_000)  # without a reload
    expect(page.locator("main dl")).to_contain_text(re.compile("New contacts.*4,998"))
    expect(page.get_by_role("row").filter(has_text="no address")).to_contain_text("102")
    result = page.url
    page.get_by_role("link", name="See contacts").click()
    expect(page.get_by_role("row")).to_have_count(51)
    page.get_by_role("searchbox").fill("person0007")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("link", name="person0007@example.net").click()
    expect(page.get_by_label("company")).to_have_value("Company 0")
    expect(page.get_by_label("seats")).to_have_value("7")
    expect(page.get_by_role("checkbox", name="Product news")).to_be_checked()
    page.get_by_label("Last name").fill("Seven")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("status")).to_have_text("The contact was changed.")
    expect(page.get_by_role("button", name="Unsubscribe from everything")).to_be_hidden()
    page.locator("summary", has_text="Unsubscribe").click()
    page.get_by_role("button", name="Unsubscribe from everything").click()
    expect(page.get_by_text("Unsubscribed from everything", exact=True)).to_be_visible()
    contact = page.url.partition("?")[0]
    paths = {name: f"{AUDIENCE}/{name}" for name in ("new", "segments", "topics", "properties", "imports", "page")}
    ones = {"contacts": AUDIENCE, "contact": contact, "segment": segment, "topic": topic, "import": result}
    look_at_all(page, {f"audience-{name}": path for name, path in (paths | ones | {"none": f"{AUDIENCE}?q=nobody"}).items()})

    page.goto(f"{AUDIENCE}/page")
    page.get_by_label("Title").fill("Your newsletters")
    page.get_by_role("button", name="Preview").click()
    expect(page.frame_locator("iframe").get_by_role("heading", name="Your newsletters")).to_be_visible()
    page.goto(contact)
    page.locator("summary", has_text="Delete contact").click()
    page.get_by_role("button", name="Delete this contact").click()
    expect(page.get_by_text("The contact was deleted.")).to_be_visible()
    assert not wrong


def test_an_upload_needs_a_session(daemon: Daemon) -> None:
    """Nobody else can fill the disk: what is larger than a form is refused before it is read."""
    connection = HTTPConnection("127.0.0.1", daemon.port, timeout=30)
    connection.request("POST", f"{AUDIENCE}/imports", b"x" * 100_000, {"Content-Type": "multipart/form-data; boundary=x"})
    assert connection.getresponse().status == 413
    connection.close()
