"""How long the broadcast editor takes in Chromium, from the navigation until one can write. Used by tests.bench.million."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from playwright.sync_api import Page

from tests.end_to_end import chromium

ROUNDS = 5
TARGET = 2000  # milliseconds, on two cores


def ready(page: Page, path: str) -> float:
    """Milliseconds until the text can be edited."""
    page.goto(path, wait_until="commit")
    page.locator("#editor [contenteditable=true]").first.wait_for(timeout=60_000)
    return float(page.evaluate("performance.now()"))


def measure(port: int, cookies: Mapping[str, str], path: str) -> str:
    """A line for docs/performance.md: the first time, without anything in the browser's cache, and after that."""
    address = f"http://127.0.0.1:{port}"
    with chromium.started() as browser:
        first = []
        for _ in range(ROUNDS):
            context = browser.new_context(base_url=address)
            context.add_cookies([{"name": name, "value": value, "url": address} for name, value in cookies.items()])
            page = context.new_page()
            first.append(ready(page, path))
            again = ready(page, path)
            context.close()
    late = "" if max(first) <= TARGET else f" More than {TARGET} ms."
    worst = f"worst of {ROUNDS}: {max(first):.0f}"
    return f"Editor: {statistics.median(first):.0f} ms until one can write ({worst}), again {again:.0f} ms.{late}"
