"""docs/security.md: its tables list the permission of every route, and the code and the pages agree with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args
from uuid import UUID

import attrs
import pytest
import pytest_twisted

import mailsvc.console.assembly
import mailsvc.dashboard.assembly  # noqa: F401  all routes are known once these are imported
from mailsvc.console import serving as console
from mailsvc.dashboard.access.routes import ROUTES, Route
from mailsvc.dashboard.page import REAUTHENTICATION_LIFETIME
from mailsvc.http import caller
from mailsvc.http.gate import UNGUARDED
from mailsvc.http.openapi import endpoints
from mailsvc.store.people.roles import LEAST, PERMISSIONS, ROLES, Permission, Role, permits
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import PASSWORD, Browser, DashboardRig
from tests.dashboard.test_signin import with_app
from tests.http.rig import KEYS, Rig

PAGE = Path(__file__).parent.parent / "docs" / "security.md"
LEVELS = ("public", "first_factor", "user")  # each includes those before; the columns before `permission`
DASHBOARD, API = "| action | routes | visitor |", "| action | routes | no key |"
CONSOLE = "| action | routes | visitor of its listener |"
ROLE_TABLE = "| permission | what it opens |"
ELSEWHERE = ("/dashboard/sign-in?", "/dashboard/sign-in/code?", "/dashboard/settings/plan")
PERMISSION, PROOF = 3, 4  # the other columns after the routes


@attrs.frozen
class Row:
    """`cells`: the columns after the routes."""

    action: str
    routes: tuple[str, ...]
    cells: tuple[str, ...]


def rows(head: str) -> Iterator[Row]:
    """The rows of all tables with this head."""
    inside = False
    for line in PAGE.read_text("utf-8").splitlines():
        inside = line.startswith(head) or (inside and line.startswith("|"))
        if inside and not line.startswith(("| action", "|---")):
            action, routes, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            yield Row(action, tuple(re.findall(r"`([^`]+)`", routes)), tuple(cells))


def cells_by_route(head: str) -> dict[str, tuple[str, ...]]:
    """The cells by route."""
    found: dict[str, tuple[str, ...]] = {}
    for row in rows(head):
        for route in row.routes:
            assert route not in found, f"{route} stands in two rows"
            found[route] = row.cells
    return found


def test_the_tables_list_every_dashboard_route_with_its_permission() -> None:
    documented = {route: ([cell == "yes" for cell in cells[:3]], permission(cells)) for route, cells in cells_by_route(DASHBOARD).items()}
    served = {f"{one.method} {one.path}": required(one) for one in ROUTES}
    assert documented == served


def permission(cells: tuple[str, ...]) -> str:
    """The permission that a row names, without remarks."""
    return re.split("[;,]| for ", cells[PERMISSION])[0]


def required(route: Route) -> tuple[list[bool], str]:
    """What the row of a route says."""
    if route.access in LEVELS:
        return [LEVELS.index(route.access) <= column for column in range(3)], ""
    return [False] * 3, "any role" if route.access == "member" else route.access.replace("_", " ")


def test_the_table_of_roles_says_what_each_role_permits() -> None:
    text = PAGE.read_text("utf-8")
    head, _, *lines = text[text.index(ROLE_TABLE) :].split("\n\n")[0].splitlines()
    assert tuple(cell.strip() for cell in head.strip("|").split("|")[2:]) == ROLES
    documented = {}
    for line in lines:
        name, _, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        documented[name.replace(" ", "_")] = {role for role, cell in zip(ROLES, cells, strict=True) if cell == "yes"}
    assert documented == {one: {role for role in ROLES if permits(role, one)} for one in get_args(Permission)}


def test_roles_that_only_look_open_no_route_that_changes_the_account() -> None:
    """The routes that are not GET and open to any role change the user themselves, or lead to another account."""
    changing = {one.access for one in ROUTES if one.method != "GET"} - {*LEVELS, "member"}
    assert {access for access in changing if permits("read-only", access)} == {"read_mail"}  # exports
    assert not any(permits("billing", access) for access in changing)
    assert PERMISSIONS[LEAST] < PERMISSIONS["developer"] < PERMISSIONS["admin"]


def test_the_tables_show_where_reauthentication_is_required() -> None:
    documented = {route for route, cells in cells_by_route(DASHBOARD).items() if cells[PROOF] == "yes"}
    assert documented == {f"{one.method} {one.path}" for one in ROUTES if one.reauthenticate}


def test_the_table_lists_every_route_of_the_console() -> None:
    documented = {route: cells == ("yes", "yes") for route, cells in cells_by_route(CONSOLE).items()}
    assert documented == {f"{one.method} {one.path}": one.access == "public" for one in console.ROUTES}


def test_the_tables_list_every_api_route_with_its_permission() -> None:
    documented = {route: [cell == "yes" for cell in cells] for route, cells in cells_by_route(API).items()}
    served = {}
    for one in endpoints(Rig().api.collections()):
        method, path = one.method.encode(), one.path.encode()
        public = path in UNGUARDED or (method == b"GET" and caller.PUBLIC.match(path) is not None)
        keys = (public or caller.permits(KEYS[key], method, path) for key in ("ms_send", "ms_full"))
        served[f"{one.method} {one.path}"] = [public, *keys]
    assert documented == served


@pytest.mark.parametrize("who", [*LEVELS, *ROLES])
@pytest_twisted.ensureDeferred
async def test_the_pages_admit_only_whom_the_tables_name(pool: Pool, who: str) -> None:
    """Others are redirected to where they can get access, or refused."""
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("admin@example.com", account_id)
    browser = await signed_in(rig, who, account_id)
    for route, cells in cells_by_route(DASHBOARD).items():
        method, path = route.split(" ")
        if path in ("/dashboard/sign-in/out", "/dashboard/settings/security/sessions/<text>/end") or route == "POST /dashboard/sign-in":
            continue  # would end sessions that the other rows need
        if path.startswith("/dashboard/sandbox"):
            continue  # development only
        url = re.sub("<[^>]+>", str(UUID(int=9)), path)
        shown = await (browser.get(url) if method == "GET" else browser.post(url))
        refused = shown.status == 403 or shown.location.startswith(ELSEWHERE)
        if not admitted(who, cells):
            assert refused, (who, route, shown.status, shown.location)
        elif cells[PERMISSION].replace(" ", "_") in ("", "any_role", *get_args(Permission)) and not re.search("/with/|/passkey", path):
            assert not refused, (who, route, shown.status, shown.location, shown.text)


def admitted(who: str, cells: tuple[str, ...]) -> bool:
    if who in LEVELS:
        return cells[LEVELS.index(who)] == "yes"
    named = permission(cells).replace(" ", "_")
    return named in ("", "any_role") or permits(cast(Role, who), cast(Permission, named))


async def signed_in(rig: DashboardRig, who: str, account_id: UUID) -> Browser:
    """A browser signed in this far. A user without an account is only admitted where none is needed."""
    browser = rig.browser()
    await browser.get("/dashboard/sign-in")
    if who in ("first_factor", "user"):
        await rig.person("ann@example.com", account_id, "developer")
        browser = await rig.inside("ann@example.com")
    if who == "first_factor":
        await with_app(browser)
        browser = rig.browser()
        assert (await browser.sign_in("ann@example.com", PASSWORD)).location.startswith("/dashboard/sign-in/code")
        await browser.get("/dashboard/sign-in/code")
    if who == "user":
        await browser.get("/dashboard/sign-in/again")
        await rig.pool.run("DELETE FROM members WHERE user_id = (SELECT id FROM users WHERE email = 'ann@example.com')")
    if who in ROLES:
        await rig.person("ann@example.com", account_id, cast(Role, who))
        browser = await rig.inside("ann@example.com")
        await browser.get("/dashboard/settings")
    return browser


@pytest_twisted.ensureDeferred
async def test_routes_that_require_reauthentication_refuse_an_old_session(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    browser = await signed_in(rig, "admin", account_id)
    rig.clock.advance(REAUTHENTICATION_LIFETIME.total_seconds() + 1)
    for route, cells in cells_by_route(DASHBOARD).items():
        if cells[PROOF] == "yes":
            method, path = route.split(" ")
            url = re.sub("<[^>]+>", str(UUID(int=9)), path)
            shown = await (browser.get(url) if method == "GET" else browser.post(url))
            assert shown.location.startswith("/dashboard/sign-in/again"), (route, shown.status)
