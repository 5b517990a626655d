"""Chromium for tests: starting it, the marks of tests that need it, and the script that reports violations of our pages' policy.

Needs Chromium (`apt-get install chromium`); without it these tests are skipped, but never where MAILSVC_TEST_CHROMIUM is "required", as it
is in .ci/run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    " --disable-sync"
)
MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None and os.environ.get("MAILSVC_TEST_CHROMIUM") != "required",
        reason="Chromium is not installed (Debian package: chromium).",
    ),
]

expect.set_options(timeout=20_000)  # milliseconds: a busy machine answers later

# The preview of an email has a policy of its own.
POLICY = """if (window === top) document.addEventListener("securitypolicyviolation", (event) => {
  console.error("policy", event.violatedDirective, event.blockedURI);
});"""


@contextmanager
def started() -> Iterator[Browser]:
    assert CHROMIUM is not None, "CI has no Chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        try:
            yield browser
        finally:
            browser.close()
