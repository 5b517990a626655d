"""The broadcast editor in Chromium: a letter with a variable is written by keyboard, saved, reloaded, previewed and tested.

Needs Chromium, as test_browser does. No violation of the page's policy, and nothing in the console.
"""

from __future__ import annotations

import base64
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.broadcasts.pictures import SECRET, animation, picture
from tests.end_to_end.chromium import MARKS, POLICY
from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.screens import look_here
from tests.end_to_end.signing_in import PASSWORD, first_sign_in

KEPT: list[Any] = []  # cookies: the sign-in link works once
FOREIGN = "<table><tr><td>Made elsewhere, {{{contact.first_name|friend}}}</td></tr></table>"
# What the browser hands to a page when somebody drops a file.
DROPPED = """(content) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([Uint8Array.from(atob(content), (each) => each.charCodeAt(0))], "colors.gif", { type: "image/gif" }));
  return transfer;
}"""
# What the clipboard has after copying from another program: HTML, its text, and maybe a picture of it.
PASTED = """(place, [html, picture]) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/html", html);
  clipboardData.setData("text/plain", html.replace(/<[^>]*>/g, ""));
  const content = Uint8Array.from(atob(picture), (each) => each.charCodeAt(0));
  if (picture) clipboardData.items.add(new File([content], "image.png", { type: "image/png" }));
  place.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}"""
GOOGLE = """<meta charset="utf-8"><b style="font-weight:normal" id="docs-internal-guid-1"><p>Plain <span style="font-weight:700">bold</span>
<span style="font-style:italic">slanted</span></p><p><a href="javascript:alert(1)">Script</a> <a href="/page">Page</a></p></b>"""
WORD = """<html xmlns:w="urn:schemas-microsoft-com:office:word"><p class=MsoNormal onclick="alert(1)">One paragraph
<img src="file:///C:/chart.png"></p></html>"""
# A save begins and ends while the answer about what others saved is on its way.
SAVED_MEANWHILE = """async () => {
  const real = fetch;
  window.fetch = async (url, ...more) => {
    const answer = await real(url, ...more);
    if (url.endsWith("/state")) { changed(); await save(); }
    return answer;
  };
  await look();
  window.fetch = real;
}"""
TIMERS = """() => {
  const real = setTimeout;
  window.timers = [];
  window.setTimeout = (action, after) => { timers.push(after); return real(action, after); };
}"""
# Safari has no byte streams.
SAFARI = """window.ReadableStream = class extends ReadableStream {
  constructor(source, ...more) {
    if (source?.type === "bytes") throw new TypeError("ReadableByteStreamController is not implemented");
    super(source, ...more);
  }
};"""
REFUSED = re.compile("status of 4(03|13|22)|ERR_FAILED")  # the browser's own line about a response that a test asks for, or prevents

pytestmark = MARKS


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("editor")
    inbox = free_port()
    changes: dict[str, dict[str, object]] = {
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{inbox}"}},
        "sandbox": {"listen": [f"tcp:{inbox}:interface=127.0.0.1"]},
    }
    daemon = Daemon(folder, module_database, changes)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture
def page(browser: Browser, daemon: Daemon) -> Iterator[Page]:
    """Signed in. Anything in the console fails the test, and so does a violation of the policy."""
    context = browser.new_context(base_url=f"http://127.0.0.1:{daemon.port}", viewport={"width": 1280, "height": 900})
    context.set_default_timeout(10_000)
    context.add_init_script(POLICY)
    context.add_init_script(SAFARI)
    page, wrong = context.new_page(), list[str]()
    faults = ("error", "warning")
    page.on("console", lambda line: wrong.append(line.text) if line.type in faults and not REFUSED.search(line.text) else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())
    if not KEPT:
        first_sign_in(page, daemon.facts["sign_in"])
        KEPT.extend(context.cookies())
    context.add_cookies(KEPT)
    yield page
    context.close()
    assert not wrong


