"""Accessibility checks (axe) and sizes of targets of pages: light, dark, in a narrow window and on a phone.

A page is loaded once; its colour scheme and width change in place, as they do when a person changes them.
With SCREENS=1, a screenshot of each view is saved in var/screens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

from tests.end_to_end.rig import PROJECT

SCREENS = PROJECT / "var/screens"
HEAVIEST = 150_000  # bytes
WIDE, NARROW, PHONE = 1280, 1100, 390
# The elements are the same in all views, so only the rules that depend on colours or width run again.
COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
SPACE = {"runOnly": ["color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size", "meta-viewport", "bypass"]}
VIEWS: tuple[tuple[str, Literal["light", "dark"], int, dict[str, object]], ...] = (
    ("light", "light", WIDE, {}),
    ("dark", "dark", WIDE, COLOURS),
    ("narrow", "light", NARROW, SPACE),
    ("phone", "light", PHONE, SPACE),
)
# Tables that are wider than their card: their last column, with its buttons, would be out of sight.
_CUT_OFF = """(kind) => [...document.querySelectorAll(kind)].filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.innerText.slice(0, 60))"""
# Targets smaller than 24 pixels. A link within a sentence may be as high as its line, and a label is part of its box (WCAG 2.2, 2.5.8).
_SMALL = """() => {
  const inline = (one) => one.tagName === "A" && getComputedStyle(one).display === "inline"
    && [...one.parentElement.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const size = (one) => {
    const parts = [one, ...(one.labels || [])].map((part) => part.getBoundingClientRect());
    const reach = (low, high) => Math.max(...parts.map((part) => part[high])) - Math.min(...parts.map((part) => part[low]));
    return [reach("left", "right"), reach("top", "bottom")];
  };
  const targets = document.querySelectorAll("a[href], button, summary, input:not([type=hidden]), select, textarea");
  return [...targets].filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest(".skip, .hidden") && !inline(one))
    .map((one) => [one.outerHTML.slice(0, 120), ...size(one).map(Math.round)]).filter(([, width, height]) => Math.min(width, height) < 24);
}"""
# What a frame contains is not checked; without `iframes`, axe waits half a second for an answer from each of them.
_CHECKED = {"resultTypes": ["violations"], "iframes": False}
_AXE = "async (options) => (await axe.run(document, options)).violations.map(v => [v.impact, v.id, v.nodes.map(n => n.html.slice(0, 160))])"


def look(page: Page, path: str, name: str) -> list[str]:
    """Open `path` and return its faults. `name`: of its screenshots."""
    page.set_viewport_size({"width": WIDE, "height": 844})
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    answer: Any = page.goto(path)
    wrong = [f"{path} has {len(answer.body())} bytes"] if len(answer.body()) > HEAVIEST else []
    return wrong + look_here(page, name)


def look_here(page: Page, name: str) -> list[str]:
    """The faults of the open page. `name`: of its screenshots."""
    page.emulate_media(reduced_motion="reduce")
    page.evaluate(AXE_SCRIPT)
    path, wrong = page.url, []
    for kind, scheme, width, rules in VIEWS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 844})
        if "SCREENS" in os.environ:
            page.screenshot(path=SCREENS / f"{name}-{kind}.png", full_page=True)
        found: list[list[Any]] = page.evaluate(_AXE, {**_CHECKED, **rules})
        wrong += [f"{path}, {kind}: {rule} {nodes}" for impact, rule, nodes in found if impact in ("moderate", "serious", "critical")]
        reached = page.evaluate("document.documentElement.scrollWidth")
        if reached > width:
            wrong.append(f"{path}, {kind}: the page is {reached} pixels wide")
        wrong += (
            [f"{path}, {kind}: a target is too small: {target}" for target in page.evaluate(_SMALL)] if kind in ("light", "phone") else []
        )
        tables = ".scroll:has(> table.fold)" if width == PHONE else ".scroll"  # others are scrolled sideways on a phone
        wrong += [f"{path}, {kind}: a table is cut off: {table!r}" for table in page.evaluate(_CUT_OFF, tables)]
    return wrong


def look_at_all(page: Page, paths: Mapping[str, str]) -> None:
    """Check every page; `paths` maps the name of the screenshot to the path."""
    wrong = [each for name, path in paths.items() for each in look(page, path, name)]
    page.set_viewport_size({"width": WIDE, "height": 844})
    assert not wrong, "\n".join(wrong)
