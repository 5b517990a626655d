"""The documentation site as it is built: without warnings, and in Chromium without anything that its policy forbids."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from mailsvc import __version__
from mailsvc.http.docs_site import installed
from tests.end_to_end.rig import PROJECT, Daemon, free_port
from tests.end_to_end.screens import look_here

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PAGES = {
    "index": "docs-index",
    "reference/api/emails": "docs-reference",
    "tutorial/first-email": "docs-tutorial",
    "reference/errors": "docs-errors",
}

pytestmark = pytest.mark.slow


def built(archive: Path, *, sources: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROJECT / "etc/site/build.py"), str(archive), *(["--sources", str(sources)] if sources else [])]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site") / "docs_site.zip"
    done = built(path)
    assert done.returncode == 0, done.stdout + done.stderr
    return path


def test_it_is_built_without_warnings_and_is_small(archive: Path) -> None:
    site = installed(archive)
    assert site is not None and site.version == __version__
    assert {f"{page}.html" for page in PAGES} <= {*site.files} and "searchindex.js" in site.files
    assert archive.stat().st_size < 3_000_000


def test_nothing_comes_from_another_host(archive: Path) -> None:
    site = installed(archive)
    assert site is not None
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]*? src=\"(?:https?:)?//|<link(?![^>]*rel=\"(?:canonical|next|prev)\")[^>]* href=\"(?:https?:)?//"
    )
    pages = {name: gzip.decompress(file.packed).decode() for name, file in site.files.items() if name.endswith(".html")}
    assert not {name for name, text in pages.items() if loaded.search(text)}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str, archive: Path) -> Iterator[Daemon]:
    """With the site beside its module."""
    inbox = free_port()
    shutil.copyfile(archive, PROJECT / "mailsvc/http/docs_site.zip")
    changes: dict[str, dict[str, object]] = {
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{inbox}"}},
        "sandbox": {"listen": [f"tcp:{inbox}:interface=127.0.0.1"]},
    }
    daemon = Daemon(tmp_path_factory.mktemp("docs"), module_database, changes)
    daemon.start()
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        assert os.environ.get("MAILSVC_TEST_CHROMIUM") != "required"
        pytest.skip("Chromium is not installed (Debian package: chromium).")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, daemon: Daemon) -> Iterator[Page]:
    context = browser.new_context(base_url=f"http://127.0.0.1:{daemon.port}")
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    assert not complaints


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_accessible_in_every_view(page: Page, name: str) -> None:
    page.goto(f"/docs/latest/{name}.html")
    assert page.url.endswith(f"/docs/{__version__}/{name}.html")
    wrong = look_here(page, PAGES[name])
    assert not wrong, "\n".join(wrong)


def test_search_finds_a_page(page: Page) -> None:
    page.goto("/docs")
    page.get_by_role("textbox", name="Search").first.fill("idempotency")
    page.keyboard.press("Enter")
    expect(page.locator("ul.search li").first).to_be_visible(timeout=20_000)


def test_a_sample_can_be_tried_and_its_languages_are_disclosed(page: Page, daemon: Daemon) -> None:
    page.goto("/docs/latest/reference/api/emails.html")
    form = page.locator(".try:has-text('POST /emails')").first
    form.get_by_label("API key").fill(daemon.facts["api_key"])
    body = form.get_by_label("Body")
    body.fill(body.input_value().replace("example.com", daemon.facts["domain"]))
    form.get_by_role("button", name="Send").click()
    expect(form.locator("pre")).to_contain_text("200\n")
    samples = page.locator("details.sample[name='POST /emails']")
    samples.locator("summary", has_text="Ruby").click()
    expect(samples.locator("pre", has_text="Net::HTTP")).to_be_visible()
    expect(samples.locator("pre", has_text="curl -X POST")).to_be_hidden()
