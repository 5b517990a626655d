"""The first sign-in of somebody in a browser: by the printed link, with a password that is chosen then."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

PASSWORD = "seven quiet green lamps"


def first_sign_in(page: Page, link: str, look: Callable[[Page], None] = lambda _: None) -> None:
    """`look` is called with the page on which the password is chosen."""
    page.goto(link)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Choose how you sign in")).to_be_visible()
    look(page)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Set password").click()
    expect(page.get_by_role("navigation", name="Dashboard")).to_be_visible()
