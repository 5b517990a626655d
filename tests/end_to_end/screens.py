"""Looking at pages: each in light, in dark and on a phone, with a picture of each, and axe on all three.

A page is loaded once. Its colours and its width are changed in place, which is what a person's system does too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

from tests.end_to_end.rig import PROJECT

SCREENS = PROJECT / "var/screens"
HEAVIEST = 150_000  # octets of a page
WIDE, PHONE = 1280, 390
# The elements are the same in all three: what differs in the dark and on a phone is looked at again.
COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
SPACE = {"runOnly": ["color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size", "meta-viewport", "bypass"]}
_AXE = "async (options) => (await axe.run(document, options)).violations.map(v => [v.impact, v.id, v.nodes.map(n => n.html.slice(0, 160))])"


def look(page: Page, path: str, name: str) -> list[str]:
    """What is wrong with a page; its pictures are kept under `name`."""
    page.set_viewport_size({"width": WIDE, "height": 844})
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    answer: Any = page.goto(path)
    wrong = [f"{path} has {len(answer.body())} octets"] if len(answer.body()) > HEAVIEST else []
    return wrong + look_here(page, name)


def look_here(page: Page, name: str) -> list[str]:
    """What is wrong with the page that is open."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    page.emulate_media(reduced_motion="reduce")
    page.evaluate(AXE_SCRIPT)
    path, wrong = page.url, []
    for kind, scheme, width, rules in (("light", "light", WIDE, {}), ("dark", "dark", WIDE, COLOURS), ("phone", "light", PHONE, SPACE)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 844})
        page.screenshot(path=SCREENS / f"{name}-{kind}.png", full_page=True)
        found: list[list[Any]] = page.evaluate(_AXE, {"resultTypes": ["violations"], **rules})
        wrong += [f"{path}, {kind}: {rule} {nodes}" for impact, rule, nodes in found if impact in ("serious", "critical")]
        reached = page.evaluate("document.documentElement.scrollWidth")
        if reached > width:
            wrong.append(f"{path}, {kind}: it is {reached} pixels wide")
    return wrong


def look_at_all(page: Page, paths: Mapping[str, str]) -> None:
    """`paths` by the name of the picture."""
    wrong = [each for name, path in paths.items() for each in look(page, path, name)]
    assert not wrong, "\n".join(wrong)