def call(daemon: Daemon, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
    answer = daemon.call(method, path, body)
    assert answer.status in (200, 201), answer
    found: dict[str, Any] = answer.body
    return found


def new_draft(daemon: Daemon, **content: object) -> str:
    segment = call(daemon, "POST", "/segments", {"name": "Readers"})["id"]
    fields = {"segment_id": segment, "from": f"Acme <news@{daemon.facts['domain']}>", "subject": "News", **content}
    found: str = call(daemon, "POST", "/broadcasts", fields)["id"]
    return found


def saved(page: Page) -> None:
    expect(page.locator("#status")).to_contain_text("Saved at", timeout=15_000)
    expect(page.locator("[data-unsaved]")).to_have_count(0, timeout=15_000)


def test_a_letter_is_written_saved_previewed_and_tested(page: Page, daemon: Daemon) -> None:
    call(daemon, "POST", "/contact-properties", {"key": "plan", "type": "string", "fallback_value": "free"})
    call(daemon, "POST", "/contacts", {"email": "ada@example.net", "first_name": "Ada", "properties": {"plan": "gold"}})
    broadcast = new_draft(daemon)
    path = f"/dashboard/broadcasts/{broadcast}/edit"
    page.goto(path)
    text = page.get_by_role("textbox", name="Content of the email")
    text.click()
    page.keyboard.type("/")
    block = page.get_by_role("listbox", name="Blocks").get_by_role("option", selected=True)
    expect(block).to_have_text("Text")
    expect(text).to_have_attribute("aria-activedescendant", block.get_attribute("id") or "none")
    page.keyboard.press("Backspace")
    expect(text).not_to_have_attribute("aria-activedescendant", re.compile(""))
    page.keyboard.type("Dear {{first")
    options = page.get_by_role("listbox", name="Variables").get_by_role("option", selected=True)
    expect(options).to_have_text("first_name")
    expect(text).to_have_attribute("aria-activedescendant", options.get_attribute("id") or "none")
    expect(text).to_have_attribute("aria-controls", page.get_by_role("listbox", name="Variables").get_attribute("id") or "none")
    page.keyboard.press("Enter")
    expect(text).not_to_have_attribute("aria-activedescendant", re.compile(""))
    expect(text.locator("[data-variable=first_name]")).to_be_visible()
    page.keyboard.press("ArrowLeft")  # selects the chip
    page.get_by_label("Fallback for first_name").fill("friend")
    text.press("End")
    page.keyboard.type(", your plan is ")
    page.get_by_label("Variable", exact=True).select_option("plan")
    page.get_by_role("button", name="Insert variable").click()
    page.get_by_role("button", name="Unsubscribe footer").click()
    page.get_by_label("Subject").fill("For {{{contact.first_name|you}}}")
    saved(page)

    stored = call(daemon, "GET", f"/broadcasts/{broadcast}")
    assert "Dear {{{contact.first_name|friend}}}, your plan is {{{contact.plan|free}}}" in stored["html"]
    assert 'href="{{{UNSUBSCRIBE_URL}}}"' in stored["html"] and stored["subject"] == "For {{{contact.first_name|you}}}"
    page.reload()
    expect(text.locator("[data-variable=first_name]")).to_have_text("first_name or “friend”")
    expect(text.get_by_text("Unsubscribe")).to_be_visible()

    frame = page.frame_locator("#frame")
    page.get_by_label("As contact").fill("nobody@example.net")
    page.get_by_role("button", name="Send a test").click()
    expect(page.locator("#tested")).to_have_text("Not sent: There is no contact with this address or ID.")
    page.get_by_label("As contact").press("Enter")
    expect(frame.get_by_text("There is no contact with this address or ID.")).to_be_visible()
    tests: list[str] = []
    page.on("request", lambda request: tests.append(request.url) if request.url.endswith("/test") else None)
    pages = page.evaluate("history.length")
    page.get_by_label("As contact").fill("ada@example.net")
    page.get_by_label("As contact").press("Enter")
    expect(frame.get_by_text("Dear Ada, your plan is gold")).to_be_visible()
    for view in ("Phone", "Dark"):
        page.get_by_label(view).check()
        expect(frame.get_by_text("Dear Ada, your plan is gold")).to_be_visible()
    page.get_by_label("Plain text").check()
    expect(frame.locator("pre")).to_contain_text("Dear Ada, your plan is gold")
    page.get_by_label("Desktop").check()
    page.get_by_role("button", name="Preview").click()
    expect(frame.get_by_text("Dear Ada, your plan is gold")).to_be_visible()
    assert page.evaluate("history.length") == pages  # Back leaves the page

    page.get_by_role("button", name="Send a test").dblclick()
    expect(page.locator("#tested")).to_contain_text("Sent to ")
    assert len(tests) == 1
    page.locator("#tested a").click()
    expect(page.get_by_role("heading", name="Test: For Ada")).to_be_visible()


def test_images_are_uploaded_by_button_and_by_drop_and_sent(page: Page, daemon: Daemon) -> None:
    broadcast = new_draft(daemon)
    page.goto(f"/dashboard/broadcasts/{broadcast}/edit")
    text = page.get_by_role("textbox", name="Content of the email")
    text.click()
    page.get_by_role("toolbar").get_by_role("button", name="Image", exact=True).click()
    page.get_by_label("Upload").set_input_files({"name": "notes.txt", "mimeType": "image/png", "buffer": b"<svg/>"})
    expect(page.locator("#uploaded")).to_contain_text("isn’t a PNG", timeout=20_000)
    page.get_by_label("Upload").set_input_files({"name": "photo.jpg", "mimeType": "image/jpeg", "buffer": picture("JPEG")})
    expect(page.get_by_label("Image address")).to_have_value(re.compile(r"/images/[\w-]{43}\.jpg$"), timeout=20_000)
    page.get_by_label("Description").focus()
    keyboard = page.context.new_cdp_session(page)
    keyboard.send("Input.imeSetComposition", {"text": "にほん", "selectionStart": 3, "selectionEnd": 3})
    enter = {"type": "rawKeyDown", "key": "Enter", "code": "Enter"}
    keyboard.send("Input.dispatchKeyEvent", {**enter, "windowsVirtualKeyCode": 13})
    page.get_by_label("Description").fill("A gray gradient")  # still there: Enter was for the input method
    keyboard.send("Input.dispatchKeyEvent", {**enter, "windowsVirtualKeyCode": 229})  # so is this, in Safari
    page.get_by_label("Description").press("Enter")
    expect(text.get_by_alt_text("A gray gradient")).to_be_visible()

    dropped = page.evaluate_handle(DROPPED, base64.b64encode(animation("GIF")).decode())
    page.keyboard.type("Another one:")
    place = text.locator("p", has_text="Another one:").bounding_box()
    assert place is not None
    text.dispatch_event("drop", {"dataTransfer": dropped, "clientX": place["x"] + 5, "clientY": place["y"] + 5})
    added = text.locator("img[src$='.gif']")
    expect(added).to_be_visible(timeout=20_000)
    added.click()
    page.get_by_role("toolbar").get_by_role("button", name="Image", exact=True).click()
    page.get_by_label("Description").fill("Three colors")
    page.get_by_label("Description").press("Enter")
    expect(text.get_by_alt_text("Three colors")).to_be_visible()
    saved(page)
    html = call(daemon, "GET", f"/broadcasts/{broadcast}")["html"]
    urls = re.findall(rf"http://127.0.0.1:{daemon.port}/images/[\w.-]+", html)
    assert len(urls) == 2 and "Another one:" in html and "blob:" not in html and 'alt="Three colors"' in html

    page.get_by_role("button", name="Preview").click()
    shown = page.frame_locator("#frame").get_by_alt_text("A gray gradient")
    expect(shown).to_be_visible()
    assert shown.evaluate("image => image.decode().then(() => image.naturalWidth)") == 40
    assert look_here(page, "broadcast-editor-images") == []
    page.get_by_role("button", name="Send a test").click()
    expect(page.locator("#tested")).to_contain_text("Sent to ")
    sent = page.locator("#tested a").get_attribute("href") or ""
    mail = call(daemon, "GET", f"/emails/{sent.rpartition('/')[2]}")["html"]
    for url in urls:
        assert url in mail
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.status == 200 and "Set-Cookie" not in answer.headers and SECRET not in answer.read()

    page.goto("/dashboard/images")
    expect(page.locator(".images img")).to_have_count(2)
    assert look_here(page, "images") == []
    page.locator(".images li").first.get_by_text("Delete", exact=True).click()
    page.get_by_role("button", name="Delete the image").first.click()
    expect(page.locator(".images img")).to_have_count(1)


def test_pasted_text_keeps_its_meaning_and_links_work_in_an_email(page: Page, daemon: Daemon) -> None:
    broadcast = new_draft(daemon)
    page = page.context.new_page()  # whose console may complain about pasted styles and scripts
    page.goto(f"/dashboard/broadcasts/{broadcast}/edit")
    text = page.get_by_role("textbox", name="Content of the email")
    text.click()
    text.evaluate(PASTED, [GOOGLE, ""])
    expect(text.locator("strong")).to_have_text("bold")
    expect(text.locator("em")).to_have_text("slanted")
    page.keyboard.press("Enter")
    text.evaluate(PASTED, [WORD, base64.b64encode(picture("PNG")).decode()])
    expect(page.locator("#uploaded")).to_contain_text("Images that aren’t on a website were left out.")
    expect(text.locator("p")).to_have_text(["Plain bold slanted", "Script Page", "One paragraph"])
    expect(text.locator("img[src], a")).to_have_count(0)
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("ControlOrMeta+x")
    page.keyboard.press("ControlOrMeta+v")
    expect(text.locator("p")).to_have_text(["Plain bold slanted", "Script Page", "One paragraph"])
    expect(text.locator("[data-type=container]")).to_have_count(1)
    text.evaluate(PASTED, ["<ul><li>a" * 60 + "Too deep", ""])
    expect(text).not_to_contain_text("Too deep")

    page.keyboard.press("ControlOrMeta+a")
    link = page.get_by_role("toolbar").get_by_role("button", name="Link", exact=True)
    link.click()
    page.keyboard.press("Escape")
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_label("Link address").fill("example.com/news")
    page.keyboard.press("Enter")
    saved(page)
    html = call(daemon, "GET", f"/broadcasts/{broadcast}")["html"]
    assert set(re.findall('href="([^"]*)"', html)) == {"https://example.com/news"} and "onclick" not in html
    text.click()
    for key in "axv":
        page.keyboard.press(f"ControlOrMeta+{key}")
    expect(text.locator("a").first).to_be_visible()
    expect(text.locator("u")).to_have_count(0)

    field = page.get_by_label("Reply-To")
    hint = "Where replies go. Empty: the From address."
    field.fill("nobody")
    expect(field).to_have_accessible_description(re.compile(f"{hint} .+"))
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("")
    saved(page)
    expect(field).to_have_accessible_description(hint)
    page.close()


def test_two_people_are_told_of_each_other_and_lose_nothing(page: Page, daemon: Daemon) -> None:
    broadcast = new_draft(daemon)
    path = f"/dashboard/broadcasts/{broadcast}/edit"
    page.goto(path)
    other = page.context.new_page()
    other.goto(path)
    page.get_by_label("Subject").fill("First")
    saved(page)
    other.get_by_label("Subject").fill("Second")
    saved(other)
    expect(other.locator("#conflict")).to_contain_text("theirs is in the earlier versions")
    assert call(daemon, "GET", f"/broadcasts/{broadcast}")["subject"] == "Second"
    page.goto("/dashboard/broadcasts")
    page.go_back()
    expect(page.get_by_label("Subject")).to_have_value("Second")
    other.goto(path)
    other.locator("#history > summary").click()
    expect(other.locator("#versions tbody tr")).to_have_count(2)
    other.get_by_role("button", name="Restore").click()
    expect(other.locator("#status")).to_contain_text("Restored")
    expect(other.get_by_label("Subject")).to_have_value("First")
    other.evaluate("document.documentElement.dataset.zone = 'Asia/Kolkata'")  # as the list of versions
    assert other.evaluate("time('2026-11-29T10:00:00Z')") == "03:30 PM"
    other.close()


def test_a_save_without_an_answer_is_not_taken_for_somebody_elses(page: Page, daemon: Daemon) -> None:
    broadcast = new_draft(daemon)
    page.goto(f"/dashboard/broadcasts/{broadcast}/edit?view=html")

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route("**/edit/save", lose, times=1)
    page.get_by_label("Subject").fill("First")
    expect(page.locator("#status")).to_contain_text("the server can’t be reached", timeout=15_000)
    assert call(daemon, "GET", f"/broadcasts/{broadcast}")["subject"] == "First"
    page.evaluate("look()")
    page.get_by_label("Subject").fill("Second")
    saved(page)
    expect(page.locator("#conflict")).to_be_hidden()


def test_whoever_signs_in_again_in_another_tab_can_save(page: Page, daemon: Daemon) -> None:
    page.goto(f"/dashboard/broadcasts/{new_draft(daemon)}/edit?view=html")
    email = page.get_by_role("button", name="Send a test").inner_text().removeprefix("Send a test to ")
    page.context.clear_cookies()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#status")).to_contain_text("You’re signed out. Sign in again in another tab.")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#tested")).to_have_text("No preview: You’re signed out. Sign in again in another tab.")
    other = page.context.new_page()
    other.goto("/dashboard/sign-in")
    other.get_by_label("Email", exact=True).fill(email)
    other.get_by_label("Password", exact=True).fill(PASSWORD)
    other.keyboard.press("Enter")
    expect(other.get_by_role("navigation", name="Dashboard")).to_be_visible()
    other.close()
    page.get_by_role("button", name="Save", exact=True).click()
    saved(page)
    page.context.clear_cookies()
    page.get_by_label("Subject").fill("Never saved")
    page.get_by_role("link", name="Broadcasts").first.click()  # the browser asks, and the answer is yes
    expect(page).to_have_url(re.compile("/dashboard/sign-in"))


def test_html_made_elsewhere_opens_as_html(page: Page, daemon: Daemon) -> None:
    broadcast = new_draft(daemon, html=FOREIGN)
    page.goto(f"/dashboard/broadcasts/{broadcast}/edit")
    html = page.get_by_label("HTML", exact=True)
    expect(html).to_have_value(FOREIGN)
    assert not page.locator("script[src*='editor.min.js']").count()
    html.fill(FOREIGN.replace("elsewhere", "here"))
    saved(page)
    assert "Made here" in call(daemon, "GET", f"/broadcasts/{broadcast}")["html"]
    page.evaluate(SAVED_MEANWHILE)
    expect(page.locator("#conflict")).to_be_hidden()

    page.route("**/edit/save", lambda route: route.fulfill(status=413, json={}))
    page.evaluate(TIMERS)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#status")).to_contain_text("Not saved: The content is too long. Shorten it.")
    assert page.evaluate("timers") == []  # it does not try again
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#tested")).to_have_text("The draft couldn’t be saved. The preview shows what was saved last.")
    expect(page.frame_locator("#frame").get_by_text("Made here")).to_be_visible()
    page.unroute_all()
    page.get_by_role("button", name="Save", exact=True).click()
    saved(page)
    page.locator("summary", has_text="Use the editor").click()
    page.get_by_role("link", name="Start with an empty page").click()
    expect(page.get_by_role("textbox", name="Content of the email")).to_be_visible()
    assert "Made here" in call(daemon, "GET", f"/broadcasts/{broadcast}")["html"]  # opening changes nothing


def test_the_page_is_light_and_accessible(page: Page, daemon: Daemon) -> None:
    broadcast = new_draft(daemon)
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", 0))) if "/static/" in answer.url else None)
    page.goto(f"/dashboard/broadcasts/{broadcast}/edit")
    expect(page.get_by_role("textbox", name="Content of the email")).to_be_visible()
    assert 300_000 < sum(sizes) < 400_000, sizes
    hint = page.locator(".canvas .is-empty").first  # axe does not look at its contrast
    assert hint.evaluate("one => getComputedStyle(one, '::before').opacity") == "1"
    assert look_here(page, "broadcast-editor") == []
    page.goto(f"/dashboard/broadcasts/{broadcast}/edit?view=html")
    assert look_here(page, "broadcast-editor-html") == []
    page.locator("#test").evaluate("button => { button.textContent += 'x'.repeat(60); }")  # a long address
    page.set_viewport_size({"width": 320, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 320
