"""All routes of the dashboard with the permission that each requires, and what a role can open. Nothing about requests."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, cast, get_args

import attrs

from mailsvc.dashboard.safety import HOME
from mailsvc.store.people.roles import NAMES, PERMISSIONS, Permission, Role, permits

# Anyone; a user whose second factor is still missing; a signed-in user; a member of the account shown, in any role.
Level = Literal["public", "first_factor", "user", "member"]
Access = Level | Permission


@attrs.frozen
class Route:
    """A route and what it requires."""

    method: str
    path: str
    access: Access
    reauthenticate: bool


ROUTES: list[Route] = []  # all routes of the dashboard; docs/security.md lists them

# What the forms of a section require, by the first part of the path. Forms of other sections are shown by permission, one by one.
CHANGES: dict[str, Permission] = {
    "emails": "send_mail",
    "domains": "change_setup",
    "keys": "change_setup",
    "webhooks": "change_setup",
    "suppressions": "change_setup",
    "audience": "change_audience",
    "broadcasts": "change_audience",
}

# The pages of a user, which no account limits to networks.
OWN = tuple(f"{HOME}/settings/{name}" for name in ("profile", "security", "passkeys", "identities"))


def admits(role: Role | None, access: Access) -> bool:
    """Whether a member with this role may open a page with this access."""
    return access in get_args(Level) or permits(role, cast(Permission, access))


def opens(role: Role | None, path: str) -> bool:
    """Whether a member with this role can open this page; links to others are not shown."""
    route = _page(path.partition("?")[0].partition("#")[0])
    return admits(role, route.access if route is not None else "member")


def nearest_page(path: str) -> str:
    """The page with this path, or else the nearest one above it. The path of a form, on which its errors are shown, often is no page."""
    parts = path.split("/")
    above = ("/".join(parts[:end]) for end in range(len(parts), 2, -1))
    return next((each for each in above if _page(each) is not None), HOME)


def roles_with(permission: Permission) -> str:
    """The roles that have a permission, as words."""
    found = [NAMES[role] for role, granted in PERMISSIONS.items() if permission in granted]
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} or {found[-1]}"


@lru_cache(1000)
def _page(path: str) -> Route | None:
    parts = path.split("/")
    pages = [route for route in ROUTES if route.method == "GET"]
    exact = [route for route in pages if route.path == path]
    found = exact or [route for route in pages if _matches(route.path.split("/"), parts)]
    return found[0] if found else None


def _matches(pattern: list[str], parts: list[str]) -> bool:
    same = zip(pattern, parts, strict=False)
    return len(pattern) == len(parts) and "<path:rest>" not in pattern and all(a == b or a.startswith("<") for a, b in same)
